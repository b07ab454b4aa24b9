package httpd

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

func retryRun(c *call, in *api.Retry) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.Retry{Tenant: c.tenant(), RunID: c.run(), From: in.From, Local: in.Local, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return answerRun(c, op.Run.ID, op.Created)
}

// retryBatch is the number of runs of one call that are retried in a batch.
const retryBatch = 64

// retryMany retries the runs of a call one by one, in batches that leave room for other operations.
// With an Idempotency-Key each of them is retried once.
func retryMany(c *call, in *api.RetryMany) (int, *api.RetriesDone, error) {
	key, err := c.idempotencyKey()
	switch {
	case err != nil:
		return 0, nil, err
	case len(in.RunIDs) == 0:
		return 0, nil, perdure.Invalid("run_ids", "names no run")
	case len(in.RunIDs) > perdure.MaxList:
		return 0, nil, &perdure.Error{Code: perdure.CodeTooLarge, Field: "run_ids",
			Message: fmt.Sprintf("names at most %d", perdure.MaxList)}
	}
	if err := checkIDs("run_ids", in.RunIDs); err != nil {
		return 0, nil, err
	}
	if in.From != "" {
		if err := perdure.CheckName("from", in.From); err != nil {
			return 0, nil, err
		}
	}
	// The whole call is tied to its key first: another list, or another from, is refused.
	pick := &upkeep.PickLetters{Tenant: c.tenant(), What: "retry-many", IDs: in.RunIDs, Asked: in, Key: key}
	if err := c.s.engine.Do(c.Context(), pick); err != nil {
		return 0, nil, err
	}
	out := &api.RetriesDone{Results: make([]api.RetryDone, len(in.RunIDs))}
	ops := make([]kernel.Op, len(in.RunIDs))
	for i, id := range in.RunIDs {
		ops[i] = &life.Retry{Tenant: c.tenant(), RunID: id, From: in.From, Local: in.Local, Key: key}
	}
	for from := 0; from < len(ops); from += retryBatch {
		for k, err := range c.s.engine.DoAll(c.Context(), ops[from:min(from+retryBatch, len(ops))]...) {
			done := &out.Results[from+k]
			done.RunID = in.RunIDs[from+k]
			if err != nil {
				done.Error = refusal(c.s.refused(err))
				continue
			}
			done.OK, done.RetriedBy = true, ops[from+k].(*life.Retry).Run.ID
			out.Done++
		}
	}
	return 0, out, nil
}
