package client

import (
	"context"
	"net/url"
	"strconv"

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
