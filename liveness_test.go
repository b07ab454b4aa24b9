package perdure

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestThresholdsOfKindsAndActivities(t *testing.T) {
	p := DefaultPolicy()
	p.Liveness = Liveness{
		Activities: map[string]Thresholds{"thinking": {Stale: 5 * time.Minute, Silent: time.Minute}},
		Kinds: map[string]KindLiveness{"scan": {Thresholds: Thresholds{Stale: time.Minute, Dead: 2 * time.Minute},
			Activities: map[string]Thresholds{"thinking": {Dead: 3 * time.Minute}}}},
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind, activity string
		want           Thresholds
	}{
		{"job", "", Thresholds{30 * time.Second, 10 * time.Minute, 2 * time.Minute, 10 * time.Minute}},
		{"job", "thinking", Thresholds{time.Minute, 10 * time.Minute, 5 * time.Minute, 10 * time.Minute}},
		{"scan", "", Thresholds{30 * time.Second, 10 * time.Minute, time.Minute, 2 * time.Minute}},
		{"scan", "thinking", Thresholds{time.Minute, 10 * time.Minute, time.Minute, 3 * time.Minute}},
	} {
		r := runIn(Running)
		r.Kind, r.Activity = c.kind, c.activity
		if got := p.Thresholds(&r); got != c.want {
			t.Errorf("kind %s, activity %q: thresholds %+v, want %+v", c.kind, c.activity, got, c.want)
		}
		for age, want := range map[time.Duration]string{c.want.Stale - 1000: TierFresh, c.want.Stale: TierStale,
			c.want.Dead: TierStale, c.want.Dead + 1000: TierDead} {
			if got := p.Tier(&r, r.SeenAt.Add(age)); got != want {
				t.Errorf("kind %s, activity %q: tier after %s = %s, want %s", c.kind, c.activity, age, got, want)
			}
		}
	}
}

// A process sends a heartbeat every 30 s. One late heartbeat is no alert, unless its kind sets a
// threshold.
func TestProcessIsSilentAfterTwoMissedHeartbeats(t *testing.T) {
	p := DefaultPolicy()
	p.Liveness = Liveness{
		Activities: map[string]Thresholds{"quick": {Silent: time.Second}, "slow": {Silent: time.Hour}},
		Kinds: map[string]KindLiveness{"chatty": {Thresholds: Thresholds{Silent: 10 * time.Second}},
			"both": {Activities: map[string]Thresholds{"quick": {Silent: 2 * time.Second}}}},
	}
	for _, c := range []struct {
		kind, activity string
		want           time.Duration
	}{{"job", "", 75 * time.Second}, {"job", "quick", 75 * time.Second}, {"job", "slow", time.Hour},
		{"chatty", "slow", 10 * time.Second}, {"both", "quick", 2 * time.Second}} {
		r := Run{Kind: c.kind, Activity: c.activity}
		r.Options.Process = true
		if got := p.Thresholds(&r).Silent; got != c.want {
			t.Errorf("kind %s, activity %q: silent after %s, want %s", c.kind, c.activity, got, c.want)
		}
	}
	p.Silent = 2 * time.Minute
	r := Run{Kind: "job"}
	r.Options.Process = true
	if got := p.Thresholds(&r).Silent; got != 2*time.Minute {
		t.Errorf("with a policy of 2 min: silent after %s, want 2m0s", got)
	}
}

func TestBadThresholdsAreRefused(t *testing.T) {
	type (
		kinds      = map[string]KindLiveness
		activities = map[string]Thresholds
	)
	many := activities{}
	for i := range maxLiveness + 1 {
		many[fmt.Sprint("a", i)] = Thresholds{Silent: time.Second}
	}
	for field, l := range map[string]Liveness{
		"liveness":                          {Activities: many},
		"liveness.kind.k":                   {Kinds: kinds{"k": {Activities: many}}},
		"liveness.kind.short":               {Kinds: kinds{"short": {Thresholds: Thresholds{Dead: time.Minute}}}},
		"liveness.activity.long":            {Activities: activities{"long": {Stale: time.Hour}}},
		"liveness.kind.k.activity.a":        {Kinds: kinds{"k": {Activities: activities{"a": {Stale: time.Hour}}}}},
		"liveness.kind.k.activity.a.silent": {Kinds: kinds{"k": {Activities: activities{"a": {Silent: -1}}}}},
		"liveness.activity.a.no_progress":   {Activities: activities{"a": {NoProgress: -time.Second}}},
		"liveness.kind":                     {Kinds: kinds{"": {}}},
		"liveness.activity":                 {Activities: activities{"a\x00": {}}},
		"liveness.kind.together": {Kinds: kinds{"together": {Thresholds: Thresholds{Dead: 3 * time.Minute}}},
			Activities: activities{"a": {Stale: 5 * time.Minute}}},
		"liveness.kind.k.activity.long": {Kinds: kinds{"k": {Activities: activities{"long": {Dead: time.Second}}}}},
	} {
		p := DefaultPolicy()
		p.Liveness = l
		err, ok := p.Validate().(*Error)
		if !ok || err.Code != CodeInvalid || err.Field != field {
			t.Errorf("%s: Validate = %v, want %s for this field", field, err, CodeInvalid)
		}
	}
	p := DefaultPolicy()
	p.StaleAfter = p.DeadAfter
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "stale_after") {
		t.Errorf("stale_after equal to dead_after: %v, want an error for stale_after", err)
	}
}

