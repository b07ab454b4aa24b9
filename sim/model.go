package sim

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// A model is the simulator's own knowledge: what was requested, what was promised, and each run as
// it was last committed.
type model struct {
	rows  map[perdure.RunID]*row
	order []perdure.RunID // in order of creation, because loops over maps have no fixed order

	submitted   int
	asks        map[uint64]string          // idempotency key, or "", by the number in the input
	keys        map[string]perdure.RunID   // runs by idempotency key
	grants      map[perdure.RunID]int64    // the last granted epoch
	commits     map[string]string          // answers by run and commit id
	results     map[perdure.RunID]string   // results of accepted completes
	steps       []fact                     // journal entries that were accepted
	journals    map[perdure.RunID][]string // keys of accepted journal entries, in their order
	inherited   map[perdure.RunID][]string // those of them that a retry from the journal begins with
	winners     map[string]winner          // of selects, by run and journal key
	signals     []fact                     // signals that were accepted
	lateResults []fact                     // late results that were kept, by commit
	unkeyed     map[string]bool            // payloads of signals without a key, which may come twice
	tokens      []string
	threads     []perdure.ThreadID

	sweptAt    perdure.Instant
	holdUntil  perdure.Instant // rules that judge by silence wait until then
	healedAt   perdure.Instant // they may wait until then, because the time of a sweep is not always stored
	spareUntil perdure.Instant // deadlines of leased runs may wait until then
}

// A fact is something that was acknowledged and has to be stored at the end.
type fact struct {
	run perdure.RunID
	key string
	seq int64
}

// A winner is the wait that was the first of a select, with the epoch of the first execution that chose
// it.
type winner struct {
	wait  string
	epoch int64
}

// A row is a run as it was last committed, with what follows from its log so far.
type row struct {
	perdure.Run
	nth      int
	fold     perdure.State // state according to the log
	attempt  int           // attempt according to the log
	epoch    int64         // epoch of the last line
	granted  int64         // epoch of the last grant
	adopted  bool          // a late result replaced the run's own
	overdue  int           // sweeps since the deadline
	overlong int           // sweeps since the end of its hold
	letter   bool          // the log has a dead letter
	end      int64         // number of the terminal line
	met      *meetings     // its features
}

func newModel() *model {
	return &model{rows: make(map[perdure.RunID]*row), asks: make(map[uint64]string),
		keys:   make(map[string]perdure.RunID),
		grants: make(map[perdure.RunID]int64), commits: make(map[string]string),
		results: make(map[perdure.RunID]string), unkeyed: make(map[string]bool),
		journals: make(map[perdure.RunID][]string), inherited: make(map[perdure.RunID][]string),
		winners: make(map[string]winner)}
}

func (m *model) asked(n uint64, key string) { m.asks[n] = key }

func (m *model) token(t string) { m.tokens = append(m.tokens, t) }

func (m *model) live() (n int) {
	for _, id := range m.order {
		if m.rows[id].State.Live() {
			n++
		}
	}
	return n
}

