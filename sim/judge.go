package sim

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// judge checks one answer against what was promised before, and remembers what it promises. A
// promise counts from the commit on, whether or not the caller gets the answer.
func (s *sim) judge(n *node, op kernel.Op, err error, before map[perdure.RunID]int64) {
	code := perdure.CodeOf(err)
	stored := err == nil || (n.sess.kept && code == perdure.CodeUnknown && s.decided(op, len(n.ops) == 1))
	switch {
	case code == perdure.CodeInternal:
		s.violate("defect", "%s: %v", s.summary(op), err)
	case code == perdure.CodeUnavailable && uploads(op): // it took too long, by a clock that jumped
	case (code == perdure.CodeUnavailable || code == perdure.CodeUnknown) && n.sess.hurt == 0:
		s.violate("refused", "%s was not done although nothing was in its way: %v", s.summary(op), err)
	case code == perdure.CodeInvalid || code == perdure.CodeOutcome || code == perdure.CodeTooLarge ||
		code == perdure.CodeOverBound || code == perdure.CodeNondeterminism:
		s.violate("refused", "%s: %v", s.summary(op), err)
	}
	s.anews.judge(op, err, stored)
	switch x := op.(type) {
	case *life.Commit:
		s.judgeCommit(x, code, stored, before)
	case *dispatch.Claim:
		if stored {
			s.judgeGrants(x)
		}
	case *life.Submit:
		s.judgeSubmit(x, code, stored)
	case *life.Signal:
		if stored && x.Seq != 0 {
			s.model.signals = append(s.model.signals, fact{x.RunID, string(x.Data), x.Seq})
		}
	case *life.Cancel:
		if stored && x.Run.State == perdure.Completed {
			s.sometimes("a cancel came after the end")
		}
	case *life.Callback:
		if stored && x.Refused != nil {
			s.sometimes("a callback came after its wait")
		}
	case *life.Adopt:
		if stored && !x.Discard {
			s.sometimes("a late result was adopted")
		}
	case *life.Retry:
		if stored && x.Key != "" {
			s.checkSameRun("retry:"+x.Key, x.Run.ID)
		}
		s.judgeRetry(&x.Run, x.From, code, stored && x.Created)
	case *upkeep.Redrive:
		s.judgeRetry(&x.Run, x.From, code, stored && x.Created)
		if stored {
			s.sometimes("a dead letter was redriven")
			s.checkSameRun("redrive:"+string(x.RunID), x.Run.ID)
		}
	case *life.Continue:
		if stored && x.Made != "" {
			s.sometimes("outside work made a continuation")
			if x.Created {
				s.checkSameRun("continue:"+string(x.RunID)+":"+x.JobID, x.Made)
			}
		}
	case *life.ReleaseHold:
		if stored {
			s.sometimes("a hold was released")
		}
	case *life.DeadLetterRun:
		if stored {
			s.sometimes("a held run was given up")
		}
	case *rules.PauseQueue:
		s.pauses.judge(n, x, stored)
	case *life.Release:
		if stored && x.Results[0].OK {
			s.sometimes("a run was handed back")
		}
	}
}

// decided tells whether an operation was accepted, in a batch that was committed although it
// reported an error. Other operations of the batch may have been refused.
func (s *sim) decided(op kernel.Op, alone bool) bool {
	switch x := op.(type) {
	case *life.Commit:
		return x.Answer.OK || x.Refused != nil
	case *life.Submit:
		return s.model.rows[x.Run.ID] != nil
	case *life.Retry:
		return s.model.rows[x.Run.ID] != nil
	case *upkeep.Redrive:
		return s.model.rows[x.Run.ID] != nil
	}
	return alone
}

