// Package session is where package worker and package agent meet: a leased run as a worker lends it to its agent.
// It is the seam between the two, and between worker and client, and nothing that a program needs, so that it stands in
// nobody's documentation.
package session

import (
	"context"
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A Session is a leased run. Package worker provides it.
type Session interface {
	// Grant is what was leased.
	Grant() *api.Grant
	// Leased ends when the run is no longer this worker's. A cancel does not end it.
	Leased() context.Context
	// Journal and Inbox read what had no room in the grant.
	Journal(ctx context.Context, after int64) (*api.JournalPage, error)
	Inbox(ctx context.Context, after int64) (*api.InboxPage, error)
	// Messages reads the run's thread.
	Messages(ctx context.Context, after int64) (*api.Messages, error)
	// Bind names who is asked, at every commit, for what it carries.
	Bind(Source)
	// Commit has one made: now, or soon.
	Commit(now bool)
	// What a run says to those who watch.
	Heartbeat(activity string)
	Progress(v json.RawMessage)
	Emit(ctx context.Context, typ string, v any) error
	Delta(ctx context.Context, text string) error
}

// A Source gives what the next commit of its run carries (nil: nothing), and whether there is more for another one.
// Answered is called once, when the server has answered, or never, when the lease ends first.
type Source func() (part *perdure.Commit, more bool, answered func(*api.CommitResult))

// Execute runs an agent's function under a session and tells what came of it: an outcome to deliver, or nil when
// there is nothing more to say, since the run is suspended or no longer this worker's. The function gets an
// *agent.Context. Package agent sets it.
var Execute func(ctx context.Context, s Session, f func(ctx any) (result json.RawMessage, err error)) *perdure.Outcome
