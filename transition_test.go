package perdure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var start0 = At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// events returns one event of each type, with the epoch of the runs of runIn.
func events() []Event {
	return []Event{
		Granted{Worker: "w"}, Granted{Worker: "w", Start: true}, Started{Epoch: 3},
		SentinelMoved{Epoch: 3, Counter: 1}, ProcessWatched{Epoch: 3, Until: start0.Add(48 * time.Hour)},
		ProcessRestored{Epoch: 1 << 42, Until: start0.Add(48 * time.Hour)}, ProcessFound{Epoch: 3, Former: 2},
		NeverClaimed{},
		Heartbeat{Epoch: 3, Activity: "thinking"}, Committed{Epoch: 3, Journal: 1},
		WentToSleep{Epoch: 3, WaitAt: start0.Add(time.Hour)}, Woken{Reason: "satisfied"},
		Retried{Epoch: 3, Delay: time.Second}, GaveUp{Epoch: 3},
		Released{Epoch: 3}, Restored{Epoch: 1 << 32}, Renumbered{Epoch: 1 << 32}, Done{Epoch: 3, Result: "1"},
		Adopted{N: 1, Result: "1"}, FailedForGood{Epoch: 3}, WaitFailed{Epoch: 3}, Rejected{Epoch: 3},
		CancelConfirmed{Epoch: 3}, CancelEnforced{}, DeadlinePassed{}, Reaped{}, Orphaned{Missing: "queue"},
		Corrupted{Failure: Failure{Code: CodeDamaged}}, NeverStarted{}, Due{}, JournalCopied{},
		Debounced{Input: "2", RunAt: start0.Add(time.Minute)},
		TurnCame{Turn: TurnActive},
		Regrantable{}, GrantLost{}, Slow{Reason: "silent", Bit: AlertSilent}, WentStale{}, CancelAsked{},
		WentDeferred{Reason: "timeout"}, Reattached{},
		ClockSetBack{By: time.Hour}, Rearmed{Until: start0.Add(48 * time.Hour)},
		Accepted{}, WaitOpened{}, WaitEnded{}, WaitWithdrawn{}, WaitsClosed{}, WaitClockReset{}, CallbackRefused{},
		ItemArrived{}, ItemsHandedOver{}, ItemReclaimed{}, ItemsContinued{}, ItemExpired{},
		ChildStarted{}, ChildEnded{}, QuestionsBelow{}, CascadeAdvanced{}, Gathered{}, MessagesAppended{}, Continued{},
		LateResultKept{}, LateResultDiscarded{}, LateResultAdopted{}, FindingsListed{},
		OutputKept{Epoch: 3},
		WaiterAttached{}, WaiterLeft{}, Repeated{}, AlarmRepaired{},
		HoldBegun{Epoch: 3, Failure: Failure{Code: "panic"}, Delay: time.Second, Timeout: time.Hour},
		LimitReached{At: LimitRef{Limit: "l"}}, LimitOffered{Refs: []LimitRef{{Limit: "l"}}},
		StepAdmitted{Epoch: 3, Slot: StepSlot{Step: "s#1", Refs: []LimitRef{{Limit: "l"}}}},
		StepsLeft{Epoch: 3, Steps: []string{"s#1"}},
		HoldReleased{}, HoldExpired{}, HoldAbandoned{}, CleanupAgain{Epoch: 3, Reason: "lease_lost"},
	}
}

// runIn returns a run in a state. With suited, every event that the table allows there passes its
// guard.
func runIn(s State) Run {
	r := Run{Tenant: "t", ID: "r", RootID: "r", State: s, Version: 7, Epoch: 3, Attempt: 1, MaxAttempts: 3,
		CreatedAt: start0, DeadlineAt: start0.Add(time.Hour),
		ReadyAt: start0, Seq: 4}
	switch s {
	case Queued:
		r.Ready = true
	case Dispatched, Running:
		r.GrantedAt, r.FirstGrantAt, r.SeenAt, r.MovedAt = start0, start0, start0, start0
		r.LeaseUntil = start0.Add(time.Minute)
		r.Grants = 1
		if s == Running {
			r.StartedAt = start0
		}
	case Suspended:
		r.WaitAt, r.StartedAt = start0.Add(10*time.Minute), start0
	default:
		r.FinishedAt = start0
	}
	p := DefaultPolicy()
	r.AlarmAt = p.Alarm(&r)
	return r
}

