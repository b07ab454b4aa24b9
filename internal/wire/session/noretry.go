package session

import (
	"context"
	"time"
)

// A NoRetry makes the client send a call once, without retries. It is for loops that repeat the call
// themselves and must not block in its retries.
type NoRetry struct {
	After time.Duration // the server's Retry-After, set by the client
}

type onceKey struct{}

// WithoutRetry returns a context whose calls are sent without retries.
func WithoutRetry(ctx context.Context) (context.Context, *NoRetry) {
	o := new(NoRetry)
	return context.WithValue(ctx, onceKey{}, o), o
}

// NoRetryOf returns the NoRetry of a context, or nil if its calls are retried as usual.
func NoRetryOf(ctx context.Context) *NoRetry {
	o, _ := ctx.Value(onceKey{}).(*NoRetry)
	return o
}
