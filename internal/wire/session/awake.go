package session

import (
	"context"
	"time"
)

type awakeKey struct{}

// StayAwake returns a context for a worker whose agents stay awake on a wait for so long, instead of being
// executed anew after it. The test kit compares both.
func StayAwake(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, awakeKey{}, d)
}

// AwakeFor returns how long agents stay awake on a wait. It is zero for all but the test kit.
func AwakeFor(ctx context.Context) time.Duration {
	d, _ := ctx.Value(awakeKey{}).(time.Duration)
	return d
}
