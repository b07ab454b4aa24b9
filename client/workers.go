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

// A protocol makes the calls of a worker. Package worker gets it from session.Of, so that it is not
// among the methods that programs see.
type protocol struct{ *Client }

// Poll leases runs for a worker. If there are none, it waits for in.Wait (zero: 30 s). It is not
// retried: runs of a lost answer are granted again by the server.
func (c protocol) Poll(ctx context.Context, workerID string, in api.Poll) (*api.Polled, error) {
	wait := time.Duration(in.Wait)
	if wait == 0 {
		wait = 30 * time.Second
	}
	// Each run has an input, a journal and an inbox of up to a MiB each, plus their JSON escapes.
	limit := maxAnswer + int64(in.Slots)*(8<<20)
	return answer[api.Polled](ctx, c.Client, &request{
		method: "POST", path: path(v1+"/workers/%s/poll", workerID), body: in,
		wait: wait, limit: limit, noRetry: true,
	})
}

// StartRuns reports that a worker has started runs that it leased without api.Poll.Start.
func (c protocol) StartRuns(ctx context.Context, workerID string, leases ...api.Lease) ([]api.LeaseResult, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	return c.leases(ctx, "start", workerID, api.StartRuns{Runs: leases}, leases[0].RunID, len(leases))
}

// Release hands back runs that a worker will not finish. It costs them no attempt.
func (c protocol) Release(
	ctx context.Context, workerID string, leases ...api.ReleasedLease,
) ([]api.LeaseResult, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	return c.leases(ctx, "release", workerID, api.ReleaseRuns{Runs: leases}, leases[0].RunID, len(leases))
}

// TakeLimits takes slots of limits for steps of leased runs.
func (c protocol) TakeLimits(ctx context.Context, workerID string, steps ...api.StepLimits) ([]api.StepTaken, error) {
	if len(steps) == 0 {
		return nil, nil
	}
	r := &request{method: "POST", path: path(v1+"/workers/%s/limits", workerID), body: api.TakeLimits{Steps: steps}}
	out, err := answer[api.LimitsTaken](ctx, c.Client, r)
	if p := entryRefused(err, len(steps)); p != nil {
		return []api.StepTaken{{LeaseResult: api.LeaseResult{RunID: steps[0].RunID, Epoch: steps[0].Epoch,
			Error: p}}}, nil
	}
	if err != nil {
		return nil, err
	}
	return out.Results, nil
}

// leases makes a call about n leases.
func (c protocol) leases(
	ctx context.Context, verb, workerID string, body any, first perdure.RunID, n int,
) ([]api.LeaseResult, error) {
	r := &request{method: "POST", path: path(v1+"/workers/%s/"+verb, workerID), body: body}
	out, err := answer[api.LeaseResults](ctx, c.Client, r)
	if p := entryRefused(err, n); p != nil {
		return []api.LeaseResult{{RunID: first, Error: p}}, nil
	}
	if err != nil {
		return nil, err
	}
	return out.Results, nil
}

// Heartbeat renews a worker's leases. The answer lists lost leases and runs with a cancel request.
func (c protocol) Heartbeat(ctx context.Context, workerID string, beats ...api.Beat) (*api.Beaten, error) {
	if beats == nil {
		beats = []api.Beat{}
	}
	at := path(v1+"/workers/%s/heartbeat", workerID)
	return answer[api.Beaten](ctx, c.Client, &request{method: "POST", path: at, body: api.Beats{Runs: beats}})
}

// Commit reports what happened to leased runs. Each commit has its own result, in order. A refused
// commit has its error there, also if it is the only one. A commit can be sent again with its
// commit_id as long as its run is stored, and gets the same answer.
func (c protocol) Commit(ctx context.Context, workerID string, commits ...perdure.Commit) ([]api.CommitResult, error) {
	if len(commits) == 0 {
		return nil, nil
	}
	r := &request{method: "POST", path: path(v1+"/workers/%s/commit", workerID), body: api.Commits{Commits: commits}}
	out, err := answer[api.CommitResults](ctx, c.Client, r)
	if p := entryRefused(err, len(commits)); p != nil {
		return []api.CommitResult{{RunID: commits[0].RunID, Error: p}}, nil
	}
	if err != nil {
		return nil, err
	}
	return out.Results, nil
}

