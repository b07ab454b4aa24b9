package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// ApprovalFilter narrows a list of approvals.
type ApprovalFilter struct {
	State  string        // "open" (default), "approved", "rejected", "timed_out", "closed" or "all"
	RunID  perdure.RunID // of this run
	Limit  int           // of a page; default 50
	Cursor string        // where a page begins: NextCursor of the one before
}

// Approvals gives a page of what runs want to be approved, oldest first.
func (c *Client) Approvals(ctx context.Context, f ApprovalFilter) (*api.Approvals, error) {
	q := url.Values{}
	for name, v := range map[string]string{"state": f.State, "run_id": string(f.RunID), "cursor": f.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return filled(ctx, c, v1+"/approvals", q, func(p *api.Approvals) (int, string) { return len(p.Approvals), p.NextCursor })
}

// Approval looks at an approval.
func (c *Client) Approval(ctx context.Context, id perdure.ApprovalID) (*perdure.Approval, error) {
	return answer[perdure.Approval](ctx, c, &request{method: "GET", path: path(v1+"/approvals/%s", string(id))})
}

// Decide approves or rejects. With the hash of the action that was shown, it counts for that action alone. The same decision
// again is no error, and counts once.
func (c *Client) Decide(ctx context.Context, id perdure.ApprovalID, in api.Decide) (*perdure.Approval, error) {
	return answer[perdure.Approval](ctx, c, &request{method: "POST", path: path(v1+"/approvals/%s", string(id)), body: in})
}
