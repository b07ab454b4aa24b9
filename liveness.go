package perdure

import (
	"maps"
	"slices"
	"time"
)

// The tiers of liveness, by the age of the last sign of life. Signs of life are heartbeats, events,
// deltas and commits of the holder.
const (
	TierFresh = "fresh"
	TierStale = "stale"
	TierDead  = "dead"
)

// Tiers are all of them.
var Tiers = []string{TierFresh, TierStale, TierDead}

// Thresholds are the times without a sign of life, or without progress, after which the watchdog
// acts. In an override, zero means that the threshold is inherited.
type Thresholds struct {
	Silent     time.Duration // without a sign of life: alert run:slow
	NoProgress time.Duration // with signs of life but without a change: alert run:slow
	Stale      time.Duration // without a sign of life: tier stale, alert run:stale
	Dead       time.Duration // without a sign of life: tier dead; a process is given up
}

// Liveness overrides thresholds for kinds of runs and for activities; an activity "thinking" may be
// silent longer than a tool, for example. Each threshold is resolved on its own. The first that is
// set counts, in this order: the kind's activity, the kind, the activity, the policy.
type Liveness struct {
	Kinds      map[string]KindLiveness
	Activities map[string]Thresholds
}

// KindLiveness has the thresholds of one kind of runs, and of activities within that kind.
type KindLiveness struct {
	Thresholds
	Activities map[string]Thresholds
}

// maxLiveness limits the number of kinds, and of activities of each, that have their own
// thresholds.
const maxLiveness = 100

// processSilent is the least Silent threshold of a process, unless its kind sets one. A process
// sends a heartbeat about every 30 s, and a single late one is not an alert.
const processSilent = 75 * time.Second

// Thresholds returns the thresholds of a run for its kind and its current activity.
func (p *Policy) Thresholds(r *Run) Thresholds {
	return p.thresholds(r.Kind, r.Activity, r.Options.Process)
}

func (p *Policy) thresholds(kind, activity string, process bool) Thresholds {
	t := Thresholds{Silent: p.Silent, NoProgress: p.NoProgress, Stale: p.StaleAfter, Dead: p.DeadAfter}
	l := &p.Liveness
	t.override(l.Activities[activity])
	if process {
		t.Silent = max(t.Silent, processSilent)
	}
	if k, ok := l.Kinds[kind]; ok {
		t.override(k.Thresholds)
		t.override(k.Activities[activity])
	}
	return t
}

// Each calls f for each section of thresholds, kinds first, in the order of names. The section is
// its name in the configuration: kind report, kind report activity thinking, activity thinking.
func (l *Liveness) Each(f func(section []string, t *Thresholds)) {
	activities := func(section []string, all map[string]Thresholds) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t := all[name]
			f(append(slices.Clone(section), "activity", name), &t)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Kinds)) {
		k := l.Kinds[name]
		f([]string{"kind", name}, &k.Thresholds)
		activities([]string{"kind", name}, k.Activities)
	}
	activities(nil, l.Activities)
}

// Settings has a row for each threshold.
func (t *Thresholds) Settings() []Setting {
	return []Setting{
		{"silent", &t.Silent, nil, minDuration, nil, "a run without a sign of life is reported after this"},
		{"no_progress", &t.NoProgress, nil, minDuration, nil,
			"a run that beats and does not move is reported after this"},
		{"stale", &t.Stale, nil, minDuration, nil,
			"a run without a sign of life is `stale` after this; shorter than `dead`"},
		{"dead", &t.Dead, nil, minDuration, nil, "a run without a sign of life is `dead` after this"},
	}
}

// override replaces the thresholds that are set in by.
func (t *Thresholds) override(by Thresholds) {
	for _, x := range []struct{ to, by *time.Duration }{
		{&t.Silent, &by.Silent}, {&t.NoProgress, &by.NoProgress}, {&t.Stale, &by.Stale}, {&t.Dead, &by.Dead}} {
		if *x.by != 0 {
			*x.to = *x.by
		}
	}
}

// Tier returns the tier of a run, or an empty string if no worker holds it. The tier is
// information: only a process is given up by it, all other runs by their lease.
func (p *Policy) Tier(r *Run, now Instant) string {
	if !r.State.Leased() {
		return ""
	}
	t := p.Thresholds(r)
	switch age := now.Sub(r.SeenAt); {
	case age < t.Stale:
		return TierFresh
	case age <= t.Dead:
		return TierStale
	}
	return TierDead
}

// reapAfter returns the silence after which a running run is reaped. It is the backstop of the
// lease, and of the tiers for a process.
func (p *Policy) reapAfter(r *Run) time.Duration {
	if r.Options.Process {
		return max(p.ActiveReap, p.Thresholds(r).Dead)
	}
	return p.ActiveReap
}

// validate refuses thresholds that are too short, and combinations in which stale is not before
// dead.
func (l *Liveness) validate(p *Policy) error {
	if len(l.Kinds) > maxLiveness || len(l.Activities) > maxLiveness {
		return Invalid("liveness", "has thresholds for more than %d kinds or activities", maxLiveness)
	}
	check := func(field, kind, activity string, own Thresholds) error {
		for _, s := range own.Settings() {
			if s.Name = field + "." + s.Name; *s.Value.(*time.Duration) != 0 {
				if err := s.Check(); err != nil {
					return err
				}
			}
		}
		if t := p.thresholds(kind, activity, false); t.Stale >= t.Dead {
			return Invalid(field, "stale, %s, must be shorter than dead, %s", t.Stale, t.Dead)
		}
		return nil
	}
	for activity, t := range l.Activities {
		if err := CheckText("liveness.activity", activity); err != nil {
			return err
		}
		if err := check("liveness.activity."+activity, "", activity, t); err != nil {
			return err
		}
	}
	for kind, k := range l.Kinds {
		if err := CheckName("liveness.kind", kind); err != nil {
			return err
		}
		field := "liveness.kind." + kind
		if len(k.Activities) > maxLiveness {
			return Invalid(field, "has thresholds for more than %d activities", maxLiveness)
		}
		if err := check(field, kind, "", k.Thresholds); err != nil {
			return err
		}
		for activity := range l.Activities { // thresholds inherited from the activity must fit the kind's
			if err := check(field, kind, activity, k.Thresholds); err != nil {
				return err
			}
		}
		for activity, t := range k.Activities {
			if err := CheckText(field+".activity", activity); err != nil {
				return err
			}
			if err := check(field+".activity."+activity, kind, activity, t); err != nil {
				return err
			}
		}
	}
	return nil
}
