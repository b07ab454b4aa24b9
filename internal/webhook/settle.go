package webhook

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/engine"
)

// Settle returns when every node knows of the webhooks that were changed before it was called. Whoever changes one calls
// it before saying so: what happens after that is told.
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
