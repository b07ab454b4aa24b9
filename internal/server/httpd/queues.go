package httpd

import (
	"cmp"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// pausePatience bounds the wait of a pause for its turn.
const pausePatience = 100 * time.Millisecond

func putQueueLimits(c *call, in *api.QueueLimits) (int, *api.QueueLimitsSet, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &rules.PutQueueLimits{Tenant: c.tenant(), Queue: c.PathValue("name"), Limits: in.Limits,
		Concurrency: in.Concurrency, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return 0, &api.QueueLimitsSet{Name: op.Queue, QueueLimits: api.QueueLimits{Limits: op.Row.LimitNames(),
		Concurrency: op.Row.Concurrency}}, nil
}

func pauseQueue(c *call, in *api.PauseQueue) (int, *api.QueuePaused, error) {
	return pausePlace(c, in, &rules.PausePlace{Queue: c.PathValue("name")})
}

func pauseKind(c *call, in *api.PauseQueue) (int, *api.QueuePaused, error) {
	if kindName(c) == "" {
		return 0, nil, perdure.CheckName("kind", "")
	}
	return pausePlace(c, in, &rules.PausePlace{Kind: kindName(c)})
}

// pausePlace pauses a queue or a kind.
func pausePlace(c *call, in *api.PauseQueue, op *rules.PausePlace) (int, *api.QueuePaused, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op.Tenant, op.Reason, op.For, op.Key = c.tenant(), in.Reason, time.Duration(in.For), key
	if in.Until != nil {
		if op.Until = *in.Until; op.Until == 0 {
			return 0, nil, perdure.Invalid("until", "has passed")
		}
	}
	if err := changePause(c, op); err != nil {
		return 0, nil, err
	}
	out := &api.QueuePaused{Name: cmp.Or(op.Kind, op.Queue)}
	if op.Paused.Holds(c.s.engine.Now()) {
		out.Paused = &op.Paused
	}
	return 0, out, nil
}

func resumeQueue(c *call, _ *none) (int, *api.QueuePaused, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &rules.ResumePlace{Tenant: c.tenant(), Queue: c.PathValue("name"), Key: key}
	return 0, &api.QueuePaused{Name: op.Queue}, changePause(c, op)
}

func resumeKind(c *call, _ *none) (int, *api.QueuePaused, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &rules.ResumePlace{Tenant: c.tenant(), Kind: kindName(c), Key: key}
	return 0, &api.QueuePaused{Name: op.Kind}, changePause(c, op)
}

// changePause pauses or resumes a queue or a kind, when its tenant's turn has come: polls of the tenant that are
// being decided meanwhile, and all that are decided with them, are decided again. It waits for no more
// than a moment, because the tenant's downloads take turns too.
func changePause(c *call, op kernel.Op) error {
	end, _ := c.share.turnWithin(c.Context(), pausePatience)
	defer end()
	return c.s.engine.Do(c.Context(), op)
}
