package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Steps reads a page of the steps that a run has recorded, after the given number (zero: from the
// first). limit is at most 200; zero: 100. The next page begins after NextAfter. Values of more than
// 4 KiB are left out: see [Client.Step].
func (c *Client) Steps(ctx context.Context, id perdure.RunID, after int64, limit int) (*api.Steps, error) {
	at := path(v1+"/runs/%s/journal/entries", string(id))
	return answer[api.Steps](ctx, c, &request{method: "GET", path: at, query: entriesQuery(after, limit)})
}

// Step reads a step of a run with its whole value.
func (c *Client) Step(ctx context.Context, id perdure.RunID, seq int64) (*api.Step, error) {
	at := path(v1+"/runs/%s/journal/entries/%s", string(id), strconv.FormatInt(seq, 10))
	return answer[api.Step](ctx, c, &request{method: "GET", path: at})
}

// InboxItems reads a page of the items that have come to a run, as [Client.Steps] does its journal. It takes
// nothing out of the inbox.
func (c *Client) InboxItems(ctx context.Context, id perdure.RunID, after int64, limit int) (*api.InboxItems, error) {
	at := path(v1+"/runs/%s/inbox/items", string(id))
	return answer[api.InboxItems](ctx, c, &request{method: "GET", path: at, query: entriesQuery(after, limit)})
}

// InboxItem reads an item of a run's inbox with its whole value.
func (c *Client) InboxItem(ctx context.Context, id perdure.RunID, seq int64) (*api.InboxItem, error) {
	at := path(v1+"/runs/%s/inbox/items/%s", string(id), strconv.FormatInt(seq, 10))
	return answer[api.InboxItem](ctx, c, &request{method: "GET", path: at})
}

// Replay reads all that a replay of a run needs, page by page: the parts that its worker would get with a lease.
// With a thread it has the messages that the run's agent has read. It takes a key with runs:read, and
// changes nothing. A run that changes meanwhile is read again, a few times.
func (c *Client) Replay(ctx context.Context, id perdure.RunID) (*api.Replay, error) {
	at := path(v1+"/runs/%s/replay", string(id))
	for tries := 1; ; tries++ {
		out, err := answer[api.Replay](ctx, c, &request{method: "GET", path: at})
		if err != nil {
			return nil, err
		}
		same, err := c.replayRest(ctx, at, out)
		if err == nil && !same && tries < maxReplayTries {
			continue
		}
		if err == nil && !same {
			err = perdure.Errorf(perdure.CodeWrongState, "run %s changes faster than it can be read", id)
		}
		if err == nil {
			out.Messages, err = c.messagesRead(ctx, out)
		}
		if err != nil {
			return nil, err
		}
		return out, nil
	}
}

// maxReplayTries is how often a run that changes is read from the beginning.
const maxReplayTries = 5

// replayRest adds the further parts. It returns false if one is of a later change of the run.
func (c *Client) replayRest(ctx context.Context, at string, out *api.Replay) (same bool, err error) {
	for out.JournalNext != 0 || out.InboxNext != 0 {
		q := url.Values{}
		for name, next := range map[string]int64{"journal_after": out.JournalNext, "inbox_after": out.InboxNext} {
			if next != 0 {
				q.Set(name, strconv.FormatInt(next, 10))
			}
		}
		part, err := answer[api.Replay](ctx, c, &request{method: "GET", path: at, query: q})
		if err != nil {
			return false, err
		}
		if part.Change != out.Change {
			return false, nil
		}
		out.Journal, out.JournalNext = append(out.Journal, part.Journal...), part.JournalNext
		out.Inbox, out.InboxNext = append(out.Inbox, part.Inbox...), part.InboxNext
	}
	return true, nil
}

// messagesRead returns the messages of the run's thread, up to the last one that its journal names.
func (c *Client) messagesRead(ctx context.Context, r *api.Replay) (out []api.Message, err error) {
	last := lastRead(r.Journal)
	for after := int64(0); r.ThreadID != "" && after < last; {
		page, err := c.Messages(ctx, r.ThreadID, after)
		if err != nil {
			return nil, err
		}
		if len(page.Messages) == 0 {
			break
		}
		for _, m := range page.Messages {
			if after = m.Seq; after <= last {
				out = append(out, m)
			}
		}
	}
	return out, nil
}

// lastRead returns the number of the last message that an agent has read, by its journal.
func lastRead(journal []api.JournalEntry) (last int64) {
	for _, e := range journal {
		var n int64
		var stretch struct {
			Last int64 `json:"last"`
		}
		switch {
		case strings.HasPrefix(e.Key, "_history:"):
			_ = json.Unmarshal(e.Value, &n) // the replay says what is wrong with it
		case strings.HasPrefix(e.Key, "_newest:"):
			_ = json.Unmarshal(e.Value, &stretch)
		}
		last = max(last, n, stretch.Last)
	}
	return last
}

func entriesQuery(after int64, limit int) url.Values {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}
