package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
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
	return session.Filled(func(q url.Values) (*api.DeadLetters, error) {
		return get[api.DeadLetters](ctx, c, v1+"/dlq", q)
	}, f.query(), count)
}

// DeadLetterCauses counts dead letters by cause and kind, the most frequent first.
func (c *Client) DeadLetterCauses(ctx context.Context, f DeadLetterFilter) (*api.DeadLetterCauses, error) {
	return get[api.DeadLetterCauses](ctx, c, v1+"/dlq/causes", f.query())
}

// DeadLetter returns a dead letter with its history.
func (c *Client) DeadLetter(ctx context.Context, id perdure.RunID) (*api.DeadLetterStory, error) {
	return get[api.DeadLetterStory](ctx, c, path(v1+"/dlq/%s", string(id)), nil)
}

// Redrive starts a new run from a dead letter. A second call returns the same run.
func (c *Client) Redrive(
	ctx context.Context, id perdure.RunID, in api.Redrive, opts ...client.CallOptions,
) (*api.Run, error) {
	return send[api.Run](ctx, c, "POST", path(v1+"/dlq/%s/redrive", string(id)), in, opts)
}

// RedriveMany starts new runs from many dead letters, at most one of each, and returns a result for
// each.
func (c *Client) RedriveMany(
	ctx context.Context, in api.RedriveMany, opts ...client.CallOptions,
) (*api.LettersDone, error) {
	return send[api.LettersDone](ctx, c, "POST", v1+"/dlq/redrive", in, opts)
}

// DropDeadLetter discards a dead letter. Its run stays.
func (c *Client) DropDeadLetter(ctx context.Context, id perdure.RunID, opts ...client.CallOptions) error {
	call := &session.Call{Method: "DELETE", Path: path(v1+"/dlq/%s", string(id)), Options: opts}
	return c.calls.Do(ctx, call, nil)
}

// DropDeadLetters discards many dead letters and returns a result for each.
func (c *Client) DropDeadLetters(
	ctx context.Context, in api.ChooseLetters, opts ...client.CallOptions,
) (*api.LettersDone, error) {
	return send[api.LettersDone](ctx, c, "POST", v1+"/dlq/discard", in, opts)
}

// ReleaseHold ends the hold of a run, so that any worker may claim it now. A run that is not on hold
// is refused with wrong_state.
func (c *Client) ReleaseHold(ctx context.Context, id perdure.RunID, opts ...client.CallOptions) (*api.Run, error) {
	return send[api.Run](ctx, c, "POST", path(v1+"/runs/%s/release-hold", string(id)), nil, opts)
}

// DeadLetterRun ends a run that is on hold: it fails with the code of its defect and becomes a dead
// letter. A run that is not on hold is refused with wrong_state.
func (c *Client) DeadLetterRun(ctx context.Context, id perdure.RunID, opts ...client.CallOptions) (*api.Run, error) {
	return send[api.Run](ctx, c, "POST", path(v1+"/runs/%s/dead-letter", string(id)), nil, opts)
}
