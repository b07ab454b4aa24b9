package perdure

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A holding drives one run through holds.
type holding struct {
	t     *testing.T
	p     Policy
	r     Run
	now   Instant
	lines []Line
}

func newHolding(t *testing.T) *holding {
	h := &holding{t: t, p: DefaultPolicy(), r: runIn(Running), now: start0}
	h.r.HolderSeen, h.r.DeadlineAt = true, start0.Add(48*time.Hour)
	return h
}

func (h *holding) apply(e Event) {
	h.t.Helper()
	next, lines, err := h.p.Apply(h.r, e, h.now)
	if err != nil {
		h.t.Fatalf("%s on a run that is %s: %v, want no error", EventName(e), h.r.State, err)
	}
	h.r, h.lines = next, lines
}

func (h *holding) refused(e Event) {
	h.t.Helper()
	if _, _, err := h.p.Apply(h.r, e, h.now); CodeOf(err) != CodeWrongState {
		h.t.Errorf("%s on a run that is %s: %v, want %s", EventName(e), h.r.State, err, CodeWrongState)
	}
}

// hold reports a defect of a build.
func (h *holding) hold(build string) {
	h.t.Helper()
	h.apply(HoldBegun{Epoch: h.r.Epoch, Failure: Failure{Code: "panic", Message: "of " + build}, Build: build,
		Delay: time.Minute, Timeout: time.Hour})
}

// try grants the run to a build.
func (h *holding) try(build string) {
	h.t.Helper()
	h.apply(Granted{Worker: "w", Build: build, Start: true})
}

func (h *holding) types() string {
	var out []string
	for _, l := range h.lines {
		out = append(out, string(l.Type))
	}
	return strings.Join(out, " ")
}

func TestHeldRunSpendsNoAttempt(t *testing.T) {
	h := newHolding(t)
	for i := range 20 {
		h.hold("a")
		if h.r.State != Queued || h.r.Attempt != 1 || h.r.Strikes != 0 || h.r.Ready {
			t.Fatalf("after %d defects: state %s, attempt %d, strikes %d, ready %v, want queued, 1, 0, false",
				i+1, h.r.State, h.r.Attempt, h.r.Strikes, h.r.Ready)
		}
		if want := h.now.Add(time.Minute); h.r.ReadyAt != want {
			t.Errorf("after %d defects: claimable at %s, want %s", i+1, h.r.ReadyAt, want)
		}
		h.now = h.now.Add(time.Minute)
		h.apply(Due{})
		h.try("a")
	}
	if h.r.Hold.Count != 20 || h.r.Hold.Since != start0 || h.r.Hold.Until != start0.Add(time.Hour) {
		t.Errorf("hold = %+v, want 20 defects since %s until an hour later", h.r.Hold, start0)
	}
}

func TestHoldIsToldOncePerBuild(t *testing.T) {
	h := newHolding(t)
	for _, c := range []struct{ build, want string }{
		{"a", "run:held"}, {"a", "run:reclaimed"}, {"b", "run:held"}, {"a", "run:reclaimed"}, {"", "run:held"},
		{"", "run:reclaimed"},
	} {
		h.hold(c.build)
		if got := h.types(); got != c.want {
			t.Errorf("a defect of build %q writes %s, want %s", c.build, got, c.want)
		}
		h.apply(Due{Now: true})
		h.try(c.build)
	}
	if want := []string{"b", "a", ""}; !slices.Equal(h.r.Hold.Builds, want) {
		t.Errorf("builds = %q, want %q", h.r.Hold.Builds, want)
	}
}

func TestOnlyAnotherBuildMayTryAHeldRunAtOnce(t *testing.T) {
	h := newHolding(t)
	h.hold("a")
	h.refused(Granted{Worker: "w", Build: "a"})
	h.refused(Granted{Worker: "w"})
	h.try("b")
	h.hold("b")
	for _, build := range []string{"a", "b"} {
		h.refused(Granted{Worker: "w", Build: build})
	}
	h.now = h.r.ReadyAt
	h.apply(Due{})
	h.try("a")
}

