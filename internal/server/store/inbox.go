package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// The inbox of a run has no size limit, so that nothing reads all of it. An operation asks for the
// items that it needs: the next signal of a name, items by number, a page after a number. Each of
// these queries has an index and a limit.
//
// An item that is stored as processing counts as handed over only while its epoch holds the run;
// see perdure.Item.StatusOf. So the end of an epoch writes no items.
//
// Two kinds of writes change an item. An operation stages the whole row together with the run,
// whose version guards both (Put). The watchdog, which only postpones an alarm, changes the item
// alone, and only if it is still as it was read (Move). Such a change neither blocks the run's
// operations nor overwrites what they did.

var itemTable = register(&table[perdure.Item]{
	name: "inbox", keys: []string{"tenant", "run_id", "seq"},
	columns: func(c *columns, i *perdure.Item) {
		text(c, "tenant", &i.Tenant)
		text(c, "run_id", &i.RunID)
		number(c, "seq", &i.Seq)
		text(c, "type", &i.Type)
		text(c, "status", &i.Status)
		number(c, "epoch", &i.Epoch)
		text(c, "wait_id", &i.WaitID)
		text(c, "name", &i.Name)
		text(c, "from_run", &i.From)
		text(c, "outcome", &i.Outcome)
		text(c, "data", &i.Data)
		number(c, "created_at", &i.CreatedAt)
		optional(c, "alarm_at", &i.AlarmAt)
		text(c, "error", &i.WatchdogError)
		optional(c, "watchdog_at", &i.WatchdogAt)
		number(c, "message_seq", &i.MessageSeq)
	},
})

type itemKey struct {
	runKey
	seq int64
}

// Inbox holds the items of the runs' inboxes.
type Inbox struct {
	in   *base
	runs *Runs
	rows stagedOfRuns[itemKey, perdure.Item]
	// was has the items that the batch changes, as the database has them.
	was   map[itemKey]perdure.Item
	moves added[itemMove]
}

func (repo *Inbox) open(in *base, runs *Runs) {
	repo.runs = runs
	repo.in, repo.rows.in, repo.rows.table, repo.moves.in = in, in, itemTable, in
	in.write(repo)
}

func (repo *Inbox) pending() int { return len(repo.rows.dirty) + len(repo.moves.list) }

// statements gives the statements that write the items. Moves come last and apply only to unchanged
// items, so that a decision of an operation in the batch takes precedence.
func (repo *Inbox) statements(*dialect) []statement {
	return append(repo.saveItems(), repo.saveMoves()...)
}

// openItem is the condition of every index over open items.
const openItem = "status IN ('pending','processing')"

// isOpen is openItem for a record.
func isOpen(i *perdure.Item) bool {
	return i.Status == perdure.ItemPending || i.Status == perdure.ItemProcessing
}