// suited changes a run so that the event's guard lets it pass.
func suited(r Run, e Event) Run {
	switch e.(type) {
	case Granted:
		r.Ready = true
	case CancelConfirmed, CancelEnforced, CleanupAgain:
		r.Cancel.RequestedAt = start0
	case NeverStarted:
		r.Grants = 10
	case HoldReleased, HoldExpired, HoldAbandoned:
		r.Hold = &Hold{Since: start0, Until: start0.Add(time.Minute), Failure: Failure{Code: "panic"}}
	case NeverClaimed:
		r.Options.Process, r.Queue, r.Ready = true, LocalQueue, true
	case ProcessFound, ProcessRestored:
		r.Options.Process, r.WatchUntil = true, start0.Add(time.Minute)
	case SentinelMoved, ProcessWatched:
		r.Options.Process, r.HolderSeen = true, true
	case Debounced:
		r.Options.Debounce = &DebounceUse{Key: "k", Last: start0.Add(time.Hour)}
	case OutputKept:
		r.Options.Process = true
	case LimitReached:
		r.Wants = []StepWant{{Wait: "w", Step: "s#1", Limits: []LimitTake{{Name: "l"}}}}
	case StepsLeft:
		r.Limited = &Limited{Steps: []StepSlot{{Step: "s#1", Refs: []LimitRef{{Limit: "l"}}}}}
	case Accepted:
		r.Version, r.Seq = 0, 0
	}
	return r
}

// long is later than every clock of runIn.
var long = start0.Add(24 * time.Hour)

// Every pair of state and event either follows the table, and keeps the invariants, or changes
// nothing.
func TestEveryStateWithEveryEvent(t *testing.T) {
	p := DefaultPolicy()
	seen := 0
	for _, s := range States {
		for _, e := range events() {
			name := EventName(e)
			r := suited(runIn(s), e)
			next, lines, err := p.Apply(r, e, long)
			to, allowed := table[s][name]
			if !allowed {
				code := CodeOf(err)
				_, worker := e.(fenced)
				want := CodeWrongState
				if worker && s.Terminal() {
					want = CodeStaleEpoch
				}
				if code != want {
					t.Errorf("%s × %s: code %q, want %q", s, name, code, want)
				}
				if next.Version != r.Version || next.State != s || len(lines) > 0 {
					t.Errorf("%s × %s is refused, but the run changes: version %d, state %s, %d lines",
						s, name, next.Version, next.State, len(lines))
				}
				continue
			}
			seen++
			if err != nil {
				t.Errorf("%s × %s: %v, want no error", s, name, err)
				continue
			}
			if next.State != to {
				t.Errorf("%s × %s: state %s, want %s", s, name, next.State, to)
			}
			if next.Version != r.Version+1 {
				t.Errorf("%s × %s: version %d, want %d", s, name, next.Version, r.Version+1)
			}
			if next.Epoch < r.Epoch {
				t.Errorf("%s × %s lowers the epoch from %d to %d", s, name, r.Epoch, next.Epoch)
			}
			if live := next.State.Live(); live != (next.AlarmAt != 0) {
				t.Errorf("%s × %s: state %s with alarm %s, want an alarm if and only if it is live",
					s, name, next.State, next.AlarmAt)
			}
			if next.State.Terminal() && s.Live() {
				if next.FinishedAt != long || next.LeaseUntil != 0 || next.Ready || next.Turn != TurnNone {
					t.Errorf("%s × %s: the ended run keeps a lease, a turn or readiness: %+v", s, name, next)
				}
				last := lines[len(lines)-1]
				if last.Type != TerminalLine(next.State) {
					t.Errorf("%s × %s: last line %s, want %s", s, name, last.Type, TerminalLine(next.State))
				}
				if next.State != Completed && (next.Failure == nil || next.Fallback == "") {
					t.Errorf("%s × %s: failure %v and fallback %q, want both", s, name, next.Failure, next.Fallback)
				}
			}
			if next.DeadlineAt != r.DeadlineAt {
				t.Errorf("%s × %s moves the deadline from %s to %s", s, name, r.DeadlineAt, next.DeadlineAt)
			}
			for i, l := range lines {
				if l.Seq != r.Seq+int64(i)+1 {
					t.Errorf("%s × %s: line %d has seq %d, want %d", s, name, i, l.Seq, r.Seq+int64(i)+1)
				}
				if !json.Valid([]byte(l.Data)) {
					t.Errorf("%s × %s: the line %s is not JSON: %s", s, name, l.Type, l.Data)
				}
			}
		}
	}
	total := 0
	for _, m := range table {
		total += len(m)
	}
	if seen != total {
		t.Errorf("the test covers %d of the table's %d pairs: an event is missing in events()", seen, total)
	}
}

