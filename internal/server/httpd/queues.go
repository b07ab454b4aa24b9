package httpd

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// pausePatience bounds the wait of a pause for its turn.
const pausePatience = 100 * time.Millisecond

func pauseQueue(c *call, in *api.PauseQueue) (int, *api.QueuePaused, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &rules.PauseQueue{Tenant: c.tenant(), Queue: c.PathValue("name"), Reason: in.Reason,
		For: time.Duration(in.For), Key: key}
	if in.Until != nil {
		if op.Until = *in.Until; op.Until == 0 {
			return 0, nil, perdure.Invalid("until", "has passed")
		}
	}
	if err := changePause(c, op); err != nil {
		return 0, nil, err
	}
	out := &api.QueuePaused{Name: op.Queue}
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
	op := &rules.ResumeQueue{Tenant: c.tenant(), Queue: c.PathValue("name"), Key: key}
	return 0, &api.QueuePaused{Name: op.Queue}, changePause(c, op)
}

// changePause pauses or resumes a queue, when its tenant's turn has come: polls of the tenant that are
// being decided meanwhile, and all that are decided with them, are decided again. It waits for no more
// than a moment, because the tenant's downloads take turns too.
func changePause(c *call, op kernel.Op) error {
	end, _ := c.share.turnWithin(c.Context(), pausePatience)
	defer end()
	return c.s.engine.Do(c.Context(), op)
}
