package httpd

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// letterBatch is the number of dead letters of one call that are written in a batch.
const letterBatch = 64

// letterFilter reads the parameters that select dead letters.
func letterFilter(c *call, def int64) (f reads.LetterFilter, err error) {
	limit, err := c.intParam("limit", def, 1, maxLetters)
	if err != nil {
		return f, err
	}
	q := c.URL.Query()
	f = reads.LetterFilter{Cause: q.Get("cause"), Kind: q.Get("kind"), Queue: q.Get("queue"), Limit: int(limit)}
	return f, checkLetters(f.Cause, f.Kind, f.Queue)
}

// checkLetters checks the texts that select dead letters. Workers choose the causes, so a cause is
// any text.
func checkLetters(cause, kind, queue string) error {
	for _, x := range [][2]string{{"kind", kind}, {"queue", queue}} {
		if x[1] != "" {
			if err := perdure.CheckName(x[0], x[1]); err != nil {
				return err
			}
		}
	}
	return perdure.CheckText("cause", cause)
}

func listDeadLetters(c *call, _ *none) (int, *api.DeadLetters, error) {
	f, err := letterFilter(c, 50)
	if err != nil {
		return 0, nil, err
	}
	if f.Before, err = c.cursorParam(); err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.DeadLetters.Page(c.Context(), c.tenant(), f)
	return 0, &api.DeadLetters{DeadLetters: append([]perdure.DeadLetter{}, list...), NextCursor: string(next)}, err
}

func deadLetterCauses(c *call, _ *none) (int, *api.DeadLetterCauses, error) {
	f, err := letterFilter(c, 100)
	if err != nil {
		return 0, nil, err
	}
	limit := f.Limit
	f.Limit++
	list, err := c.s.engine.DeadLetters.Groups(c.Context(), c.tenant(), f)
	out := &api.DeadLetterCauses{Causes: []api.DeadLetterCause{}, More: len(list) > limit}
	for _, g := range list[:min(limit, len(list))] {
		out.Causes = append(out.Causes, api.DeadLetterCause{Cause: g.Cause, Kind: g.Kind, Count: g.Count,
			Redriven: g.Redriven, OldestAt: g.Oldest, NewestAt: g.Newest, Example: g.Example, Message: g.Message})
	}
	return 0, out, err
}

