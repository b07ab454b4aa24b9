// Package session is the interface between packages worker, agent, client and client/admin that is not
// part of the public SDK. A [Session] is a leased run as package worker offers it to package agent.
// [WithoutRetry] lets package worker turn off the client's retries for one call. A [Protocol] makes the calls
// of a worker, and a [Caller] those of package client/admin, with a client. outcome.go converts
// errors into failures in the same way for handlers and agents.
package session

import (
	"context"
	"encoding/json"
	"reflect"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A Session is a leased run. Package worker provides it.
type Session interface {
	// Grant returns the leased run.
	Grant() *api.Grant
	// Leased returns a context that ends when this worker no longer holds the run. A cancel request
	// does not end it.
	Leased() context.Context
	// Journal and Inbox read the parts that the grant left out.
	Journal(ctx context.Context, after int64) (*api.JournalPage, error)
	Inbox(ctx context.Context, after int64) (*api.InboxPage, error)
	// Messages reads the run's thread. MessagesBackwards reads it from its end, or from a message on.
	Messages(ctx context.Context, after int64) (*api.Messages, error)
	MessagesBackwards(ctx context.Context, after, before int64) (*api.Messages, error)
	// Run looks at another run, such as a child.
	Run(ctx context.Context, id perdure.RunID) (*api.Run, error)
	// TakeLimits takes slots of limits for a step before its function is called.
	TakeLimits(ctx context.Context, step string, takes []perdure.LimitTake, try int) (*api.StepTaken, error)
	// CloseLimit closes a limit with the next commit.
	CloseLimit(ctx context.Context, c perdure.LimitClosure) error
	// Bind sets the source that is asked for the content of every commit.
	Bind(Source)
	// Commit requests a commit: at once, or with the next flush of log lines.
	Commit(now bool)
	// Heartbeat, Progress, Emit and Delta are the functions of package worker with these names. The
	// text of a delta belongs to a try of a step, and may be told on a channel.
	Heartbeat(activity string)
	Progress(v json.RawMessage)
	Emit(ctx context.Context, typ perdure.LineType, v any) error
	Delta(ctx context.Context, channel, step string, try int64, text string) error
}

// A Check is a session without a lease. It replays a run up to where it stands: no function of a step is
// called, no commit is sent, and Execute returns nil when the run has not come further.
type Check interface {
	Session
	// Asleep returns the ids of the waits that the run is suspended on.
	Asleep() []string
}

// A Source returns the content of the run's next commit, or nil, and whether there is more for
// another commit. answered is called once with the server's answer, or never if the lease ends
// first.
type Source func() (part *perdure.Commit, more bool, answered func(*api.CommitResult))

// CheckInput checks the input of an agent's run against the type of its function. err is the error of
// reading it, and gone has the fields that the type does not have on purpose. It returns the error with
// which the agent fails, or ends the execution. Package agent sets the variable.
var CheckInput func(ctx any, t reflect.Type, gone []string, err error) error

// Execute calls an agent's function with an *agent.Context and returns the outcome to deliver. It
// returns nil if there is none, because the run is suspended or this worker no longer holds it.
// Package agent sets the variable.
var Execute func(ctx context.Context, s Session, f func(ctx any) (result json.RawMessage, err error)) *perdure.Outcome
