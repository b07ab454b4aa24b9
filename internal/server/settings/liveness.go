package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/perdure/perdure"
)

// Thresholds of kinds and activities have names that an operator chooses:
//
//	[liveness.kind.report]
//	no_progress = "1h"
//	[liveness.kind.report.activity.tool_executing]
//	silent = "5m"
//	[liveness.activity.llm_thinking]
//	silent = "2m"
//
// A flag sets one of them, --liveness kind.report.no_progress=1h. PERDURE_LIVENESS has a list of
// them with commas. A name is written as a key of the file, so one with dots is in quotes.
const livenessSection = "liveness"

// addThresholds adds the thresholds of the environment and the flags.
func (c *Config) addThresholds(env string, flags []string) error {
	var items []string
	if env != "" {
		items = strings.Split(env, ",")
	}
	for _, item := range append(items, flags...) {
		name, text, ok := strings.Cut(item, "=")
		if !ok {
			return fmt.Errorf("--%s takes name=duration, not %q", livenessSection, item)
		}
		var tree map[string]any
		if _, err := toml.Decode(name+"="+fmt.Sprintf("%q", text), &tree); err != nil {
			return fmt.Errorf("%s: %q is not a name such as kind.report.silent: %w", livenessSection, name, err)
		}
		if err := c.readThresholds(nil, tree); err != nil {
			return err
		}
	}
	return nil
}

// readThresholds reads a section. path is its name without "liveness".
func (c *Config) readThresholds(path []string, tree map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		at := append(slices.Clone(path), key)
		sub, isSection := tree[key].(map[string]any)
		var err error
		switch {
		case !hasSections(at):
			err = c.setThreshold(at, tree[key])
		case isSection:
			err = c.readThresholds(at, sub)
		default:
			err = notSection(thresholdName(at))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func thresholdName(path []string) string { return livenessSection + "." + strings.Join(path, ".") }

// hasSections tells whether a path is a section: kind, kind.K, kind.K.activity,
// kind.K.activity.A, activity or activity.A.
func hasSections(path []string) bool {
	if path[0] == "activity" {
		return len(path) < 3
	}
	return path[0] == "kind" && (len(path) < 3 || path[2] == "activity" && len(path) < 5)
}

// setThreshold sets one threshold: activity.A.T, kind.K.T or kind.K.activity.A.T.
func (c *Config) setThreshold(path []string, v any) error {
	l, last := &c.Policy.Liveness, path[len(path)-1]
	if path[0] == "activity" && len(path) == 3 {
		return setIn(&l.Activities, path[1], path, last, v)
	}
	if path[0] != "kind" || len(path) < 3 {
		return unknown(thresholdName(path))
	}
	k := l.Kinds[path[1]]
	var err error
	if len(path) == 5 {
		err = setIn(&k.Activities, path[3], path, last, v)
	} else {
		err = setOne(&k.Thresholds, path, last, v)
	}
	if l.Kinds == nil {
		l.Kinds = map[string]perdure.KindLiveness{}
	}
	l.Kinds[path[1]] = k
	return err
}

func setIn(all *map[string]perdure.Thresholds, key string, path []string, last string, v any) error {
	if *all == nil {
		*all = map[string]perdure.Thresholds{}
	}
	t := (*all)[key]
	err := setOne(&t, path, last, v)
	(*all)[key] = t
	return err
}

func setOne(t *perdure.Thresholds, path []string, last string, v any) error {
	name := thresholdName(path)
	for _, row := range t.Settings() {
		if row.Name != last {
			continue
		}
		row.Name = name
		s := Setting{Setting: row}
		if text, ok := v.(string); ok {
			if d, err := time.ParseDuration(text); err == nil && d <= 0 {
				return fmt.Errorf("%s: must be positive, not %q: what is left out is as it is otherwise", name, text)
			}
		}
		return s.set(v)
	}
	return unknown(name)
}
