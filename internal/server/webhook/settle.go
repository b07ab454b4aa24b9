package webhook

import (
	"context"

	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/wire/timer"
)

// Settle returns when every node knows the webhooks that were changed before the call. A handler
// that changes a webhook calls it before it answers, so that the webhook gets all events after the
// answer.
func Settle(ctx context.Context, e *engine.Engine) error {
	delay := e.Webhooks.Delay()
	if delay == 0 {
		return nil
	}
	if !timer.Sleep(ctx, delay) {
		return ctx.Err()
	}
	return nil
}
