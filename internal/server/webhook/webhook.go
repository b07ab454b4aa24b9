package webhook

import (
	"context"
	"time"
)

// A Message is one notification to one receiver. ID and Body are the same in every attempt.
type Message struct {
	ID      string
	URL     string
	Secrets []string // whsec_…; one signature each
	Body    []byte
}

// A Result is the result of one attempt. If there was no answer, Status is 0 and Err says why.
type Result struct {
	Status     int
	Err        string
	RetryAfter time.Duration // the receiver's Retry-After, or 0
	Response   string        // the beginning of the answer's body
	Took       time.Duration
}

// A Sender makes one attempt. It blocks for a limited time and reports failures in the Result.
type Sender interface {
	Send(ctx context.Context, m Message) Result
}