// An ordinary retry waits for its backoff, whichever build asks for it.
func TestRetryOfAHeldRunWaitsForItsBackoff(t *testing.T) {
	h := newHolding(t)
	h.hold("a")
	h.try("b")
	h.now = h.now.Add(time.Second)
	h.apply(Retried{Epoch: h.r.Epoch, Failure: Failure{Code: "boom"}, Delay: time.Minute})
	h.refused(Granted{Worker: "w", Build: "c"})
	if !h.r.OnHold() || h.r.HeldBack() {
		t.Errorf("on hold %v, held back %v, want true and false", h.r.OnHold(), h.r.HeldBack())
	}
}

// More builds than a run remembers pause between two defects.
func TestManyBuildsDoNotTakeTurnsQuickly(t *testing.T) {
	h := newHolding(t)
	for i := range MaxHoldBuilds {
		h.hold(fmt.Sprint("b", i))
		if i < MaxHoldBuilds-1 {
			h.try(fmt.Sprint("b", i+1))
		}
	}
	h.refused(Granted{Worker: "w", Build: "ninth"})
	h.now = h.now.Add(holdPause)
	h.try("ninth")
	h.hold("ninth")
	if n := len(h.r.Hold.Builds); n != MaxHoldBuilds || slices.Contains(h.r.Hold.Builds, "b0") {
		t.Errorf("builds = %q, want the last %d", h.r.Hold.Builds, MaxHoldBuilds)
	}
	h.refused(Granted{Worker: "w", Build: "b0"})
}

func TestProgressEndsAHold(t *testing.T) {
	for name, c := range map[string]struct {
		event func(epoch int64) Event
		over  bool
	}{
		"a journal entry": {func(e int64) Event { return Committed{Epoch: e, Journal: 1} }, true},
		"a suspend":       {func(e int64) Event { return WentToSleep{Epoch: e, WaitAt: long} }, true},
		"a journal entry and a defect": {func(e int64) Event {
			return Committed{Epoch: e, Journal: 1, Defect: true}
		}, false},
		"a heartbeat":              {func(e int64) Event { return Heartbeat{Epoch: e} }, false},
		"a commit without entries": {func(e int64) Event { return Committed{Epoch: e} }, false},
	} {
		h := newHolding(t)
		h.hold("a")
		h.try("b")
		h.apply(c.event(h.r.Epoch))
		if h.r.OnHold() == c.over {
			t.Errorf("%s: on hold = %v, want %v", name, h.r.OnHold(), !c.over)
		}
		if h.r.Hold.Count != 1 || !slices.Equal(h.r.Hold.Builds, []string{"a"}) {
			t.Errorf("%s: hold = %+v, want the count and the builds kept", name, h.r.Hold)
		}
	}
}

func TestHoldEndsAtItsTimeout(t *testing.T) {
	h := newHolding(t)
	h.hold("a")
	if at := h.p.Alarm(&h.r); at != h.r.ReadyAt {
		t.Errorf("alarm = %s, want the end of the backoff, %s", at, h.r.ReadyAt)
	}
	h.refused(HoldExpired{})
	h.now = start0.Add(time.Hour)
	h.apply(Due{})
	if at := Clocks[0].At(&h.p, &h.r); at != h.now {
		t.Errorf("clock %s = %s, want the end of the hold, %s", Clocks[0].Name, at, h.now)
	}
	h.apply(HoldExpired{})
	if got := h.types(); got != "run:dead_lettered run:failed" || h.r.Failure.Code != "panic" || h.r.Hold != nil {
		t.Errorf("lines %s, failure %+v, hold %+v, want a dead letter with the code panic", got, h.r.Failure, h.r.Hold)
	}
}

// A worker that tries a held run keeps it beyond the end of the hold.
func TestHoldTimeoutSparesARunThatIsTried(t *testing.T) {
	h := newHolding(t)
	h.hold("a")
	h.try("b")
	h.now = start0.Add(2 * time.Hour)
	for i := range Clocks {
		if c := &Clocks[i]; c.Name == "hold" && c.At(&h.p, &h.r) != 0 {
			t.Errorf("the hold's clock rings at %s while the run is %s, want it off", c.At(&h.p, &h.r), h.r.State)
		}
	}
	h.hold("b")
	if h.r.AlarmAt > h.now {
		t.Errorf("after another defect the alarm is at %s, want it due", h.r.AlarmAt)
	}
}