func TestEveryLiveStateReachesEveryEnd(t *testing.T) {
	for _, s := range States {
		if s.Terminal() {
			for on, to := range table[s] {
				if to != s {
					t.Errorf("the terminal state %s can be left by %s", s, on)
				}
			}
			continue
		}
		for _, end := range []State{Completed, Failed, TimedOut, Cancelled} {
			if !reaches(s, end, map[State]bool{}) {
				t.Errorf("%s can't reach %s", s, end)
			}
		}
	}
}

func reaches(from, to State, seen map[State]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for _, next := range table[from] {
		if !seen[next] && reaches(next, to, seen) {
			return true
		}
	}
	return false
}

// A restored process that lives is leased already: it was granted before its store was lost.
func TestOnlyAGrantLeadsToALease(t *testing.T) {
	for _, row := range Transitions {
		leased := row.To.Leased() && !row.From.Leased()
		if leased && row.On != "ProcessFound" && !strings.HasPrefix(row.On, "Granted") {
			t.Errorf("%s leads from %s to %s without a grant", row.On, row.From, row.To)
		}
	}
}

func TestEveryLiveStateHasAnAlarm(t *testing.T) {
	p := DefaultPolicy()
	for _, s := range States {
		r := runIn(s)
		alarm := p.Alarm(&r)
		if s.Live() != (alarm != 0) {
			t.Errorf("%s: alarm %s, want one if and only if the state is live", s, alarm)
		}
		if s.Live() && alarm > r.DeadlineAt {
			t.Errorf("%s: the alarm %s is after the deadline %s", s, alarm, r.DeadlineAt)
		}
		for i := range Clocks {
			at := Clocks[i].At(&p, &r)
			if at != 0 && at < alarm {
				t.Errorf("%s: the clock %s is due at %s, before the alarm %s", s, Clocks[i].Name, at, alarm)
			}
		}
	}
}

