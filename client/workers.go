package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// The worker protocol as it is on the wire. Package worker is what programs use; these are for those who write
// a worker of another make.

// Poll leases runs for a worker; without any it waits as long as in.Wait says (zero: 30 s). It is sent once: an
// answer that was lost may have granted runs, and they are granted again by themselves.
func (c *Client) Poll(ctx context.Context, workerID string, in api.Poll) (*api.Polled, error) {
	wait := time.Duration(in.Wait)
	if wait == 0 {
		wait = 30 * time.Second
	}
	// Per run its input, a journal and an inbox, of a MiB each, and room for how JSON escapes them.
	limit := maxAnswer + int64(in.Slots)*(8<<20)
	return answer[api.Polled](ctx, c, &request{method: "POST", path: path(v1+"/workers/%s/poll", workerID), body: in, wait: wait, limit: limit, single: true})
}

// StartRuns says that a worker begins with runs that it has leased without starting them.
func (c *Client) StartRuns(ctx context.Context, workerID string, leases ...api.Lease) ([]api.LeaseResult, error) {
	return c.leases(ctx, "start", workerID, leases)
}

// Release hands runs back that a worker won't finish. It costs them no attempt.
func (c *Client) Release(ctx context.Context, workerID string, leases ...api.Lease) ([]api.LeaseResult, error) {
	return c.leases(ctx, "release", workerID, leases)
}

func (c *Client) leases(ctx context.Context, verb, workerID string, leases []api.Lease) ([]api.LeaseResult, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	out, err := answer[api.LeaseResults](ctx, c, &request{method: "POST", path: path(v1+"/workers/%s/"+verb, workerID), body: api.StartRuns{Runs: leases}})
	if p := entryRefused(err, len(leases)); p != nil {
		return []api.LeaseResult{{RunID: leases[0].RunID, Error: p}}, nil
	}
	if err != nil {
		return nil, err
	}
	return out.Results, nil
}

// Heartbeat keeps a worker's leases alive. The answer says which are lost and which runs are asked to stop.
func (c *Client) Heartbeat(ctx context.Context, workerID string, beats ...api.Beat) (*api.Beaten, error) {
	if beats == nil {
		beats = []api.Beat{}
	}
	return answer[api.Beaten](ctx, c, &request{method: "POST", path: path(v1+"/workers/%s/heartbeat", workerID), body: api.Beats{Runs: beats}})
}

// Commit says what happened to leased runs. Each commit has a result of its own, in order; one that was refused
// says so there, also when it is the only one. A commit may be sent again under its commit_id for as long as its
// run is kept: the answer is that of the first time.
func (c *Client) Commit(ctx context.Context, workerID string, commits ...perdure.Commit) ([]api.CommitResult, error) {
	if len(commits) == 0 {
		return nil, nil
	}
	out, err := answer[api.CommitResults](ctx, c, &request{method: "POST", path: path(v1+"/workers/%s/commit", workerID), body: api.Commits{Commits: commits}})
	if p := entryRefused(err, len(commits)); p != nil {
		return []api.CommitResult{{RunID: commits[0].RunID, Error: p}}, nil
	}
	if err != nil {
		return nil, err
	}
	return out.Results, nil
}

// entryRefused turns the problem of a call with a single entry into the result of that entry, so that a batch of
// one is read as any other. What is said about the caller, not about the entry, stays an error.
func entryRefused(err error, entries int) *api.Refusal {
	var p *api.Problem
	if entries != 1 || !errors.As(err, &p) {
		return nil
	}
	switch p.Code {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost, api.CodeMethod, api.CodeMediaType:
		return nil
	case perdure.CodeQuota: // 429, and only what this entry asks for is too much
	case perdure.CodeInternal:
		if p.Status != http.StatusInternalServerError { // something between here and the server said it
			return nil
		}
	default:
		if Transient(err) || p.Status/100 != 4 {
			return nil
		}
	}
	return &api.Refusal{Code: p.Code, Detail: p.Detail, Field: p.Field}
}

// Journal reads more of a leased run's journal than its grant had room for.
func (c *Client) Journal(ctx context.Context, lease api.Lease, after int64) (*api.JournalPage, error) {
	return answer[api.JournalPage](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/journal", string(lease.RunID)), query: leaseQuery(lease, after)})
}

// Inbox takes more of a leased run's inbox than its grant had room for.
func (c *Client) Inbox(ctx context.Context, lease api.Lease, after int64) (*api.InboxPage, error) {
	return answer[api.InboxPage](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/inbox", string(lease.RunID)), query: leaseQuery(lease, after)})
}

// History reads the messages of a leased run's thread after one (zero: from the first): go on with NextAfter until
// there are none. A run without a thread has none.
func (c *Client) History(ctx context.Context, lease api.Lease, after int64) (*api.Messages, error) {
	return answer[api.Messages](ctx, c, &request{method: "GET", path: path(v1+"/runs/%s/messages", string(lease.RunID)), query: leaseQuery(lease, after)})
}

func leaseQuery(l api.Lease, after int64) url.Values {
	return url.Values{"epoch": {strconv.FormatInt(l.Epoch, 10)}, "after": {strconv.FormatInt(after, 10)}}
}

// Workers lists the tenant's workers.
func (c *Client) Workers(ctx context.Context) ([]perdure.Worker, error) {
	return pages(ctx, c, v1+"/workers", func(p *api.Workers) ([]perdure.Worker, string) { return p.Workers, p.NextCursor })
}

// Queues lists the tenant's queues and what is in them.
func (c *Client) Queues(ctx context.Context) ([]api.Queue, error) {
	return pages(ctx, c, v1+"/queues", func(p *api.Queues) ([]api.Queue, string) { return p.Queues, p.NextCursor })
}