func TestHoldEndsByTheDeadline(t *testing.T) {
	h := newHolding(t)
	h.r.DeadlineAt = start0.Add(10 * time.Minute)
	h.hold("a")
	if h.r.Hold.Until != h.r.DeadlineAt {
		t.Errorf("the hold ends at %s, want the deadline, %s", h.r.Hold.Until, h.r.DeadlineAt)
	}
}

func TestReleasedHoldForgetsTheBuilds(t *testing.T) {
	h := newHolding(t)
	h.refused(HoldReleased{})
	h.hold("a")
	h.now = h.now.Add(time.Second)
	h.apply(HoldReleased{By: "ada"})
	if got := h.types(); got != "run:hold_released" {
		t.Errorf("a release writes %s, want run:hold_released", got)
	}
	if !h.r.Ready || h.r.OnHold() || h.r.ReadyAt > h.now {
		t.Errorf("ready %v at %s, on hold %v, want claimable now and not on hold", h.r.Ready, h.r.ReadyAt, h.r.OnHold())
	}
	h.try("a")
	h.hold("a")
	if got := h.types(); got != "run:held" || h.r.Hold.Count != 2 || h.r.Hold.Since != h.now {
		t.Errorf("a further defect writes %s, hold %+v, want run:held, a new hold and 2 defects", got, h.r.Hold)
	}
}

func TestCancelTurnsADefectIntoAFailure(t *testing.T) {
	h := newHolding(t)
	h.hold("a")
	h.apply(CancelAsked{})
	if h.r.HeldBack() || h.r.MayTry("b", h.now) {
		t.Error("a run that is asked to stop is held back, want it claimable by cancellation only")
	}
	for i := range Clocks {
		if c := &Clocks[i]; c.Name == "hold" && c.At(&h.p, &h.r) != 0 {
			t.Error("the hold's clock runs under a cancel request, want the grace to decide")
		}
	}
	h.apply(Due{Now: true})
	h.try("a")
	h.refused(HoldBegun{Epoch: h.r.Epoch})
}

// ClockSetBack moves a hold that began on the wrong clock, with its backoff.
func TestClockSetBackMovesAHold(t *testing.T) {
	h := newHolding(t)
	h.now = start0.Add(2 * time.Hour)
	h.hold("a")
	h.now = start0
	h.apply(ClockSetBack{By: 2 * time.Hour})
	got := h.r.Hold
	if got.Since != start0 || got.Until != start0.Add(time.Hour) || got.At != start0 ||
		h.r.ReadyAt != start0.Add(time.Minute) || !h.r.HeldBack() {
		t.Errorf("hold = %+v, claimable at %s, want it as if it had begun at %s", got, h.r.ReadyAt, start0)
	}
}

func TestAttemptsTellOfHolds(t *testing.T) {
	h := newHolding(t)
	log := []Line{{Type: LineDispatched, Data: `{"worker_id":"w"}`}, {Type: LineStarted, Data: `{}`}}
	h.hold("a")
	got := Attempts(append(log, h.lines...))
	if len(got) != 1 || got[0].Outcome != "held" || got[0].Error == nil || got[0].Error.Code != "panic" {
		t.Errorf("attempts = %+v, want one that was held with the code panic", got)
	}
}

func TestDefectBelongsToAFailure(t *testing.T) {
	yes, no := true, false
	why := &Failure{Code: "panic"}
	for _, c := range []struct {
		outcome Outcome
		field   string
	}{
		{Outcome{Type: OutcomeFail, Error: why, Defect: true}, ""},
		{Outcome{Type: OutcomeFail, Error: why, Defect: true, Retryable: &yes}, ""},
		{Outcome{Type: OutcomeFail, Error: why, Defect: true, Retryable: &no}, "outcome.retryable"},
		{Outcome{Type: OutcomeComplete, Defect: true}, "outcome.defect"},
		{Outcome{Type: OutcomeSuspend, Defect: true}, "outcome.defect"},
	} {
		err := (&Commit{ID: "c", RunID: "r", Epoch: 1, Outcome: &c.outcome}).Validate()
		field := ""
		if e, ok := err.(*Error); ok {
			field = e.Field
		}
		if field != c.field {
			t.Errorf("%+v: Validate = %v, want an error of the field %q", c.outcome, err, c.field)
		}
	}
}
