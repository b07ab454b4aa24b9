package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// ApprovalFilter selects approvals.
type ApprovalFilter struct {
	// State is perdure.ApprovalOpen by default. perdure.ApprovalAll selects all.
	State perdure.ApprovalState
	RunID perdure.RunID // only of this run
	// RootRunID selects those of a tree of runs, and ThreadID those of the runs on a thread and of the
	// runs below these. A page may then be short and have a NextCursor.
	RootRunID perdure.RunID
	ThreadID  perdure.ThreadID
	Limit     int    // entries of a page; default 50
	Cursor    string // NextCursor of the page before
	// Platform selects the open approvals of all tenants that the platform decides about. It takes a
	// platform key with platform:read, and goes with Limit and Cursor alone.
	Platform bool
}

// Approvals returns a page of approvals, oldest first.
func (c *Client) Approvals(ctx context.Context, f ApprovalFilter) (*api.Approvals, error) {
	q := url.Values{}
	for name, v := range map[string]string{"state": string(f.State), "run_id": string(f.RunID),
		"root_run_id": string(f.RootRunID), "thread_id": string(f.ThreadID), "cursor": f.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	if f.Platform {
		q.Set(tenantParam, "*")
	}
	count := func(p *api.Approvals) (int, string) { return len(p.Approvals), p.NextCursor }
	return filled(ctx, c, v1+"/approvals", q, count)
}

// Approval returns an approval.
func (c *Client) Approval(ctx context.Context, id perdure.ApprovalID) (*perdure.Approval, error) {
	return answer[perdure.Approval](ctx, c, &request{method: "GET", path: path(v1+"/approvals/%s", string(id))})
}

// Decide approves or rejects an action. If the decision has an action hash, it is refused for any
// other action. The same decision sent again, with any comment, is not an error and counts once.
func (c *Client) Decide(
	ctx context.Context, id perdure.ApprovalID, in api.Decide, opts ...CallOptions,
) (*perdure.Approval, error) {
	return answer[perdure.Approval](ctx, c, &request{method: "POST", path: path(v1+"/approvals/%s", string(id)),
		body: in}, opts...)
}
