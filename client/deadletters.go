package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A DeadLetterFilter chooses dead letters. Empty fields choose all.
type DeadLetterFilter struct {
	Cause  string
	Kind   string
	Queue  string
	Limit  int    // of a page; default 50
	Cursor string // where a page begins: NextCursor of the one before
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

// DeadLetters gives a page of the runs that can't go on without a person, newest first.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter) (*api.DeadLetters, error) {
	return filled(ctx, c, v1+"/dlq", f.query(), func(p *api.DeadLetters) (int, string) { return len(p.DeadLetters), p.NextCursor })
}

// DeadLetterCauses counts dead letters by cause and kind, the most first.
func (c *Client) DeadLetterCauses(ctx context.Context, f DeadLetterFilter) (*api.DeadLetterCauses, error) {
	return answer[api.DeadLetterCauses](ctx, c, &request{method: "GET", path: v1 + "/dlq/causes", query: f.query()})
}

// DeadLetter looks at one and what led to it.
func (c *Client) DeadLetter(ctx context.Context, id perdure.RunID) (*api.DeadLetterStory, error) {
	return answer[api.DeadLetterStory](ctx, c, &request{method: "GET", path: path(v1+"/dlq/%s", string(id))})
}

// Redrive makes a new run of a dead letter. Asking again gives the same run.
func (c *Client) Redrive(ctx context.Context, id perdure.RunID, in api.Redrive) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "POST", path: path(v1+"/dlq/%s/redrive", string(id)), body: in})
}

// RedriveMany makes new runs of many dead letters, each of them once, and says what became of each.
func (c *Client) RedriveMany(ctx context.Context, in api.RedriveMany) (*api.LettersDone, error) {
	return answer[api.LettersDone](ctx, c, &request{method: "POST", path: v1 + "/dlq/redrive", body: in})
}

// DropDeadLetter discards a dead letter; its run stays.
func (c *Client) DropDeadLetter(ctx context.Context, id perdure.RunID) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/dlq/%s", string(id))}, nil)
	return err
}

// DropDeadLetters discards many dead letters, and says what became of each.
func (c *Client) DropDeadLetters(ctx context.Context, in api.ChooseLetters) (*api.LettersDone, error) {
	return answer[api.LettersDone](ctx, c, &request{method: "POST", path: v1 + "/dlq/discard", body: in})
}
