package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// livenessConfig are thresholds of kinds and activities in the file:
//
//	[liveness.kind.report]
//	no_progress = "1h"
//	[liveness.kind.report.activity.tool_executing]
//	silent = "5m"
//	[liveness.activity.llm_thinking]
//	silent = "2m"
type livenessConfig struct {
	Kind     map[string]kindThresholds `toml:"kind" json:"kind,omitempty"`
	Activity map[string]thresholds     `toml:"activity" json:"activity,omitempty"`
}

type kindThresholds struct {
	thresholds
	Activity map[string]thresholds `toml:"activity" json:"activity,omitempty"`
}

type thresholds struct {
	Silent     threshold `toml:"silent" json:"silent,omitempty"`
	NoProgress threshold `toml:"no_progress" json:"no_progress,omitempty"`
	Stale      threshold `toml:"stale" json:"stale,omitempty"`
	Dead       threshold `toml:"dead" json:"dead,omitempty"`
}

// A threshold is a duration that is positive if it is given at all: zero is that it is not.
type threshold time.Duration

func (t threshold) MarshalText() ([]byte, error) { return []byte(time.Duration(t).String()), nil }

func (t *threshold) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s", b)
	}
	if d <= 0 {
		return fmt.Errorf("must be positive, not %q: what is left out is as it is otherwise", b)
	}
	*t = threshold(d)
	return nil
}

func (t thresholds) policy() perdure.Thresholds {
	return perdure.Thresholds{Silent: time.Duration(t.Silent), NoProgress: time.Duration(t.NoProgress), Stale: time.Duration(t.Stale), Dead: time.Duration(t.Dead)}
}

func (l *livenessConfig) policy() perdure.Liveness {
	activities := func(in map[string]thresholds) map[string]perdure.Thresholds {
		out := make(map[string]perdure.Thresholds, len(in))
		for name, t := range in {
			out[name] = t.policy()
		}
		return out
	}
	out := perdure.Liveness{Activities: activities(l.Activity), Kinds: make(map[string]perdure.KindLiveness, len(l.Kind))}
	for name, k := range l.Kind {
		out.Kinds[name] = perdure.KindLiveness{Thresholds: k.policy(), Activities: activities(k.Activity)}
	}
	return out
}

// print says what is set.
func (l *livenessConfig) print(w io.Writer) {
	section := func(name string, t thresholds) {
		fmt.Fprintf(w, "\n[liveness.%s]\n", name)
		for _, x := range []struct {
			name string
			d    threshold
		}{{"silent", t.Silent}, {"no_progress", t.NoProgress}, {"stale", t.Stale}, {"dead", t.Dead}} {
			if x.d != 0 {
				fmt.Fprintf(w, "%-26s %s\n", x.name, time.Duration(x.d))
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(l.Kind)) {
		section("kind."+kind, l.Kind[kind].thresholds)
		for _, activity := range slices.Sorted(maps.Keys(l.Kind[kind].Activity)) {
			section("kind."+kind+".activity."+activity, l.Kind[kind].Activity[activity])
		}
	}
	for _, activity := range slices.Sorted(maps.Keys(l.Activity)) {
		section("activity."+activity, l.Activity[activity])
	}
}