func TestForcefulActionsLowerTheRank(t *testing.T) {
	p := DefaultPolicy()
	lose := func(r Run) Event { return p.afterLoss(&r, 0, Failure{Code: "lease_lost"}, 0.5) }
	for _, c := range []struct {
		name  string
		event func(Run) Event
		from  []State
		fit   func(*Run)
	}{
		{"W5", func(Run) Event { return GrantLost{} }, []State{Dispatched, Running}, nil},
		{"W5, the last", func(Run) Event { return NeverStarted{} }, []State{Dispatched, Running},
			func(r *Run) { r.Grants = 10 }},
		{"W6", lose, []State{Running}, nil},
		{"W6, the last", lose, []State{Running}, func(r *Run) { r.Strikes = 2 }},
		{"W6, under a cancel request", lose, []State{Running}, func(r *Run) { r.Cancel.RequestedAt = start0 }},
		{"W7", func(Run) Event { return Reaped{} }, []State{Running}, nil},
		{"W8", func(Run) Event { return DeadlinePassed{} }, []State{Queued, Dispatched, Running, Suspended}, nil},
		{"W10", func(Run) Event { return Orphaned{Missing: "queue"} }, []State{Queued, Dispatched, Running, Suspended},
			nil},
		{"W10", func(Run) Event { return Corrupted{Failure: Failure{Code: CodeDamaged}} },
			[]State{Queued, Dispatched, Running, Suspended}, nil},
		{"cancel grace", func(Run) Event { return CancelEnforced{} }, []State{Queued, Dispatched, Running, Suspended},
			func(r *Run) { r.Cancel.RequestedAt = start0 }},
		{"W6, with steps to undo", func(Run) Event { return CleanupAgain{Reason: "lease_lost"} },
			[]State{Dispatched, Running}, func(r *Run) { r.Cancel.RequestedAt = start0 }},
		{"hold timeout", func(Run) Event { return HoldExpired{} }, []State{Queued},
			func(r *Run) { r.Hold = &Hold{Since: start0, Until: start0.Add(time.Minute)} }},
	} {
		for _, s := range c.from {
			r := runIn(s)
			if c.fit != nil {
				c.fit(&r)
			}
			next, _, err := p.Apply(r, c.event(r), long)
			if err != nil {
				t.Errorf("%s from %s: %v", c.name, s, err)
				continue
			}
			before, after := r.Rank(&p), next.Rank(&p)
			if slices.Compare(after[:], before[:]) >= 0 {
				t.Errorf("%s from %s: the rank goes from %v to %v, want a lower one", c.name, s, before, after)
			}
		}
	}
}

func TestRearmedAlarmMustBeLater(t *testing.T) {
	p := DefaultPolicy()
	r := runIn(Running)
	for _, until := range []Instant{0, start0, r.AlarmAt} {
		if _, _, err := p.Apply(r, Rearmed{Until: until}, r.AlarmAt); CodeOf(err) != CodeWrongState {
			t.Errorf("rearmed to %s: %v, want %s", until, err, CodeWrongState)
		}
	}
}

// A worker's report counts even after its lease or deadline, until the watchdog has acted.
func TestExpiredClocksDoNotRefuseWorkers(t *testing.T) {
	p := DefaultPolicy()
	r := runIn(Running)
	r.HolderSeen = true
	for _, e := range []Event{Heartbeat{Epoch: 3}, Committed{Epoch: 3}, Done{Epoch: 3, Result: "1"}} {
		if _, _, err := p.Apply(r, e, long); err != nil {
			t.Errorf("%s after lease end and deadline: %v, want no error", EventName(e), err)
		}
	}
	for _, e := range []Event{DeadlinePassed{}, Reaped{}, Regrantable{}, GrantLost{}} {
		r := runIn(Running)
		if _, _, err := p.Apply(r, e, start0.Add(time.Second)); CodeOf(err) != CodeWrongState {
			t.Errorf("%s before its clock is due: %v, want %s", EventName(e), err, CodeWrongState)
		}
	}
}

func TestEpochRisesWhenTheRunChangesHands(t *testing.T) {
	p := DefaultPolicy()
	for _, c := range []struct {
		event Event
		state State
		rises bool
	}{
		{Granted{Worker: "w"}, Queued, true}, {Granted{Worker: "w"}, Dispatched, true},
		{Retried{Failure: Failure{Code: "lease_lost"}}, Running, true},
		{HoldBegun{Epoch: 3}, Running, false}, {HoldAbandoned{}, Running, true}, {HoldExpired{}, Queued, true},
		{Retried{Epoch: 3}, Running, false}, {Released{Epoch: 3}, Running, true}, {GrantLost{}, Dispatched, true},
		{DeadlinePassed{}, Running, true},
		{CleanupAgain{}, Running, true}, {CancelEnforced{}, Running, true}, {Adopted{Result: "1"}, Running, true},
		{Done{Epoch: 3, Result: "1"}, Running, false},
		{WentToSleep{Epoch: 3}, Running, false}, {Woken{}, Suspended, false}, {CancelAsked{}, Running, false},
		{Heartbeat{Epoch: 3}, Running, false},
	} {
		r := suited(runIn(c.state), c.event)
		next, _, err := p.Apply(r, c.event, long)
		if err != nil {
			t.Errorf("%s from %s: %v", EventName(c.event), c.state, err)
			continue
		}
		if (next.Epoch > r.Epoch) != c.rises {
			t.Errorf("%s from %s: the epoch goes from %d to %d, want it to rise: %v",
				EventName(c.event), c.state, r.Epoch, next.Epoch, c.rises)
		}
	}
}

