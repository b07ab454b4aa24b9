package store

import (
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// maxMerged bounds the sources whose runs are merged, each of them found by an index.
const maxMerged = 8

// An idSource finds the next candidates, newest first: fewer than n when there are no more.
type idSource func(n int) ([]perdure.RunID, error)

// source selects the index by which the runs are found, and gives the function that does one step.
func (l *runList) source() (func() error, error) {
	f := &l.f
	switch {
	case f.RootID != "":
		return l.byIDs(l.ofTree), nil
	case f.ParentID != "":
		return l.byIDs(l.ofParent), nil
	case len(f.Metadata) > 0:
		find, err := l.rarestEntry()
		return l.byIDs(find), err
	case f.ThreadID != "":
		return l.byIDs(l.ofThread), nil
	case l.cond == "":
		return l.everything, nil
	case f.onlyLive():
		return l.live(), nil
	}
	if states := f.unsuccessful(); states != nil {
		return l.byIDs(l.ended(states)), nil
	}
	if f.KindPrefix != "" || f.Value != "" {
		if find, err := l.byDistinct(); err != nil || find != nil {
			return l.byIDs(find), err
		}
	}
	switch {
	case f.Queue != "" && f.Queue != perdure.DefaultQueue:
		return l.byIDs(func(n int) ([]perdure.RunID, error) { return l.having("queue", f.Queue, n) }), nil
	case f.Kind != "":
		return l.byIDs(func(n int) ([]perdure.RunID, error) { return l.having("kind", f.Kind, n) }), nil
	}
	return l.slice, nil
}

// having finds runs by their kind or by a queue that is not the default one.
func (l *runList) having(column, value string, n int) ([]perdure.RunID, error) {
	but := ""
	if column == "queue" {
		but = " AND queue<>'default'" // selects the index
	}
	return l.find("SELECT id FROM runs WHERE tenant=? AND "+column+"=?"+but+" AND id<? AND id>? ORDER BY "+column+
		" DESC, id DESC"+atMost, string(l.t), value, string(l.before), string(l.f.After), int64(n))
}

// ended finds runs that ended in one of these states.
func (l *runList) ended(states []string) idSource {
	var parts []idSource
	for _, s := range slices.Compact(slices.Sorted(slices.Values(states))) {
		parts = append(parts, func(n int) ([]perdure.RunID, error) {
			return l.find("SELECT id FROM runs WHERE tenant=? AND state=? AND state<>'completed' "+
				"AND alarm_at IS NULL AND id<? AND id>? ORDER BY state DESC, id DESC"+atMost,
				string(l.t), s, string(l.before), string(l.f.After), int64(n))
		})
	}
	return merged(parts)
}

// merged finds what any of the sources finds.
func merged(parts []idSource) idSource {
	return func(n int) (out []perdure.RunID, err error) {
		for _, find := range parts {
			ids, err := find(n)
			if err != nil {
				return nil, err
			}
			out = append(out, ids...)
		}
		slices.SortFunc(out, func(a, b perdure.RunID) int { return strings.Compare(string(b), string(a)) })
		out = slices.Compact(out)
		return out[:min(n, len(out))], nil
	}
}

// byDistinct finds runs of the kinds with a prefix, or of the entries of metadata with a value, if there
// are few such kinds or names: each has an index.
func (l *runList) byDistinct() (idSource, error) {
	table, column, from, to, find := "runs", "kind", l.f.KindPrefix, l.f.KindPrefix+lastRune, l.ofKind
	if l.f.KindPrefix == "" {
		table, column, from, to, find = "run_metadata", "name", "", lastRune, l.ofEntry
	}
	var parts []idSource
	for compare := ">="; ; compare = ">" {
		found := false
		err := l.in.sess.Query("SELECT "+column+" FROM "+table+" WHERE tenant=? AND "+column+compare+"? AND "+column+
			"<? ORDER BY tenant, "+column+atMost, []any{string(l.t), from, to, int64(1)},
			func(scan func(...any) error) error { found = true; return scan(&from) })
		if err != nil {
			return nil, err
		}
		if !found {
			return merged(parts), nil
		}
		if len(parts) == maxMerged {
			return nil, nil
		}
		parts = append(parts, find(from))
	}
}

// ofKind finds runs of a kind.
func (l *runList) ofKind(kind string) idSource {
	return func(n int) ([]perdure.RunID, error) { return l.having("kind", kind, n) }
}

// ofEntry finds runs whose metadata has the value under a name.
func (l *runList) ofEntry(name string) idSource {
	return func(n int) ([]perdure.RunID, error) { return l.entry(name, l.f.Value, n) }
}

// entry finds runs by an entry of their metadata.
func (l *runList) entry(name, value string, n int) ([]perdure.RunID, error) {
	return l.find("SELECT run_id FROM run_metadata "+
		"WHERE tenant=? AND name=? AND value=? AND run_id<? AND run_id>? "+
		"ORDER BY tenant DESC, name DESC, value DESC, run_id DESC"+atMost,
		string(l.t), name, indexed(value), string(l.before), string(l.f.After), int64(n))
}

// find reads ids.
func (l *runList) find(query string, args ...any) (ids []perdure.RunID, err error) {
	err = l.in.sess.Query(query, args, func(scan func(...any) error) error {
		var id perdure.RunID
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// ofTree finds runs of a tree. The index does not contain the root.
func (l *runList) ofTree(n int) ([]perdure.RunID, error) {
	root := l.f.RootID
	ids, err := l.find("SELECT id FROM runs WHERE tenant=? AND root_id=? AND root_id<>id AND id<? AND id>? "+
		"ORDER BY root_id DESC, id DESC"+atMost,
		string(l.t), string(root), string(l.before), string(l.f.After), int64(n))
	if root < l.before && root > l.f.After && (len(ids) < n || root > ids[n-1]) {
		ids = append(ids, root)
		slices.SortFunc(ids, func(a, b perdure.RunID) int { return strings.Compare(string(b), string(a)) })
		ids = ids[:min(n, len(ids))]
	}
	return ids, err
}

// ofThread finds the runs of a thread.
func (l *runList) ofThread(n int) ([]perdure.RunID, error) {
	return l.find("SELECT id FROM runs WHERE tenant=? AND thread_id=? AND thread_id<>'' AND id<? AND id>? "+
		"ORDER BY thread_id DESC, id DESC"+atMost, string(l.t), string(l.f.ThreadID), string(l.before),
		string(l.f.After), int64(n))
}

// ofParent finds the children of a run. Their index does not have the order of ids, so that they
// are found first and sorted then.
func (l *runList) ofParent(n int) ([]perdure.RunID, error) {
	return l.find("WITH children AS MATERIALIZED (SELECT id FROM runs WHERE tenant=? AND parent_id=? "+
		"AND parent_id<>'') "+
		"SELECT id FROM children WHERE id<? AND id>? ORDER BY id DESC"+atMost, string(l.t), string(l.f.ParentID),
		string(l.before), string(l.f.After), int64(n))
}

// rarestEntry finds runs by one metadata entry of the filter: the one that the fewest runs have,
// counted up to sliceRows.
func (l *runList) rarestEntry() (idSource, error) {
	name, fewest := "", int64(sliceRows+1)
	for _, k := range slices.Sorted(maps.Keys(l.f.Metadata)) {
		n := int64(0)
		if len(l.f.Metadata) > 1 {
			err := l.in.sess.Query("SELECT count(*) FROM (SELECT 1 FROM run_metadata WHERE tenant=? AND name=? "+
				"AND value=?"+atMost+") AS part",
				[]any{string(l.t), k, indexed(l.f.Metadata[k]), int64(sliceRows)},
				func(scan func(...any) error) error { return scan(&n) })
			if err != nil {
				return nil, err
			}
		}
		if n < fewest {
			name, fewest = k, n
		}
	}
	return func(n int) ([]perdure.RunID, error) { return l.entry(name, l.f.Metadata[name], n) }, nil
}

// live gives steps for a filter of live runs. The first step is slice: where most runs are live, it
// fills the page. Otherwise the live runs are few and are found by the index of alarms. A deadline is an
// alarm of its run, so that a filter of deadlines begins with that index.
func (l *runList) live() func() error {
	step, first := l.slice, true
	return func() error {
		if !first {
			return step()
		}
		first = false
		if l.f.DeadlineBefore == 0 {
			if err := l.slice(); err != nil || l.done {
				return err
			}
		}
		ids, all, err := l.liveIDs()
		if err != nil || !all {
			return err
		}
		step = l.byIDs(func(n int) ([]perdure.RunID, error) {
			for len(ids) > 0 && ids[0] >= l.before {
				ids = ids[1:]
			}
			for len(ids) > 0 && ids[len(ids)-1] <= l.f.After {
				ids = ids[:len(ids)-1]
			}
			return ids[:min(n, len(ids))], nil
		})
		return nil
	}
}

// liveIDs gives the tenant's live runs, newest first. all is false if there are more than PageRows.
func (l *runList) liveIDs() (ids []perdure.RunID, all bool, err error) {
	cond, args := "alarm_at IS NOT NULL", []any{string(l.t)}
	if l.f.DeadlineBefore > 0 {
		cond, args = "alarm_at<=?", append(args, int64(l.f.DeadlineBefore))
	}
	ids, err = l.find("SELECT id FROM runs WHERE tenant=? AND "+cond+" ORDER BY alarm_at, id"+atMost,
		append(args, int64(PageRows+1))...)
	slices.SortFunc(ids, func(a, b perdure.RunID) int { return strings.Compare(string(b), string(a)) })
	return ids, len(ids) <= PageRows, err
}
