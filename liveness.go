package perdure

import "time"

// How alive a run looks, by the age of its last sign of life: any heartbeat, event, delta or commit of its holder.
const (
	TierFresh = "fresh"
	TierStale = "stale"
	TierDead  = "dead"
)

// Tiers are all of them.
var Tiers = []string{TierFresh, TierStale, TierDead}

// Thresholds are how long a run may go without something before it is said, or done. Zero: what holds otherwise.
type Thresholds struct {
	Silent     time.Duration // no sign of life: run:slow
	NoProgress time.Duration // signs of life, and nothing changes: run:slow
	Stale      time.Duration // no sign of life: the tier is stale, and run:stale says so
	Dead       time.Duration // no sign of life: the tier is dead, and a process is given up
}

// Liveness has thresholds of their own for kinds of runs and for activities: thinking may be silent longer than a
// tool. Each threshold is looked for by itself: that of the kind's activity, of the kind, of the activity, of the policy.
type Liveness struct {
	Kinds      map[string]KindLiveness
	Activities map[string]Thresholds
}

// KindLiveness are the thresholds of a kind of runs, and of activities of that kind.
type KindLiveness struct {
	Thresholds
	Activities map[string]Thresholds
}

// MaxLiveness bounds the kinds, and the activities of each, that have thresholds of their own.
const MaxLiveness = 100

// ProcessSilent is how long a process may be silent at least, unless its kind says otherwise: it beats every 30 s or so, and one
// beat that is late is no silence.
const ProcessSilent = 75 * time.Second

// Thresholds are those of a run, as it is doing what it does.
func (p *Policy) Thresholds(r *Run) Thresholds {
	return p.thresholds(r.Kind, r.Activity, r.Options.Process)
}

func (p *Policy) thresholds(kind, activity string, process bool) Thresholds {
	t := Thresholds{Silent: p.Silent, NoProgress: p.NoProgress, Stale: p.StaleAfter, Dead: p.DeadAfter}
	l := &p.Liveness
	t.override(l.Activities[activity])
	if process {
		t.Silent = max(t.Silent, ProcessSilent)
	}
	if k, ok := l.Kinds[kind]; ok {
		t.override(k.Thresholds)
		t.override(k.Activities[activity])
	}
	return t
}

func (t *Thresholds) override(by Thresholds) {
	for _, x := range []struct{ to, by *time.Duration }{
		{&t.Silent, &by.Silent}, {&t.NoProgress, &by.NoProgress}, {&t.Stale, &by.Stale}, {&t.Dead, &by.Dead}} {
		if *x.by != 0 {
			*x.to = *x.by
		}
	}
}

// Tier says how alive a run looks; it is empty unless somebody holds the run. Only for a process it decides
// something: what a lease says of the others is judged by the lease.
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

// reapAfter is how long a running run may be silent before the net under its lease, or its tiers, catches it.
func (p *Policy) reapAfter(r *Run) time.Duration {
	if r.Options.Process {
		return max(p.ActiveReap, p.Thresholds(r).Dead)
	}
	return p.ActiveReap
}

// validate refuses thresholds that make no sense, alone or together.
func (l *Liveness) validate(p *Policy) error {
	if len(l.Kinds) > MaxLiveness || len(l.Activities) > MaxLiveness {
		return Invalid("liveness", "has thresholds for more than %d kinds or activities", MaxLiveness)
	}
	check := func(field, kind, activity string, own Thresholds) error {
		for _, d := range []struct {
			name  string
			value time.Duration
		}{{"silent", own.Silent}, {"no_progress", own.NoProgress}, {"stale", own.Stale}, {"dead", own.Dead}} {
			if d.value != 0 && d.value < minDuration {
				return Invalid(field+"."+d.name, "must be at least %s, not %s", minDuration, d.value)
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
		if len(k.Activities) > MaxLiveness {
			return Invalid(field, "has thresholds for more than %d activities", MaxLiveness)
		}
		if err := check(field, kind, "", k.Thresholds); err != nil {
			return err
		}
		for activity := range l.Activities { // what is left to the activity has to fit what the kind says
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