func (s *sim) judgeCommit(x *life.Commit, code perdure.Code, stored bool, before map[perdure.RunID]int64) {
	c := &x.Commit
	var outcome perdure.OutcomeType
	if c.Outcome != nil {
		outcome = c.Outcome.Type
	}
	switch {
	case x.Refused != nil && stored:
		s.sometimes("a late result was kept")
		s.model.lateResults = append(s.model.lateResults, fact{run: c.RunID, key: c.ID})
	case code == perdure.CodeStaleEpoch:
		s.sometimes("a stale commit was refused")
	}
	if !stored || x.Refused != nil {
		return
	}
	id := string(c.RunID) + "/" + c.ID
	raw, _ := json.Marshal(x.Answer)
	if first, ok := s.model.commits[id]; ok {
		s.sometimes("a commit was answered as the first time")
		if first != string(raw) {
			s.violate("S1", "commit %s of %s was answered %s and then %s", c.ID, s.short(c.RunID), first, raw)
		}
		return
	}
	s.model.commits[id] = string(raw)
	if !x.Answer.OK {
		s.violate("commit", "commit %s of %s was neither taken nor refused", c.ID, s.short(c.RunID))
	}
	if before[c.RunID] > c.Epoch {
		s.violate("S8", "commit %s of %s was taken under epoch %d although epoch %d had begun", c.ID,
			s.short(c.RunID), c.Epoch, before[c.RunID])
	}
	for _, j := range c.Journal {
		if slices.Contains(s.model.inherited[c.RunID], j.Key) {
			s.violate("S9", "%s, a retry, executed the recorded step %s again", s.short(c.RunID), j.Key)
		}
		if !slices.Contains(s.model.journals[c.RunID], j.Key) {
			s.model.journals[c.RunID] = append(s.model.journals[c.RunID], j.Key)
		}
		s.model.steps = append(s.model.steps, fact{run: c.RunID, key: j.Key})
	}
	r := s.model.rows[c.RunID]
	if outcome != perdure.OutcomeComplete {
		return
	}
	s.model.results[c.RunID] = string(c.Outcome.Result)
	if r.State != perdure.Completed || (!r.adopted && string(r.Result) != string(c.Outcome.Result)) {
		s.violate("S1", "commit %s completed %s with %s, and it is %s with %s", c.ID, s.short(c.RunID),
			c.Outcome.Result, r.State, r.Result)
	}
	if r.Cancel.RequestedAt != 0 {
		s.sometimes("a cancel lost to a complete")
	}
	if len(c.Outcome.ContinueOn) > 0 {
		s.sometimes("a run left a chord")
		if r.ContinuedBy != "" {
			s.sometimes("a chord fired at once")
		}
	}
}

// judgeRetry notes the steps that a retry from the journal must not execute: those that are recorded
// in its original.
func (s *sim) judgeRetry(r *perdure.Run, from string, code perdure.Code, created bool) {
	switch {
	case code == perdure.CodeWouldRepeat:
		s.sometimes("a retry would have repeated its failure")
	case code == perdure.CodeFrom:
		s.sometimes("a retry was to begin at a step that is not recorded")
	}
	if !created {
		return
	}
	if r.Copying() {
		s.sometimes("a journal was copied in steps")
	}
	if whole := from == life.FromJournal || from == "" && r.CopyTo > 0; !whole {
		return
	}
	orig := s.model.rows[r.RetryOf]
	cut := ""
	if orig.Failure != nil && from == "" {
		cut = orig.Failure.CauseKey
	}
	keys := s.model.journals[r.RetryOf]
	if n := slices.Index(keys, cut); n >= 0 {
		s.sometimes("a retry began before the step that was its cause")
		keys = keys[:n]
	}
	if len(keys) > 0 {
		s.sometimes("a retry began with recorded steps")
	}
	s.model.inherited[r.ID], s.model.journals[r.ID] = keys, slices.Clone(keys)
	for _, key := range keys {
		if first, ok := s.model.winners[winnerKey(r.RetryOf, key)]; ok {
			s.model.winners[winnerKey(r.ID, key)] = first
		}
	}
}

// checkWinner checks that every execution of a run finds the same winner of a select. An execution may
// be cut off before its choice is recorded, and the inbox may have more items by the next one.
func (s *sim) checkWinner(t *task, key string, won *perdure.Item) {
	at := winnerKey(t.run, key)
	first, again := s.model.winners[at]
	if !again {
		s.model.winners[at] = winner{won.WaitID, t.epoch}
		s.sometimes("a select was won by a " + wonBy[won.Type])
		return
	}
	if first.epoch != t.epoch && first.wait == won.WaitID {
		s.sometimes("a second execution chose the winner of a select")
	}
	if first.wait != won.WaitID {
		s.violate("C1", "%s: select %s was won by %s in epoch %d, and by %s in epoch %d", s.short(t.run), key,
			first.wait, first.epoch, won.WaitID, t.epoch)
	}
}