// Get gives the items of a run with the given numbers, as far as they exist.
func (repo *Inbox) Get(r *perdure.Run, seqs []int64) (map[int64]perdure.Item, error) {
	k := runKey{r.Tenant, r.ID}
	out := make(map[int64]perdure.Item, len(seqs))
	var want [][]any
	for _, seq := range slices.Compact(slices.Sorted(slices.Values(seqs))) {
		if i, ok, known := getRow(&repo.rows.staged, itemKey{k, seq}); ok {
			out[seq] = i
		} else if !known {
			want = append(want, []any{string(r.Tenant), string(r.ID), seq})
		}
	}
	for part := range repo.in.dialect.parts(repo.in.dialect.padded(want)) {
		if len(part) == 0 {
			continue
		}
		given := repo.in.dialect.among("inbox", []string{"tenant", "run_id", "seq"}, repo.in.dialect.rows(part))
		err := itemTable.query(repo.in.sess, given, repo.in.dialect.args(part), func(i *perdure.Item) error {
			absorbOfRun(&repo.rows, itemKey{k, i.Seq}, *i, true)
			out[i.Seq] = *i
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// List gives all items of a run. The status of each is the effective one; see
// perdure.Item.StatusOf.
func (repo *Inbox) List(t perdure.TenantID, run perdure.RunID) ([]perdure.Item, error) {
	r, ok, err := repo.runs.Get(t, run)
	if err != nil {
		return nil, err
	}
	var out []perdure.Item
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? ORDER BY seq", []any{string(t), string(run)},
		func(i *perdure.Item) error {
			if ok {
				i.Status = i.StatusOf(&r)
			}
			out = append(out, *i)
			return nil
		})
	return out, err
}

// Page gives items of a run after a number, in order, whatever their status. The status of each is the
// effective one; see perdure.Item.StatusOf.
func (repo *Inbox) Page(r *perdure.Run, after int64, limit int) (out []perdure.Item, err error) {
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND seq>? ORDER BY seq"+atMost,
		[]any{string(r.Tenant), string(r.ID), after, int64(limit)}, func(i *perdure.Item) error {
			i.Status = i.StatusOf(r)
			out = append(out, *i)
			return nil
		})
	return out, err
}

// After gives open items of a run after a number, in order.
func (repo *Inbox) After(r *perdure.Run, after int64, limit int) ([]perdure.Item, error) {
	return repo.where(r, "inbox_open", "seq>? ORDER BY seq", []any{after}, limit,
		func(i *perdure.Item) bool { return i.Seq > after })
}

// NextSignal gives the oldest open signal of a name that has satisfied no wait.
func (repo *Inbox) NextSignal(r *perdure.Run, name string) (i perdure.Item, ok bool, err error) {
	found, err := repo.where(r, "inbox_signals", "type='signal' AND wait_id='' AND name=? ORDER BY seq", []any{name},
		1, func(i *perdure.Item) bool {
			return i.Type == perdure.ItemSignal && i.WaitID == "" && i.Name == name
		})
	if err != nil || len(found) == 0 {
		return i, false, err
	}
	return found[0], true, nil
}

// NextMessage gives the oldest open message that a closed wait has given back.
func (repo *Inbox) NextMessage(r *perdure.Run) (i perdure.Item, ok bool, err error) {
	found, err := repo.where(r, "inbox_messages", "type='message' AND wait_id='' ORDER BY seq", nil, 1,
		func(i *perdure.Item) bool { return i.Type == perdure.ItemMessage && i.WaitID == "" })
	if err != nil || len(found) == 0 {
		return i, false, err
	}
	return found[0], true, nil
}

// UntoldWait gives the id of a wait whose end is in the inbox and was not handed over to the
// current holder. It is empty if there is none.
func (repo *Inbox) UntoldWait(r *perdure.Run) (wait string, err error) {
	// Epochs only increase: an item of another epoch is of an earlier one.
	for _, ask := range []struct {
		where string
		args  []any
		match func(*perdure.Item) bool
	}{
		{"wait_id<>'' AND status='pending' ORDER BY epoch, seq", nil,
			func(i *perdure.Item) bool { return i.Status == perdure.ItemPending }},
		{"wait_id<>'' AND status='processing' AND epoch<? ORDER BY epoch, seq", []any{r.Epoch},
			func(i *perdure.Item) bool { return i.Epoch < r.Epoch }},
	} {
		found, err := repo.where(r, "inbox_answers", ask.where, ask.args, 1,
			func(i *perdure.Item) bool { return i.WaitID != "" && ask.match(i) })
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return found[0].WaitID, nil
		}
	}
	return "", nil
}

// Continues gives open items of type continue, which report finished external work, in order.
func (repo *Inbox) Continues(r *perdure.Run, limit int) ([]perdure.Item, error) {
	return repo.where(r, "inbox_continues", "type='continue' ORDER BY seq", nil, limit,
		func(i *perdure.Item) bool { return i.Type == perdure.ItemContinue })
}

// Untaken gives open signals, messages and reports of finished external work, in order: also those that
// have ended a wait, if the run has not acknowledged them.
func (repo *Inbox) Untaken(r *perdure.Run, limit int) ([]perdure.Item, error) {
	return repo.where(r, "inbox_open", "type IN ('signal','message','continue') ORDER BY seq", nil, limit,
		func(i *perdure.Item) bool {
			return i.Type == perdure.ItemSignal || i.Type == perdure.ItemMessage || i.Type == perdure.ItemContinue
		})
}

// where reads the first open items of a run that meet a condition, in its order: committed rows,
// overlaid with the changes of the batch. match is the same condition for rows of the batch.
func (repo *Inbox) where(
	r *perdure.Run, index, where string, args []any, limit int, match func(*perdure.Item) bool,
) ([]perdure.Item, error) {
	if r.InboxOpen == 0 {
		return nil, nil
	}
	k := runKey{r.Tenant, r.ID}
	staged := 0
	for _, ik := range repo.rows.byRun[k] {
		if repo.rows.byKey[ik].dirty {
			staged++
		}
	}
	// Rows that the batch has changed may no longer match. Read more rows, so that enough are left.
	rest := fmt.Sprintf("%sWHERE tenant=? AND run_id=? AND %s AND %s LIMIT %d", repo.in.dialect.indexed(index),
		openItem, where, roundUp(limit+staged))
	var out []perdure.Item
	seen := make(map[int64]bool)
	err := itemTable.query(repo.in.sess, rest, append([]any{string(r.Tenant), string(r.ID)}, args...),
		func(i *perdure.Item) error {
			ik := itemKey{k, i.Seq}
			absorbOfRun(&repo.rows, ik, *i, true)
			seen[i.Seq] = true
			if cur, ok, _ := getRow(&repo.rows.staged, ik); ok && isOpen(&cur) && match(&cur) {
				out = append(out, cur)
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	for _, ik := range repo.rows.byRun[k] {
		if known := repo.rows.byKey[ik]; known.exists && known.dirty && !seen[ik.seq] && isOpen(&known.val) &&
			match(&known.val) {
			out = append(out, known.val)
		}
	}
	slices.SortFunc(out, func(a, b perdure.Item) int { return cmp.Compare(a.Seq, b.Seq) })
	return out[:min(len(out), limit)], nil
}

// Skipped gives the last items that the watchdog has skipped, oldest first.
func (repo *Inbox) Skipped(t perdure.TenantID, run perdure.RunID, limit int) (out []perdure.Item, err error) {
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND status='skipped' ORDER BY seq DESC"+atMost,
		[]any{string(t), string(run), int64(limit)}, func(i *perdure.Item) error {
			out = append(out, *i)
			return nil
		})
	slices.Reverse(out)
	return out, err
}

// Ringing gives inbox items whose alarm has passed.
func (repo *Inbox) Ringing(limit int) ([]perdure.Item, error) {
	where, args := fmt.Sprintf("WHERE alarm_at IS NOT NULL AND alarm_at<=? "+
		"ORDER BY alarm_at, tenant, run_id, seq LIMIT %d", limit), []any{int64(repo.in.Now)}
	if err := repo.in.tx.ownersFirst("SELECT tenant, run_id FROM inbox "+where, args); err != nil {
		return nil, err
	}
	var out []perdure.Item
	err := itemTable.query(repo.in.sess, where, args, func(i *perdure.Item) error {
		k := itemKey{runKey{i.Tenant, i.RunID}, i.Seq}
		if _, _, known := getRow(&repo.runs.rows, k.runKey); !known {
			return nil // added since; the next sweep handles it
		}
		absorbOfRun(&repo.rows, k, *i, true)
		if cur, ok, _ := getRow(&repo.rows.staged, k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= repo.in.Now {
			out = append(out, cur)
		}
		return nil
	})
	return out, err
}

// Put stages an inbox item.
func (repo *Inbox) Put(i perdure.Item) {
	k := itemKey{runKey{i.Tenant, i.RunID}, i.Seq}
	if known := repo.rows.byKey[k]; known != nil && known.exists && !known.dirty {
		if repo.was == nil {
			repo.was = make(map[itemKey]perdure.Item)
		}
		repo.was[k] = known.val
	}
	putOfRun(&repo.rows, k, i)
}

// saveItems gives the statements that write items. Consecutive items of a run that only change
// status, epoch and alarm, all to the same values, share one UPDATE.
func (repo *Inbox) saveItems() (out []statement) {
	rows := changedRows(&repo.rows.staged)
	slices.SortStableFunc(rows, func(a, b perdure.Item) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.RunID, b.RunID), cmp.Compare(a.Seq, b.Seq))
	})
	var single []perdure.Item
	for len(rows) > 0 {
		n := 0
		for n < len(rows) && repo.onlyMoved(&rows[0], &rows[n], int64(n)) {
			n++
		}
		if n < 4 { // a range of its own is not worth a statement
			n = max(n, 1)
			single = append(single, rows[:n]...)
		} else {
			first, last := &rows[0], &rows[n-1]
			out = append(out, statement{"UPDATE inbox SET status=?, epoch=?, alarm_at=? WHERE tenant=? AND run_id=? " +
				"AND seq>=? AND seq<=?",
				[]any{first.Status, first.Epoch, orNull(first.AlarmAt), string(first.Tenant), string(first.RunID),
					first.Seq, last.Seq}, anyNumber})
		}
		rows = rows[n:]
	}
	return append(itemTable.insert(repo.in.dialect, single), out...)
}

// onlyMoved tells whether an item is the nth after the first one and is stored. It may differ from
// its stored row only by the status, epoch and alarm of the first one.
func (repo *Inbox) onlyMoved(first, i *perdure.Item, nth int64) bool {
	was, ok := repo.was[itemKey{runKey{i.Tenant, i.RunID}, i.Seq}]
	was.Status, was.Epoch, was.AlarmAt = first.Status, first.Epoch, first.AlarmAt
	return ok && was == *i && i.Tenant == first.Tenant && i.RunID == first.RunID && i.Seq == first.Seq+nth
}

// An itemMove changes status, epoch, alarm and the watchdog's fields of an item that has not
// changed since it was read.
type itemMove struct{ was, is perdure.Item }

// Move stages a change of an item's status, epoch, alarm and error without a change of its run. It
// applies only if the item is unchanged and its alarm has passed. An item that was acknowledged or
// handed over meanwhile stays as it is. A row that another session has locked is skipped, and the
// next sweep finds its alarm again.
func (repo *Inbox) Move(was, is perdure.Item) { addRows(&repo.moves, itemMove{was, is}) }

// saveMoves gives the statements of moved items. Consecutive items that change in the same way
// share one.
func (repo *Inbox) saveMoves() (out []statement) {
	moves := slices.Clone(repo.moves.list)
	slices.SortStableFunc(moves, func(a, b itemMove) int {
		return cmp.Or(cmp.Compare(a.was.Tenant, b.was.Tenant), cmp.Compare(a.was.RunID, b.was.RunID),
			cmp.Compare(a.was.Seq, b.was.Seq))
	})
	for len(moves) > 0 {
		first, n := &moves[0], 1
		for n < len(moves) && first.alike(&moves[n], int64(n)) {
			n++
		}
		run := []any{string(first.was.Tenant), string(first.was.RunID)}
		// The outer statement and the subquery both have the range of items, so that neither reads
		// the whole inbox. alarm_at+0 keeps planners from using the index of alarms.
		run = append(run, first.was.Seq, moves[n-1].was.Seq)
		out = append(out, statement{"UPDATE inbox SET status=?, epoch=?, alarm_at=?, error=?, watchdog_at=? " +
			"WHERE tenant=? AND run_id=? AND seq>=? AND seq<=? AND seq IN (SELECT seq FROM inbox " +
			"WHERE tenant=? AND run_id=? AND seq>=? AND seq<=? AND status=? AND epoch=? AND alarm_at+0<=?" +
			repo.in.dialect.skipLocked + ")",
			slices.Concat([]any{first.is.Status, first.is.Epoch, orNull(first.is.AlarmAt), first.is.WatchdogError,
				orNull(first.is.WatchdogAt)}, run, run,
				[]any{first.was.Status, first.was.Epoch, int64(repo.in.Now)}), anyNumber})
		moves = moves[n:]
	}
	return out
}

// alike tells whether o is the move of the nth item after this one, with the same change.
func (m *itemMove) alike(o *itemMove, nth int64) bool {
	return o.was.Tenant == m.was.Tenant && o.was.RunID == m.was.RunID && o.was.Seq == m.was.Seq+nth &&
		o.was.Status == m.was.Status && o.was.Epoch == m.was.Epoch &&
		o.is.Status == m.is.Status && o.is.Epoch == m.is.Epoch && o.is.AlarmAt == m.is.AlarmAt &&
		o.is.WatchdogError == m.is.WatchdogError &&
		o.is.WatchdogAt == m.is.WatchdogAt
}
