package webhook

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/engine"
)

// Settle returns when every node knows the webhooks that were changed before the call. A handler
// that changes a webhook calls it before it answers, so that the webhook gets all events after the
// answer.
func Settle(ctx context.Context, e *engine.Engine) error {
	delay := e.WebhookDelay()
	if delay == 0 {
		return nil
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