func TestStaleEpochChangesNothing(t *testing.T) {
	p := DefaultPolicy()
	for _, epoch := range []int64{1, 2, 4, 99} {
		for _, e := range []Event{Started{epoch}, Heartbeat{Epoch: epoch}, Committed{Epoch: epoch},
			Done{Epoch: epoch, Result: "1"}, WentToSleep{Epoch: epoch},
			FailedForGood{Epoch: epoch}, GaveUp{Epoch: epoch}, Released{Epoch: epoch}, Rejected{Epoch: epoch},
			CancelConfirmed{epoch}, Retried{Epoch: epoch}, HoldBegun{Epoch: epoch}} {
			for _, s := range States {
				r := runIn(s)
				next, lines, err := p.Apply(r, e, start0)
				if CodeOf(err) != CodeStaleEpoch || next.Version != r.Version || lines != nil {
					t.Errorf("%s of epoch %d on %s: %v, version %d, %d lines, want %s and no change",
						EventName(e), epoch, s, err, next.Version, len(lines), CodeStaleEpoch)
				}
			}
		}
	}
}

func TestOnlyLostExecutionsCostAnAttempt(t *testing.T) {
	p := DefaultPolicy()
	r := runIn(Running)
	r.HolderSeen = true
	apply := func(e Event) {
		t.Helper()
		next, _, err := p.Apply(r, e, long)
		if err != nil {
			t.Fatalf("%s: %v", EventName(e), err)
		}
		r = next
	}
	apply(Released{Epoch: r.Epoch})
	apply(Granted{Worker: "w"})
	apply(Started{Epoch: r.Epoch})
	apply(WentToSleep{Epoch: r.Epoch})
	apply(Woken{})
	apply(Granted{Worker: "w", Start: true})
	apply(Heartbeat{Epoch: r.Epoch})
	if r.Attempt != 1 || r.Strikes != 0 {
		t.Errorf("after a release and a resume: attempt %d, strikes %d, want 1 and 0", r.Attempt, r.Strikes)
	}
	apply(Retried{Failure: Failure{Code: "lease_lost"}})
	if r.Attempt != 2 || r.Strikes != 1 {
		t.Errorf("after a lost lease: attempt %d, strikes %d, want 2 and 1", r.Attempt, r.Strikes)
	}
	apply(Due{Now: true})
	apply(Granted{Worker: "w", Start: true})
	apply(Committed{Epoch: r.Epoch, Journal: 1, Reports: 1})
	if r.JournalSeq != 1 || r.Strikes != 1 {
		t.Errorf("after reports: journal_seq %d, strikes %d, want 1 and 1: a report is no progress", r.JournalSeq,
			r.Strikes)
	}
	apply(Committed{Epoch: r.Epoch, Journal: 2, Reports: 1})
	if r.Attempt != 2 || r.Strikes != 0 {
		t.Errorf("after committed progress: attempt %d, strikes %d, want 2 and 0", r.Attempt, r.Strikes)
	}
}

func TestLostExecutionIsRetriedOrEnds(t *testing.T) {
	p := DefaultPolicy()
	why := Failure{Code: "boom", Message: "it broke"}
	for _, c := range []struct {
		strikes   int
		cancelled bool
		epoch     int64
		want      string
	}{
		{0, false, 0, "Retried"}, {1, false, 0, "Retried"}, {2, false, 0, "GaveUp"},
		{0, false, 3, "Retried"}, {2, false, 3, "GaveUp"},
		{0, true, 0, "CancelEnforced"}, {0, true, 3, "FailedForGood"},
	} {
		r := runIn(Running)
		r.Strikes = c.strikes
		if c.cancelled {
			r.Cancel.RequestedAt = start0
		}
		if got := EventName(p.afterLoss(&r, c.epoch, why, 0.5)); got != c.want {
			t.Errorf("strikes %d, cancelled %v, epoch %d: afterLoss = %s, want %s", c.strikes, c.cancelled, c.epoch,
				got, c.want)
		}
	}
}