// wonBy names what came first, by the type of its inbox item.
var wonBy = map[string]string{perdure.ItemWait: "child", perdure.ItemSignal: "signal", perdure.ItemTimer: "timer",
	perdure.ItemMessage: "message", perdure.ItemTimeout: "timeout"}

func winnerKey(id perdure.RunID, key string) string { return string(id) + "/" + key }

func (s *sim) judgeGrants(x *dispatch.Claim) {
	for _, g := range x.Grants {
		have := make(map[string]bool)
		for _, j := range g.Journal {
			have[j.Key] = true
			first, ok := s.model.winners[winnerKey(g.Run.ID, j.Key)]
			if ok && string(j.Value) != string(winnerEntry(first.wait)) {
				s.violate("C1", "%s: select %s was won by %s, and its journal has %s", s.short(g.Run.ID), j.Key,
					first.wait, j.Value)
			}
		}
		for _, key := range s.model.inherited[g.Run.ID] {
			if !have[key] && g.JournalNext == 0 {
				s.violate("S9", "%s, a retry, was granted without the recorded step %s", s.short(g.Run.ID), key)
			}
		}
		// A step that is missing in a grant would be executed again.
		if n := int64(len(g.Journal)); n != g.Run.JournalSeq && g.JournalNext == 0 {
			s.violate("S9", "%s has %d recorded steps and was granted with %d", s.short(g.Run.ID), g.Run.JournalSeq, n)
		}
		if last := s.model.grants[g.Run.ID]; g.Run.Epoch <= last {
			s.violate("S7", "%s was handed out under epoch %d after epoch %d", s.short(g.Run.ID), g.Run.Epoch, last)
		}
		s.model.grants[g.Run.ID] = g.Run.Epoch
	}
}

func (s *sim) judgeSubmit(x *life.Submit, code perdure.Code, stored bool) {
	if code == perdure.CodeReused {
		s.sometimes("a key with another body was refused")
	}
	if code == perdure.CodeThreadBusy {
		s.sometimes("a busy thread refused a run")
	}
	if stored && x.Key != "" {
		s.checkSameRun(x.Key, x.Run.ID)
	}
}

// checkSameRun checks that a key always leads to the same run.
func (s *sim) checkSameRun(key string, id perdure.RunID) {
	first, ok := s.model.keys[key]
	if !ok {
		s.model.keys[key] = id
		return
	}
	s.sometimes("a key gave the same run again")
	if first != id {
		s.violate("S3", "key %s gave %s and then %s", key, s.short(first), s.short(id))
	}
}

// countSituations counts the situations that the change of a run shows.
func (s *sim) countSituations(prev *row, next *perdure.Run, sweep *watchdog.Sweep) {
	if prev.State.Live() && next.State.Terminal() {
		s.sometimes("ended: " + string(next.State))
		if next.Failure != nil {
			switch next.Failure.Code {
			case perdure.CodeAttemptsExhausted, perdure.CodeDispatchTimeout, perdure.CodeReaped, perdure.CodeDeadline,
				perdure.CodeWaitTimeout, perdure.CodeRejected, perdure.CodeOutcomeUnknown:
				s.sometimes("ended by: " + string(next.Failure.Code))
			}
		}
		if next.Failure != nil &&
			(next.Failure.Code == perdure.CodeAttemptsExhausted || next.Failure.Code == perdure.CodeDispatchTimeout) {
			s.sometimes("a dead letter was written")
		}
		if next.Cancel.AckedAt != 0 {
			s.sometimes("a cancel was acknowledged")
		}
	}
	if prev.State == perdure.Suspended && next.State == perdure.Queued {
		s.sometimes("a suspended run was resumed")
	}
	if prev.ContinuedBy == "" && next.ContinuedBy != "" && prev.State.Terminal() {
		s.sometimes("an ended run was continued")
	}
	if prev.DeferredAt == 0 && next.DeferredAt != 0 {
		s.sometimes("a run was deferred")
	}
	if prev.Turn == perdure.TurnWaiting && next.Turn == perdure.TurnActive {
		s.sometimes("a run's turn on its thread came")
	}
}
