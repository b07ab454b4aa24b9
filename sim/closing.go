package sim

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// checkEnd checks at the end that everything acknowledged is stored, that nothing is stored that
// was not requested, and that every end was reported.
func (s *sim) checkEnd() {
	s.checkAll()
	s.processes.checkEnd()
	s.pauses.checkEnd()
	roots := make(map[uint64]int)
	taken := make(map[string]perdure.RunID)
	s.view(func(v *store.View) error {
		letters, err := v.DeadLetters.List(tenant, store.LetterFilter{Limit: 10000})
		if err != nil {
			return err
		}
		for _, id := range s.model.order {
			r, ok, err := v.Runs.Get(tenant, id)
			if err != nil {
				return err
			}
			if !ok && s.anews.deleted(id) {
				continue
			}
			m := s.model.rows[id]
			if !ok || r.Version != m.Version {
				s.violate("S1", "%s was changed behind everybody's back", s.short(id))
			}
			if r.ParentID == "" && r.RetryOf == "" && r.ContinuationOf == "" && !r.Options.Chat &&
				r.Options.Firing == nil {
				var in input
				_ = json.Unmarshal([]byte(r.Input), &in)
				key, asked := s.model.asks[in.N]
				if roots[in.N]++; !asked {
					s.violate("S2", "%s was never asked for", s.short(id))
				} else if key != "" && roots[in.N] > 1 {
					s.violate("S3", "%s is the second run of key %s", s.short(id), key)
				}
			}
			if want, ok := s.model.results[id]; ok && !m.adopted &&
				(r.State != perdure.Completed || string(r.Result) != want) {
				s.violate("S1", "%s completed with %s and is %s with %s", s.short(id), want, r.State, r.Result)
			}
			kept := slices.ContainsFunc(letters, func(d perdure.DeadLetter) bool { return d.RunID == id })
			expired := s.clock() > r.FinishedAt.Add(s.cfg.policy.DeadLetterTTL)
			if kept != m.letter && !(m.letter && expired) {
				s.violate("S18", "%s: its log has a dead letter: %v, and there is one: %v", s.short(id), m.letter, kept)
			}
			if err := s.checkAcknowledged(v, id); err != nil {
				return err
			}
			if err := s.checkMessages(v, &r, taken); err != nil {
				return err
			}
			if err := s.checkReported(v, &r); err != nil {
				return err
			}
		}
		if err := s.flow.checkEnd(v); err != nil {
			return err
		}
		return s.anews.checkEnd(v)
	})
}

// checkAcknowledged checks what was acknowledged about one run: steps, signals, late results.
func (s *sim) checkAcknowledged(v *store.View, id perdure.RunID) error {
	journal, err := v.Journal.After(tenant, id, 0, 10000)
	if err != nil {
		return err
	}
	for _, f := range s.model.steps {
		if f.run == id && !slices.ContainsFunc(journal, func(j store.JournalRow) bool { return j.Key == f.key }) {
			s.violate("S1", "step %s of %s was acknowledged and is lost", f.key, s.short(id))
		}
	}
	items, err := v.Inbox.List(tenant, id)
	if err != nil {
		return err
	}
	for _, f := range s.model.signals {
		same := func(i perdure.Item) bool { return i.Seq == f.seq && string(i.Data) == f.key }
		if f.run == id && !slices.ContainsFunc(items, same) {
			s.violate("S1", "signal %s to %s was acknowledged and is lost", f.key, s.short(id))
		}
	}
	seen := make(map[perdure.Value]bool)
	for _, i := range items {
		if i.Type != perdure.ItemSignal {
			continue
		}
		if seen[i.Data] && !s.model.unkeyed[string(i.Data)] {
			s.violate("S3", "signal %s came to %s twice", i.Data, s.short(id))
		}
		seen[i.Data] = true
	}
	lateResults, err := v.LateResults.List(tenant, id)
	if err != nil {
		return err
	}
	for _, f := range s.model.lateResults {
		if f.run == id && len(lateResults) < perdure.MaxLate &&
			!slices.ContainsFunc(lateResults, func(l perdure.LateResult) bool { return l.CommitID == f.key }) {
			s.violate("S1", "the late result of commit %s for %s was kept and is lost", f.key, s.short(id))
		}
	}
	return nil
}

// checkMessages checks that a message was taken by one run at most, and the messages of a run in their
// order. taken has the run that took each message of a thread.
func (s *sim) checkMessages(v *store.View, r *perdure.Run, taken map[string]perdure.RunID) error {
	if r.ThreadID == "" || r.InboxSeq == r.InboxFrom {
		return nil
	}
	items, err := v.Inbox.List(tenant, r.ID)
	if err != nil {
		return err
	}
	last := int64(0)
	for _, i := range items {
		if i.Type != perdure.ItemMessage || s.anews.carried(r, &i) {
			continue
		}
		at := fmt.Sprintf("%s/%d", r.ThreadID, i.MessageSeq)
		if other, twice := taken[at]; twice || i.MessageSeq <= last {
			s.violate("C2", "%s took message %d after message %d, and %q had taken it", s.short(r.ID),
				i.MessageSeq, last,
				s.short(other))
		}
		taken[at], last = r.ID, i.MessageSeq
	}
	return nil
}

// checkReported checks that an end was reported to a live parent, and to the webhook of the run.
func (s *sim) checkReported(v *store.View, r *perdure.Run) error {
	if parent := s.model.rows[r.ParentID]; parent != nil && parent.FinishedAt > r.FinishedAt &&
		!s.anews.isGone(parent.ID) {
		items, err := v.Inbox.List(tenant, r.ParentID)
		if err != nil {
			return err
		}
		told := 0
		for _, i := range items {
			if i.Type == perdure.ItemChild && i.From == r.ID {
				told++
			}
		}
		if told != 1 {
			s.violate("P16", "%s ended before its parent %s, and told it %d times", s.short(r.ID),
				s.short(r.ParentID), told)
		}
	}
	if r.Options.Webhook == "" {
		return nil
	}
	out, err := v.Outbox.OfRun(tenant, r.ID)
	end := s.model.rows[r.ID].end
	if err == nil && !slices.ContainsFunc(out, func(o perdure.Notification) bool { return o.Seq == end }) {
		s.violate("S16", "nobody is notified of the end of %s", s.short(r.ID))
	}
	return err
}