func TestBackoffDoublesUpToItsMaximum(t *testing.T) {
	p := DefaultPolicy()
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second,
		9: 256 * time.Second, 10: 5 * time.Minute, 1000: 5 * time.Minute} {
		if got := p.Backoff(n, 0.5); got != want {
			t.Errorf("retry %d waits %s, want %s", n, got, want)
		}
		low, high := p.Backoff(n, 0), p.Backoff(n, 1)
		if low != want*8/10 || high != want*12/10 {
			t.Errorf("retry %d waits between %s and %s, want %s ± 20 %%", n, low, high, want)
		}
	}
	if got := p.RegrantAfter(1000); got != 5*time.Minute {
		t.Errorf("redelivery 1000 waits %s, want 5m0s", got)
	}
}

func TestModesOfWaits(t *testing.T) {
	for _, c := range []struct {
		mode              Mode
		total, ended, oks int
		want              bool
	}{
		{ModeAll, 3, 2, 2, false}, {ModeAll, 3, 3, 0, true},
		{ModeAllOK, 3, 2, 2, false}, {ModeAllOK, 3, 3, 3, true}, {ModeAllOK, 3, 1, 0, true},
		{ModeAny, 3, 0, 0, false}, {ModeAny, 3, 1, 0, true},
		{ModeAnyOK, 3, 2, 0, false}, {ModeAnyOK, 3, 1, 1, true}, {ModeAnyOK, 3, 3, 0, true},
	} {
		if got := Satisfied(c.mode, c.total, c.ended, c.oks); got != c.want {
			t.Errorf("Satisfied(%s, %d, %d, %d) = %v, want %v", c.mode, c.total, c.ended, c.oks, got, c.want)
		}
	}
}

func TestTierFollowsSilence(t *testing.T) {
	p := DefaultPolicy()
	r := runIn(Running)
	for age, want := range map[time.Duration]string{0: TierFresh, 119 * time.Second: TierFresh,
		2 * time.Minute: TierStale, 10 * time.Minute: TierStale, 601 * time.Second: TierDead} {
		if got := p.Tier(&r, r.SeenAt.Add(age)); got != want {
			t.Errorf("tier %s after the last sign of life = %s, want %s", age, got, want)
		}
	}
	if r := runIn(Suspended); p.Tier(&r, long) != "" {
		t.Errorf("a suspended run has the tier %q, want none", p.Tier(&r, long))
	}
}

func TestIDsSortByTimeAndCount(t *testing.T) {
	a, err := NewID(start0, 0xfff, bytes.NewReader(bytes.Repeat([]byte{0xff}, 8)))
	if err != nil || a != "019b7ca9-8c88-7fff-bfff-ffffffffffff" {
		t.Errorf("NewID = %s, %v, want 019b7ca9-8c88-7fff-bfff-ffffffffffff", a, err)
	}
	b, _ := NewID(start0.Add(time.Millisecond), 1, bytes.NewReader(make([]byte, 8)))
	c, _ := NewID(start0.Add(time.Millisecond), 2, bytes.NewReader(make([]byte, 8)))
	if b <= a || c <= b {
		t.Errorf("later ids sort before earlier ones: %s, %s, %s", a, b, c)
	}
	if _, err := NewID(start0, 0, bytes.NewReader(nil)); err == nil {
		t.Error("NewID without random bytes: no error, want one")
	}
}