func (m *model) nextAlarm() (first perdure.Instant) {
	for _, id := range m.order {
		if at := m.rows[id].AlarmAt; at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// gap records a sweep, and tells whether there was a gap before it.
func (m *model) gap(now perdure.Instant, p *perdure.Policy) (was bool) {
	if age := now.Sub(m.sweptAt); m.sweptAt != 0 {
		if age > p.GapAfter {
			m.holdUntil, was = now.Add(p.Lease), true
		}
		if age > p.GapAfter-min(time.Second, p.GapAfter/4) {
			m.healedAt, m.spareUntil = now.Add(p.Lease), now.Add(p.GapSpare)
		}
	}
	m.sweptAt = max(m.sweptAt, now)
	return was
}

// postponed tells whether rules that judge by silence must not act now.
func (m *model) postponed(now perdure.Instant, p *perdure.Policy) bool {
	return now < m.holdUntil || (m.sweptAt != 0 && now.Sub(m.sweptAt) > p.GapAfter)
}

// short returns the name of a run in the trace.
func (s *sim) short(id perdure.RunID) string {
	if r := s.model.rows[id]; r != nil {
		return fmt.Sprintf("r%d", r.nth)
	}
	return string(id)
}

// epochs returns the epochs, before a batch, of the runs of its commits.
func (s *sim) epochs(ops []kernel.Op) map[perdure.RunID]int64 {
	var out map[perdure.RunID]int64
	for _, op := range ops {
		if c, ok := op.(*life.Commit); ok {
			if r := s.model.rows[c.Commit.RunID]; r != nil {
				if out == nil {
					out = make(map[perdure.RunID]int64)
				}
				out[r.ID] = r.Epoch
			}
		}
	}
	return out
}

// summary returns an operation as the trace shows it.
func (s *sim) summary(op kernel.Op) string {
	switch x := op.(type) {
	case *life.Submit:
		return fmt.Sprintf("submit %s %s %s", x.Submission.Kind, x.Key, s.short(x.Run.ID))
	case *dispatch.Claim:
		text := "claim " + x.Worker
		for _, g := range x.Grants {
			text += fmt.Sprintf(" %s@%d", s.short(g.Run.ID), g.Run.Epoch)
		}
		return text
	case *life.Start:
		return fmt.Sprintf("start %s %s@%d", x.Worker, s.short(x.Leases[0].RunID), x.Leases[0].Epoch)
	case *life.Heartbeat:
		text := "beat " + x.Worker
		for _, b := range x.Beats {
			text += fmt.Sprintf(" %s@%d", s.short(b.RunID), b.Epoch)
		}
		for _, l := range x.Lost {
			text += " lost " + s.short(l.RunID)
		}
		return text
	case *life.Commit:
		c := &x.Commit
		text := fmt.Sprintf("commit %s %s %s@%d", x.Worker, c.ID, s.short(c.RunID), c.Epoch)
		for _, j := range c.Journal {
			text += " +" + j.Key
		}
		for _, k := range x.Answer.Children {
			text += " kid " + s.short(k.RunID)
		}
		for _, w := range c.Waits {
			text += " wait " + w.ID + ":" + string(w.Type)
		}
		if c.Outcome != nil {
			text += " " + string(c.Outcome.Type)
			if c.Outcome.Defect {
				text += " by a defect"
			}
		}
		if x.Refused != nil {
			text += " -> kept as late"
		}
		return text + " = " + string(x.Answer.State)
	case *rules.PauseQueue:
		return fmt.Sprintf("pause %s %s until %s", x.Queue, x.Key, x.Paused.Until)
	case *rules.ResumeQueue:
		return fmt.Sprintf("resume %s %s", x.Queue, x.Key)
	case *life.Release:
		return fmt.Sprintf("release %s %s@%d", x.Worker, s.short(x.Leases[0].RunID), x.Leases[0].Epoch)
	case *life.Inbox:
		return fmt.Sprintf("inbox %s@%d", s.short(x.RunID), x.Epoch)
	case *life.Signal:
		return fmt.Sprintf("signal %s %s %s", s.short(x.RunID), x.Name, x.Key)
	case *life.AppendMessage:
		return fmt.Sprintf("message %d %s", x.Seq, x.Key)
	case *life.Callback:
		return "callback " + s.short(x.RunID)
	case *life.Cancel:
		return fmt.Sprintf("cancel %s = %s", s.short(x.RunID), x.Run.State)
	case *life.ReleaseHold:
		return fmt.Sprintf("release hold %s = %s", s.short(x.RunID), x.Run.State)
	case *life.DeadLetterRun:
		return fmt.Sprintf("give up %s = %s", s.short(x.RunID), x.Run.State)
	case *life.Retry:
		return fmt.Sprintf("retry %s = %s", s.short(x.RunID), s.short(x.Run.ID))
	case *upkeep.Redrive:
		return fmt.Sprintf("redrive %s = %s", s.short(x.RunID), s.short(x.Run.ID))
	case *life.Adopt:
		return fmt.Sprintf("adopt %s %d discard=%v", s.short(x.RunID), x.N, x.Discard)
	case *life.CreateGroup:
		return fmt.Sprintf("group %s of %d", x.Mode, len(x.RunIDs))
	case *life.Continue:
		return fmt.Sprintf("continue %s %s = %s", s.short(x.RunID), x.JobID, s.short(x.Made))
	case *life.Attach:
		return fmt.Sprintf("attach %s %s", x.Node, s.short(x.RunIDs[0]))
	case *life.Defer:
		return fmt.Sprintf("defer %s %s %s", x.Node, s.short(x.RunID), x.Reason)
	case *life.ProcessBeat:
		return fmt.Sprintf("sentinel %s@%d %d", s.short(x.Beats[0].RunID), x.Beats[0].Epoch, x.Beats[0].Counter)
	case *life.WatchProcess:
		return fmt.Sprintf("watch %s@%d", s.short(x.RunID), x.Epoch)
	case *life.LoseProcess:
		return fmt.Sprintf("lose %s@%d alive=%v = %s", s.short(x.RunID), x.Epoch, x.Alive, x.Run.State)
	case *watchdog.Sweep:
		text := "sweep"
		for _, a := range x.Actions {
			text += fmt.Sprintf(" %s:%s:%s", a.Rule, a.Name, s.short(a.Run))
		}
		if x.Postponed > 0 {
			text += fmt.Sprintf(" held %d", x.Postponed)
		}
		return text
	}
	return fmt.Sprintf("%T", op)
}

// waitsAndItems has the waits and the inbox of a run.
type waitsAndItems struct {
	waits []perdure.Wait
	items []perdure.Item
}

func read(v *store.View, id perdure.RunID) (b waitsAndItems, err error) {
	if b.waits, err = v.Waits.List(tenant, id); err != nil {
		return b, err
	}
	b.items, err = v.Inbox.List(tenant, id)
	return b, err
}
