package session

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A Call is a call of the API that another package of the SDK makes with a client of package client.
type Call struct {
	Method, Path string
	Query        url.Values
	Body         any
	// Options is a []client.CallOptions, or nil.
	Options any
	// Keyed is set by Do if the options have an idempotency key.
	Keyed bool
}

// A Caller makes calls with the connections, the key, the tenant and the retries of a client.
type Caller interface {
	// Do makes a call and decodes its answer into out, which may be nil.
	Do(ctx context.Context, c *Call, out any) error
	// Open makes a call that is sent once, and returns its answer unread. Any status but 200 is an error.
	Open(ctx context.Context, c *Call) (*http.Response, error)
	// Retries is how often a failed call is sent again.
	Retries() int
}

// CallerOf returns the caller of a *client.Client. Package client sets the variable.
var CallerOf func(client any) Caller

// A Protocol makes the calls of a worker. Programs use package worker instead.
type Protocol interface {
	// Poll leases runs for a worker. If there are none, it waits for in.Wait (zero: 30 s). It is not
	// retried: runs of a lost answer are granted again by the server.
	Poll(ctx context.Context, workerID string, in api.Poll) (*api.Polled, error)
	// StartRuns reports that a worker has started runs that it leased without api.Poll.Start.
	StartRuns(ctx context.Context, workerID string, leases ...api.Lease) ([]api.LeaseResult, error)
	// Release hands back runs that a worker will not finish. It costs them no attempt.
	Release(ctx context.Context, workerID string, leases ...api.ReleasedLease) ([]api.LeaseResult, error)
	// TakeLimits takes slots of limits for steps of leased runs, or gives them back. A step that has its
	// slots takes nothing a second time.
	TakeLimits(ctx context.Context, workerID string, steps ...api.StepLimits) ([]api.StepTaken, error)
	// Heartbeat renews a worker's leases. The answer lists lost leases and runs with a cancel request.
	Heartbeat(ctx context.Context, workerID string, beats ...api.Beat) (*api.Beaten, error)
	// Commit reports what happened to leased runs. Each commit has its own result, in order. A refused
	// commit has its error there, also if it is the only one. A commit can be sent again with its
	// commit_id as long as its run is stored, and gets the same answer.
	Commit(ctx context.Context, workerID string, commits ...perdure.Commit) ([]api.CommitResult, error)
	// Journal and Inbox read the parts of a leased run that its grant left out.
	Journal(ctx context.Context, lease api.Lease, after int64) (*api.JournalPage, error)
	Inbox(ctx context.Context, lease api.Lease, after int64) (*api.InboxPage, error)
	// History reads the messages of a leased run's thread after the given number (zero: from the
	// first). The next ones begin after NextAfter. A run without a thread has none.
	History(ctx context.Context, lease api.Lease, after int64) (*api.Messages, error)
	// HistoryBackwards reads the last messages before the given number (zero: from the end), the newest
	// first, and none up to the number after. The next ones end before NextBefore. A page has a few of
	// them: as many as fit a MiB, and at least one. A server that can't read backwards answers as History
	// does, without NextBefore.
	HistoryBackwards(ctx context.Context, lease api.Lease, after, before int64) (*api.Messages, error)
	// ChildActivity returns the activity of a child, for the worker that holds the lease of its parent.
	ChildActivity(ctx context.Context, parent api.Lease, child perdure.RunID) (*api.Activity, error)
	// AnnounceKind announces a kind that a worker executes.
	AnnounceKind(ctx context.Context, kind string, in api.AnnounceKind) (*api.KindAnnounced, error)
	// PutArtifact stores a file of a leased run under a name such as report.pdf. An empty content type
	// means application/octet-stream. The same name with the same bytes changes nothing; with other
	// bytes the artifact is replaced. A body that is an io.Seeker is sent again from its current
	// position if an upload fails; any other body is sent once.
	PutArtifact(ctx context.Context, lease api.Lease, name, contentType string, body io.Reader) (
		*perdure.Artifact, error)
}

// Of returns the protocol of a *client.Client. Package client sets the variable.
var Of func(client any) Protocol

// Path formats a path with escaped ids.
func Path(format string, ids ...string) string {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = url.PathEscape(id)
	}
	return fmt.Sprintf(format, args...)
}

// Pages reads all pages of a list.
func Pages[P, T any](
	get func(query url.Values) (*P, error), entries func(*P) (list []T, next string),
) ([]T, error) {
	out := []T{} // an empty list as JSON is no null
	for cursor := ""; ; {
		var q url.Values
		if cursor != "" {
			q = url.Values{"cursor": {cursor}}
		}
		page, err := get(q)
		if err != nil {
			return nil, err
		}
		list, next := entries(page)
		if out = append(out, list...); next == "" {
			return out, nil
		}
		cursor = next
	}
}

// Filled reads pages until one has an entry or there are no more. The server reads a limited number
// of rows for a page, so a page can be empty although later ones are not.
func Filled[P any](
	get func(query url.Values) (*P, error), q url.Values, entries func(*P) (n int, next string),
) (*P, error) {
	for {
		page, err := get(q)
		if err != nil {
			return nil, err
		}
		n, next := entries(page)
		if n > 0 || next == "" {
			return page, nil
		}
		if q == nil {
			q = url.Values{}
		}
		q.Set("cursor", next)
	}
}