func TestBadPolicyIsRefused(t *testing.T) {
	good := DefaultPolicy()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Policy){
		"lease":                  func(p *Policy) { p.Lease = 0 },
		"max_attempts":           func(p *Policy) { p.MaxAttempts = 0 },
		"max_deliveries":         func(p *Policy) { p.MaxGrants = 0 },
		"active_reap":            func(p *Policy) { p.ActiveReap = time.Second },
		"backoff_jitter":         func(p *Policy) { p.BackoffJitter = 2 },
		"gap_after":              func(p *Policy) { p.GapAfter = p.WatchdogInterval },
		"timeouts.task.default":  func(p *Policy) { p.Timeouts = Timeouts{} },
		"timeouts.agent.default": func(p *Policy) { p.Timeouts.Agent.Max = time.Hour },
		"timeouts.process.max":   func(p *Policy) { p.Timeouts.Process.Max = 0 },
		"suspend_timeout":        func(p *Policy) { p.SuspendTimeout = -1 },
		"cancel_grace":           func(p *Policy) { p.CancelGrace = 0 },
		"dispatched_retry":       func(p *Policy) { p.DispatchedRetry = 0 },
	} {
		p := DefaultPolicy()
		change(&p)
		err := p.Validate()
		if e, _ := err.(*Error); e == nil || e.Field != name {
			t.Errorf("%s: Validate = %v, want an error for this field", name, err)
		}
	}
}

func TestFoldRefusesImpossibleHistories(t *testing.T) {
	lines := func(types ...LineType) (out []Line) {
		for _, typ := range types {
			out = append(out, Line{Type: typ})
		}
		return out
	}
	for _, c := range []struct {
		lines []Line
		want  State
		ok    bool
	}{
		{lines("run:created"), Queued, true},
		{lines("run:created", "run:dispatched", "run:started", "run:suspended", "run:resumed"), Queued, true},
		{lines("run:created", "run:dispatched", "run:started", "run:reclaimed", "run:retrying", "run:dispatched"),
			Dispatched, true},
		{lines("run:created", "run:dispatched", "run:started", "run:completed", "run:late_result"), Completed, true},
		{lines("run:created", "run:dispatched", "run:started", "run:held"), Queued, true},
		{lines("run:created", "run:dispatched", "run:held"), Queued, false},
		{lines("run:created", "run:started"), Running, false},
		{lines("run:created", "run:completed", "run:failed"), Failed, false},
		{lines("run:dispatched"), "", false},
		{nil, "", false},
	} {
		if s, ok := Fold(c.lines); s != c.want || ok != c.ok {
			t.Errorf("Fold(%v) = %q, %v, want %q, %v", c.lines, s, ok, c.want, c.ok)
		}
	}
}

func ExamplePolicy_Apply() {
	p := DefaultPolicy()
	now := At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	run := Run{ID: "r", State: Queued, Ready: true, Attempt: 1, MaxAttempts: 3, DeadlineAt: now.Add(time.Hour)}

	run, lines, _ := p.Apply(run, Granted{Worker: "w1", Start: true}, now)
	fmt.Println(run.State, "under epoch", run.Epoch)
	for _, l := range lines {
		fmt.Println(l.Seq, l.Type)
	}
	_, _, err := p.Apply(run, Done{Epoch: 7, Result: "42"}, now)
	fmt.Println(CodeOf(err))
	// Output:
	// running under epoch 1
	// 1 run:dispatched
	// 2 run:started
	// stale_epoch
}

// A refusal says in words what could not be done, for every event there is.
func TestEveryEventHasWordsForItsRefusal(t *testing.T) {
	for _, row := range Transitions {
		if deeds[row.On] == "" {
			t.Errorf("event %s has no words", row.On)
		}
	}
}

// A process that waited to be granted again when its backup was made is not claimable after the restore:
// its runner may live.
func TestRestoredProcessIsNotClaimable(t *testing.T) {
	p := DefaultPolicy()
	r := suited(runIn(Running), ProcessRestored{})
	r.Ready, r.HolderSeen = true, false
	next, _, err := p.Apply(r, ProcessRestored{Epoch: r.Epoch + 1, Until: long.Add(time.Minute)}, long)
	if err != nil || next.Ready || !next.HolderSeen {
		t.Errorf("restored process: ready %t, heard %t, %v; want it heard from and not claimable", next.Ready,
			next.HolderSeen, err)
	}
}
