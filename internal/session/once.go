package session

import (
	"context"
	"time"
)

// A Once makes the client send a call once, without retries. It is for loops that repeat the call
// themselves and must not block in its retries.
type Once struct {
	After time.Duration // the server's Retry-After, set by the client
}

type onceKey struct{}

// SendOnce returns a context whose calls are sent without retries.
func SendOnce(ctx context.Context) (context.Context, *Once) {
	o := new(Once)
	return context.WithValue(ctx, onceKey{}, o), o
}

// OnceOf returns the Once of a context, or nil if its calls are retried as usual.
func OnceOf(ctx context.Context) *Once {
	o, _ := ctx.Value(onceKey{}).(*Once)
	return o
}
