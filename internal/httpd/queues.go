package httpd

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

func pauseQueue(c *call, in *api.PauseQueue) (int, *api.QueuePaused, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.PauseQueue{Tenant: c.tenant(), Queue: c.PathValue("name"), Reason: in.Reason,
		For: time.Duration(in.For), Key: key}
	if in.Until != nil {
		if op.Until = *in.Until; op.Until == 0 {
			return 0, nil, perdure.Invalid("until", "has passed")
		}
	}
	if err := c.changePause(op); err != nil {
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
	op := &engine.ResumeQueue{Tenant: c.tenant(), Queue: c.PathValue("name"), Key: key}
	return 0, &api.QueuePaused{Name: op.Queue}, c.changePause(op)
}

// changePause pauses or resumes a queue, when its tenant's turn has come: polls of the tenant that are
// being decided meanwhile, and all that are decided with them, are decided again.
func (c *call) changePause(op engine.Op) error {
	end, err := c.turn(largePage)
	if err != nil {
		return err
	}
	defer end()
	return c.s.engine.Do(c.Context(), op)
}
