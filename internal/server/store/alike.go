package store

import (
	"slices"

	"github.com/perdure/perdure/internal/server/store/pg"
)

// Values that rows share.
//
// PostgreSQL gets the rows of a bulk write as an array for each column, and makes a table of every
// array before it writes the first row. That is a third of what a batch of new runs costs it. But most
// columns have the same value in all rows of a batch: runs that are accepted together have the same
// state, times and mostly kind. Such a value is sent once, as an argument of its own.
//
// Which columns are sent so is part of a statement's text, and the text is prepared. The columns are
// therefore put into a few groups for each table. A group is sent as single values if that holds for
// all its columns. The number of texts is bounded by the groups, whatever is written. A key that an
// UPDATE finds its rows by is in no group: the planner knows how many rows an array finds, and could
// mistake a single value for a small part of the table.

// fewAlike is the number of rows from which on it is worth to compare them.
const fewAlike = 8

// A grouping gives the group of each column, counted from 1. The columns of group 0 are always sent as
// arrays.
type grouping []uint8

// group puts columns into groups.
func group(cols []string, groups [][]string) grouping {
	out := make(grouping, len(cols))
	for i, c := range cols {
		out[i] = uint8(1 + slices.IndexFunc(groups, func(list []string) bool { return slices.Contains(list, c) }))
	}
	return out
}

// A sharing is a set of groups, as bits. Each column in them has one value in all rows.
type sharing uint8

func (s sharing) has(group uint8) bool { return group > 0 && s&(1<<group) != 0 }

// alike gives the groups whose columns have one value each in these rows.
func (g grouping) alike(d *dialect, part [][]any) (all sharing) {
	if d.shared == nil || len(part) < fewAlike {
		return 0
	}
	for _, group := range g {
		if group > 0 {
			all |= 1 << group
		}
	}
	for _, row := range part[1:] {
		for i, group := range g {
			if all.has(group) && row[i] != part[0][i] {
				if all &^= 1 << group; all == 0 {
					return 0
				}
			}
		}
	}
	return all
}

// given is the relation of given rows. The columns in the groups of all have one value in all of them.
func (g grouping) given(d *dialect, part [][]any, all sharing) string {
	if all == 0 {
		return d.rows(part)
	}
	return d.shared(part[0], g, all)
}

// args are the arguments of given, without those of the columns for which skip is set. All of them are
// columns of the rows, so that the rows of a statement are known.
func (g grouping) args(d *dialect, part [][]any, all sharing, skip []bool) []any {
	arrays := d.args(part)
	if all == 0 && skip == nil {
		return arrays
	}
	args := make([]any, 0, len(arrays))
	for i, group := range g {
		if all.has(group) && !(skip != nil && skip[i]) {
			arrays[i].(*pg.Column).Once = true
			args = append(args, arrays[i])
		}
	}
	for i, group := range g {
		if !all.has(group) && !(skip != nil && skip[i]) {
			args = append(args, arrays[i])
		}
	}
	return args
}

// Columns of runs that are often alike. Of those that an insert or an update does not write it leaves
// out the names.
var alikeRuns = [][]string{
	{"class", "priority", "thread_id", "metadata", "max_attempts", "place", "state", "version", "epoch", "attempt",
		"deliveries", "ready", "heard", "seq", "worker"},
	{"created_at", "deadline_at", "ready_at", "granted_at", "first_grant_at", "lease_until", "started_at", "seen_at",
		"finished_at", "alarm_at"},
	{"strikes", "turn", "resumed", "moved_at", "wait_at", "beat_at", "deferred_at", "activity", "said", "inbox_seq",
		"inbox_open", "journal_seq", "waits_open", "children", "late", "watched", "cascade", "held_by", "limited_at",
		"continuation_of", "retry_of", "origin_id", "first_epoch", "inbox_from", "copy_to"},
}

// alikeNewRuns are further columns that are often alike where runs are inserted.
var alikeNewRuns = append(slices.Clone(alikeRuns), []string{"tenant", "kind", "queue", "parent_id", "rest"})