// entryRefused converts the problem of a batch with one entry into the result of that entry, so
// that callers handle all batches alike. A problem about the caller, not about the entry, stays an
// error.
func entryRefused(err error, entries int) *api.Refusal {
	var p *api.Problem
	if entries != 1 || !errors.As(err, &p) {
		return nil
	}
	switch p.Code {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost, api.CodeMethod, api.CodeMediaType:
		return nil
	case perdure.CodeQuota: // has status 429, but is about the entry
	case perdure.CodeInternal:
		if p.Status != http.StatusInternalServerError { // a proxy answered, not the server
			return nil
		}
	default:
		if Transient(err) || p.Status/100 != 4 {
			return nil
		}
	}
	return &api.Refusal{Code: p.Code, Detail: p.Detail, Field: p.Field}
}

// Journal reads the part of a leased run's journal that its grant left out.
func (c protocol) Journal(ctx context.Context, lease api.Lease, after int64) (*api.JournalPage, error) {
	at := path(v1+"/runs/%s/journal", string(lease.RunID))
	return answer[api.JournalPage](ctx, c.Client, &request{method: "GET", path: at, query: leaseQuery(lease, after)})
}

// Inbox takes the part of a leased run's inbox that its grant left out.
func (c protocol) Inbox(ctx context.Context, lease api.Lease, after int64) (*api.InboxPage, error) {
	at := path(v1+"/runs/%s/inbox", string(lease.RunID))
	return answer[api.InboxPage](ctx, c.Client, &request{method: "GET", path: at, query: leaseQuery(lease, after)})
}

// History reads the messages of a leased run's thread after the given number (zero: from the
// first). The next ones begin after NextAfter. A run without a thread has none.
func (c protocol) History(ctx context.Context, lease api.Lease, after int64) (*api.Messages, error) {
	at := path(v1+"/runs/%s/messages", string(lease.RunID))
	return answer[api.Messages](ctx, c.Client, &request{method: "GET", path: at, query: leaseQuery(lease, after)})
}

// fromTheEnd is a number that no message of a thread reaches.
const fromTheEnd = 1 << 53

// HistoryBackwards reads the last messages of a leased run's thread before the given number (zero: from the
// end), the newest first, and none up to the number after. The next ones end before NextBefore. A page
// has a few of them: as many as fit a MiB, and at least one. A server that can't read backwards answers
// as History does, without NextBefore.
func (c protocol) HistoryBackwards(
	ctx context.Context, lease api.Lease, after, before int64,
) (*api.Messages, error) {
	if before <= 0 {
		before = fromTheEnd
	}
	at, query := path(v1+"/runs/%s/messages", string(lease.RunID)), leaseQuery(lease, after)
	query.Set("before", strconv.FormatInt(before, 10))
	page, err := answer[api.Messages](ctx, c.Client, &request{method: "GET", path: at, query: query})
	if p := (*api.Problem)(nil); errors.As(err, &p) && p.Code == perdure.CodeInvalid && p.Field == "before" {
		return c.History(ctx, lease, after) // the server is older
	}
	return page, err
}

func leaseQuery(l api.Lease, after int64) url.Values {
	return url.Values{"epoch": {strconv.FormatInt(l.Epoch, 10)}, "after": {strconv.FormatInt(after, 10)}}
}

// ChildActivity returns the activity of a child, for the worker that holds the lease of its parent.
func (c protocol) ChildActivity(ctx context.Context, parent api.Lease, child perdure.RunID) (*api.Activity, error) {
	return answer[api.Activity](ctx, c.Client, &request{
		method: "GET", path: path(v1+"/runs/%s/children/%s/activity", string(parent.RunID), string(child)),
		query: url.Values{"epoch": {strconv.FormatInt(parent.Epoch, 10)}},
	})
}

// AnnounceKind announces a kind that a worker executes. Package worker does that when it starts.
func (c protocol) AnnounceKind(ctx context.Context, kind string, in api.AnnounceKind) (*api.KindAnnounced, error) {
	return answer[api.KindAnnounced](ctx, c.Client, &request{method: "PUT", path: path(v1+"/kinds/%s", kind), body: in})
}
