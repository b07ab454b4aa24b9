package session

import (
	"context"
	"time"
)

// A Once has the client send a call once, whatever comes of it: for a loop that sends again by itself, and has more
// to do than to wait for this call.
type Once struct {
	After time.Duration // the server asks to be left alone for so long
}

type onceKey struct{}

// SendOnce makes a context whose next call is sent once.
func SendOnce(ctx context.Context) (context.Context, *Once) {
	o := new(Once)
	return context.WithValue(ctx, onceKey{}, o), o
}

// OnceOf is how a call is to be sent; nil: as the client does by itself.
func OnceOf(ctx context.Context) *Once {
	o, _ := ctx.Value(onceKey{}).(*Once)
	return o
}