func getDeadLetter(c *call, _ *none) (int, *api.DeadLetterStory, error) {
	l, err := c.s.engine.DeadLetters.Get(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	out := &api.DeadLetterStory{DeadLetter: l.DeadLetter, Attempts: append([]perdure.Attempt{}, l.Attempts...),
		Events: []api.Event{}}
	if l.Kept {
		out.Run = c.s.show(&reads.Detail{Run: l.Run}, c.s.engine.Now())
		if l.Run.Input != "" {
			out.Run.Input, _ = l.Run.Input.MarshalJSON()
		}
		if l.Run.Fallback != "" {
			out.Fallback = &l.Run.Fallback
		}
	}
	if p := &l.Parent; p.ID != "" {
		out.Parent = showJobStatus(p, l.ParentChangedAt)
	}
	for i := range l.Events {
		out.Events = append(out.Events, stream.Event(&l.Events[i]))
	}
	return 0, out, nil
}

func redrive(c *call, in *api.Redrive) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &upkeep.Redrive{Tenant: c.tenant(), RunID: c.run(), Resign: in.Resign, From: in.From, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return answerRun(c, op.Run.ID, op.Created)
}

func dropDeadLetter(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	return 0, &none{}, c.s.engine.Do(c.Context(), &upkeep.DropDeadLetter{Tenant: c.tenant(), RunID: c.run(), Key: key})
}

func redriveMany(c *call, in *api.RedriveMany) (int, *api.LettersDone, error) {
	picked, err := pickLetters(c, "redrive", &in.ChooseLetters, in, true)
	if err != nil {
		return 0, nil, err
	}
	ops := make([]kernel.Op, len(picked.Picked))
	for i, id := range picked.Picked {
		ops[i] = &upkeep.Redrive{Tenant: c.tenant(), RunID: id, Resign: in.Resign, From: in.From}
	}
	return eachLetter(c, picked.Picked, ops, func(i int, err error, done *api.LetterDone) error {
		done.RedrivenBy = ops[i].(*upkeep.Redrive).Run.ID
		return err
	})
}

func dropDeadLetters(c *call, in *api.ChooseLetters) (int, *api.LettersDone, error) {
	picked, err := pickLetters(c, "discard", in, in, false)
	if err != nil {
		return 0, nil, err
	}
	ops := make([]kernel.Op, len(picked.Picked))
	for i, id := range picked.Picked {
		ops[i] = &upkeep.DropDeadLetter{Tenant: c.tenant(), RunID: id}
	}
	return eachLetter(c, picked.Picked, ops, func(_ int, err error, _ *api.LetterDone) error {
		if picked.Again && perdure.CodeOf(err) == perdure.CodeNotFound {
			return nil // the first call with this Idempotency-Key has discarded it
		}
		return err
	})
}

// pickLetters selects the dead letters of a call: by ids, or by cause, kind or queue. A call that
// selects by nothing is refused, because it would mean all of them.
func pickLetters(c *call, what string, in *api.ChooseLetters, asked any, open bool) (*upkeep.PickLetters, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return nil, err
	}
	filtered := in.Cause != "" || in.Kind != "" || in.Queue != ""
	switch {
	case len(in.IDs) == 0 && !filtered:
		return nil, perdure.Invalid("ids", "say which: by ids, or by cause, kind or queue")
	case len(in.IDs) > 0 && (filtered || in.Limit != nil):
		return nil, perdure.Invalid("ids", "give either ids, or cause, kind, queue and limit")
	case len(in.IDs) > maxLetters:
		return nil, &perdure.Error{Code: perdure.CodeTooLarge, Field: "ids",
			Message: fmt.Sprintf("names at most %d", maxLetters)}
	case in.Limit != nil && (*in.Limit < 1 || *in.Limit > maxLetters):
		return nil, perdure.Invalid("limit", "takes a whole number from 1 to %d", maxLetters)
	}
	if err := checkIDs("ids", in.IDs); err != nil {
		return nil, err
	}
	if err := checkLetters(in.Cause, in.Kind, in.Queue); err != nil {
		return nil, err
	}
	f := reads.LetterFilter{Cause: in.Cause, Kind: in.Kind, Queue: in.Queue, Open: open, Oldest: true, Limit: 100}
	if in.Limit != nil {
		f.Limit = *in.Limit
	}
	op := &upkeep.PickLetters{Tenant: c.tenant(), What: what, IDs: in.IDs, Asked: asked, Key: key}
	if filtered {
		if op.Found, err = c.s.engine.DeadLetters.Find(c.Context(), c.tenant(), f); err != nil {
			return nil, err
		}
	}
	return op, c.s.engine.Do(c.Context(), op)
}

// eachLetter runs an operation for each letter, in batches that leave room for other operations.
// judge sets the result of an operation, and returns the error that the caller sees.
func eachLetter(c *call, ids []perdure.RunID, ops []kernel.Op,
	judge func(i int, err error, done *api.LetterDone) error) (int, *api.LettersDone, error) {
	out := &api.LettersDone{Results: make([]api.LetterDone, len(ids))}
	for from := 0; from < len(ops); from += letterBatch {
		for k, err := range c.s.engine.DoAll(c.Context(), ops[from:min(from+letterBatch, len(ops))]...) {
			i := from + k
			done := &out.Results[i]
			done.RunID = ids[i]
			if err := judge(i, err, done); err != nil {
				done.RedrivenBy, done.Error = "", refusal(c.s.refused(err))
				continue
			}
			done.OK = true
			out.Done++
		}
	}
	return 0, out, nil
}
