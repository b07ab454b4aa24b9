package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A DeadLetterFilter selects dead letters. An empty field selects all.
type DeadLetterFilter struct {
	Cause  string
	Kind   string
	Queue  string
	Limit  int    // entries of a page; default 50
	Cursor string // NextCursor of the page before
}

func (f *DeadLetterFilter) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"cause": f.Cause, "kind": f.Kind, "queue": f.Queue, "cursor": f.Cursor} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// DeadLetters returns a page of dead letters, newest first.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter) (*api.DeadLetters, error) {
	count := func(p *api.DeadLetters) (int, string) { return len(p.DeadLetters), p.NextCursor }
	return filled(ctx, c, v1+"/dlq", f.query(), count)
}

// DeadLetterCauses counts dead letters by cause and kind, the most frequent first.
func (c *Client) DeadLetterCauses(ctx context.Context, f DeadLetterFilter) (*api.DeadLetterCauses, error) {
	return answer[api.DeadLetterCauses](ctx, c, &request{method: "GET", path: v1 + "/dlq/causes", query: f.query()})
}

// DeadLetter returns a dead letter with its history.
func (c *Client) DeadLetter(ctx context.Context, id perdure.RunID) (*api.DeadLetterStory, error) {
	return answer[api.DeadLetterStory](ctx, c, &request{method: "GET", path: path(v1+"/dlq/%s", string(id))})
}

// Redrive starts a new run from a dead letter. A second call returns the same run.
func (c *Client) Redrive(ctx context.Context, id perdure.RunID, in api.Redrive, opts ...CallOptions) (*api.Run, error) {
	r := &request{method: "POST", path: path(v1+"/dlq/%s/redrive", string(id)), body: in}
	return answer[api.Run](ctx, c, r, opts...)
}

// RedriveMany starts new runs from many dead letters, at most one of each, and returns a result for
// each.
func (c *Client) RedriveMany(ctx context.Context, in api.RedriveMany, opts ...CallOptions) (*api.LettersDone, error) {
	return answer[api.LettersDone](ctx, c, &request{method: "POST", path: v1 + "/dlq/redrive", body: in}, opts...)
}

// DropDeadLetter discards a dead letter. Its run stays.
func (c *Client) DropDeadLetter(ctx context.Context, id perdure.RunID, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/dlq/%s", string(id))}, nil, opts...)
	return err
}

// DropDeadLetters discards many dead letters and returns a result for each.
func (c *Client) DropDeadLetters(
	ctx context.Context, in api.ChooseLetters, opts ...CallOptions,
) (*api.LettersDone, error) {
	return answer[api.LettersDone](ctx, c, &request{method: "POST", path: v1 + "/dlq/discard", body: in}, opts...)
}