func TestProcessIsLostByHeartbeatsNotByLease(t *testing.T) {
	p := DefaultPolicy()
	p.Liveness.Kinds = map[string]KindLiveness{"slow": {Thresholds: Thresholds{Dead: time.Hour}}}
	rings := func(r *Run) map[string]time.Duration {
		out := map[string]time.Duration{}
		for i := range Clocks {
			if at := Clocks[i].At(&p, r); at != 0 {
				out[Clocks[i].Name] = at.Sub(r.SeenAt)
			}
		}
		return out
	}
	r := runIn(Running)
	r.HolderSeen = true
	if at := rings(&r); at["lease"] != time.Minute || at["dead"] != 0 || at["stale"] != 2*time.Minute ||
		at["reap"] != 30*time.Minute {
		t.Errorf("a run under a lease: clocks at %v, want lease 1m, stale 2m, reap 30m and no dead", at)
	}
	r.Options.Process = true
	if at := rings(&r); at["lease"] != 0 || at["dead"] != 10*time.Minute || at["stale"] != 2*time.Minute ||
		at["reap"] != 30*time.Minute {
		t.Errorf("a process: clocks at %v, want dead 10m, stale 2m, reap 30m and no lease", at)
	}
	r.Kind = "slow"
	if at := rings(&r); at["dead"] != time.Hour || at["reap"] != time.Hour {
		t.Errorf("a process with dead 1h: clocks at %v, want dead and reap at 1h", at)
	}
	if _, _, err := p.Apply(r, Reaped{}, r.SeenAt.Add(59*time.Minute)); CodeOf(err) != CodeWrongState {
		t.Errorf("reaping before the process is dead: %v, want %s", err, CodeWrongState)
	}
	for _, c := range []struct {
		strikes, most int
		want          Event
	}{
		{0, 1, GaveUp{Failure: Failure{Code: CodeHeartbeatLost, Message: "gone"}}},
		{2, 3, GaveUp{Failure: Failure{Code: CodeHeartbeatLost, Message: "gone"}}},
		{1, 3, Retried{Failure: Failure{Code: CodeHeartbeatLost, Message: "gone"}, Delay: 2 * time.Second}},
	} {
		r.Strikes, r.MaxAttempts = c.strikes, c.most
		if got := p.afterLoss(&r, 0, Failure{Code: CodeHeartbeatLost, Message: "gone"}, 0.5); got != c.want {
			t.Errorf("after %d of %d attempts: %+v, want %+v", c.strikes, c.most, got, c.want)
		}
	}
}

func TestStaleAlertIsSentOncePerSilence(t *testing.T) {
	p := DefaultPolicy()
	r := runIn(Running)
	r.HolderSeen = true
	if _, _, err := p.Apply(r, WentStale{}, r.SeenAt.Add(119*time.Second)); CodeOf(err) != CodeWrongState {
		t.Errorf("WentStale after 119 s: %v, want %s", err, CodeWrongState)
	}
	apply := func(e Event, after time.Duration) []Line {
		t.Helper()
		next, lines, err := p.Apply(r, e, start0.Add(after))
		if err != nil {
			t.Fatalf("%s: %v", EventName(e), err)
		}
		r = next
		return lines
	}
	clock := func() bool {
		for i := range Clocks {
			if Clocks[i].Name == "stale" {
				return Clocks[i].At(&p, &r) != 0
			}
		}
		return false
	}
	lines := apply(WentStale{}, 2*time.Minute)
	if len(lines) != 1 || lines[0].Type != LineStale || clock() {
		t.Errorf("WentStale: lines %+v and clock running %v, want one run:stale and a stopped clock", lines, clock())
	}
	for _, sign := range []Event{Heartbeat{Epoch: 3}, Committed{Epoch: 3}, Started{Epoch: 3}} {
		r.AlertsSent |= AlertStale
		if apply(sign, 3*time.Minute); !clock() {
			t.Errorf("%s does not restart the stale clock", EventName(sign))
		}
	}
}
