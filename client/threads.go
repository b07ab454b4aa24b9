package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// CreateThread creates a thread.
func (c *Client) CreateThread(
	ctx context.Context, metadata json.RawMessage, opts ...CallOptions,
) (*api.Thread, error) {
	body := api.CreateThread{Metadata: metadata}
	return answer[api.Thread](ctx, c, &request{method: "POST", path: v1 + "/threads", body: body}, opts...)
}

// CopyThread creates a thread with the messages of another one, which has at most 1000. It has the metadata of
// the other one, unless some are given.
func (c *Client) CopyThread(
	ctx context.Context, of perdure.ThreadID, metadata json.RawMessage, opts ...CallOptions,
) (*api.Thread, error) {
	body := api.CreateThread{Metadata: metadata, CopyOf: of}
	return answer[api.Thread](ctx, c, &request{method: "POST", path: v1 + "/threads", body: body}, opts...)
}

// Thread returns a thread.
func (c *Client) Thread(ctx context.Context, id perdure.ThreadID) (*api.Thread, error) {
	return answer[api.Thread](ctx, c, &request{method: "GET", path: path(v1+"/threads/%s", string(id))})
}

// A ThreadFilter chooses a page of threads. Zero is the first one, of the usual length.
type ThreadFilter struct {
	Limit  int    // of a page; default 50, at most 200
	Cursor string // where a page begins: NextCursor of the one before
	// WithoutChildren leaves out threads that were created for children, such as workers of a
	// supervisor. A page may then be short, or empty, and have a NextCursor.
	WithoutChildren bool
	// Metadata selects threads whose metadata has these strings, or numbers and booleans written so. With it
	// or Status, a page may be short, or empty, and have a NextCursor.
	Metadata map[string]string
	Status   perdure.ThreadStatus
}

// Threads gives a page of threads, the one on which something happened last first.
func (c *Client) Threads(ctx context.Context, f ThreadFilter) (*api.Threads, error) {
	q := url.Values{}
	if f.Cursor != "" {
		q.Set("cursor", f.Cursor)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	if f.WithoutChildren {
		q.Set("children", "false")
	}
	if f.Status != "" {
		q.Set("status", string(f.Status))
	}
	for name, value := range f.Metadata {
		q.Set("metadata."+name, value)
	}
	return answer[api.Threads](ctx, c, &request{method: "GET", path: v1 + "/threads", query: q})
}

// ChangeThread merges an object into the metadata of a thread: each of its keys replaces the one of that
// name, and null removes it.
func (c *Client) ChangeThread(
	ctx context.Context, id perdure.ThreadID, metadata json.RawMessage, opts ...CallOptions,
) (*api.Thread, error) {
	r := &request{method: "PATCH", path: path(v1+"/threads/%s", string(id)), body: api.ChangeThread{Metadata: metadata}}
	return answer[api.Thread](ctx, c, r, opts...)
}

// DeleteThread removes a thread and its messages. Its runs stay.
func (c *Client) DeleteThread(ctx context.Context, id perdure.ThreadID, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/threads/%s", string(id))}, nil, opts...)
	return err
}

// Messages returns up to a hundred messages of a thread after the given number (zero: from the
// first). The next ones begin after NextAfter; there are no more when the answer is empty.
func (c *Client) Messages(ctx context.Context, id perdure.ThreadID, after int64) (*api.Messages, error) {
	return answer[api.Messages](ctx, c, &request{method: "GET", path: path(v1+"/threads/%s/messages", string(id)),
		query: url.Values{"after": {strconv.FormatInt(after, 10)}}})
}

// AppendMessage appends a message to a thread.
func (c *Client) AppendMessage(
	ctx context.Context, id perdure.ThreadID, m perdure.Message, opts ...CallOptions,
) (*api.MessageAppended, error) {
	at := path(v1+"/threads/%s/messages", string(id))
	return answer[api.MessageAppended](ctx, c, &request{method: "POST", path: at, body: m}, opts...)
}

// CreateGroup creates a group of runs that can be waited for together.
func (c *Client) CreateGroup(ctx context.Context, in api.CreateGroup, opts ...CallOptions) (*api.Group, error) {
	return answer[api.Group](ctx, c, &request{method: "POST", path: v1 + "/groups", body: in}, opts...)
}

// Group returns a group.
func (c *Client) Group(ctx context.Context, id perdure.GroupID) (*api.Group, error) {
	return answer[api.Group](ctx, c, &request{method: "GET", path: path(v1+"/groups/%s", string(id))})
}

// GroupFilter selects groups.
type GroupFilter struct {
	// State is one of perdure.GroupStates, or perdure.GroupEnded. Empty selects all.
	State  perdure.GatheringState
	Limit  int    // entries of a page; default 50
	Cursor string // NextCursor of the page before
}

// Groups returns a page of groups, newest first.
func (c *Client) Groups(ctx context.Context, f GroupFilter) (*api.Groups, error) {
	q := url.Values{}
	if f.State != "" {
		q.Set("state", string(f.State))
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	if f.Cursor != "" {
		q.Set("cursor", f.Cursor)
	}
	return filled(ctx, c, v1+"/groups", q, func(p *api.Groups) (int, string) { return len(p.Groups), p.NextCursor })
}

// JoinGroup waits for the end of a group, up to the given time (zero: [DefaultWait]). When the time
// has passed, open is true, and the group and its runs continue.
func (c *Client) JoinGroup(
	ctx context.Context, id perdure.GroupID, wait time.Duration,
) (group *api.Group, open bool, err error) {
	w := newCountdown(ctx, wait)
	for n := 0; ; n++ {
		r := &request{method: "GET", path: path(v1+"/groups/%s/join", string(id))}
		r.beforeResend = func() {
			r.wait, r.end = w.left(), w.lastTry()
			r.query = url.Values{"timeout": {r.wait.String()}}
		}
		r.beforeResend()
		next := new(api.Group)
		status, err := c.do(ctx, r, next)
		switch {
		case err != nil && group != nil && (ctx.Err() != nil || Transient(err)):
			return group, true, nil
		case err != nil:
			return nil, false, err
		case status != http.StatusAccepted:
			return next, false, nil
		}
		if group = next; w.left() <= minRemaining || !c.pause(ctx, w.end, min(n, 4), 0) {
			return group, true, nil
		}
	}
}
