// Package webhook tells receivers outside what happened to runs: signed messages, sent again until they are taken
// or a day has passed. Which notifications there are is decided by the engine, in the transaction of the event;
// this package finds those that are due, sends them, and has the outcome recorded. It is no queue of its own, and a
// run never waits for it. The server runs it; the API asks its guard about addresses.
package webhook

import (
	"context"
	"time"
)

// A Message is one notification on its way to one receiver. ID and Body are the same in every attempt.
type Message struct {
	ID      string
	URL     string
	Secrets []string // whsec_…; one signature each
	Body    []byte
}

// A Result is what came of one attempt. Status is 0 when no answer came, and Err says why.
type Result struct {
	Status     int
	Err        string
	RetryAfter time.Duration // what the receiver asked for; 0: nothing
	Response   string        // the beginning of what it answered
	Took       time.Duration
}

// A Sender makes one attempt. It blocks for a bounded time, and reports instead of failing.
type Sender interface {
	Send(ctx context.Context, m Message) Result
}
