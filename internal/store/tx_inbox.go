package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/perdure/perdure"
)

// OpenItems gives a run's inbox items that are neither done nor skipped, in order.
func (tx *Tx) OpenItems(r *perdure.Run) ([]perdure.Item, error) {
	k := runKey{r.Tenant, r.ID}
	if r.InboxOpen == 0 {
		return nil, nil
	}
	if !tx.haveItems[k] {
		err := itemTable.query(tx.sess, "WHERE tenant=? AND run_id=? AND status IN ('pending','processing')", []any{string(r.Tenant), string(r.ID)},
			func(i *perdure.Item) error {
				tx.items.absorb(itemKey{k, i.Seq}, *i, true)
				return nil
			})
		if err != nil {
			return nil, err
		}
		tx.haveItems[k] = true
	}
	var out []perdure.Item
	for i := range tx.items.of(k) {
		if i.Status == perdure.ItemPending || i.Status == perdure.ItemProcessing {
			out = append(out, *i)
		}
	}
	slices.SortFunc(out, func(a, b perdure.Item) int { return int(a.Seq - b.Seq) })
	return out, nil
}

// RingingItems gives inbox items whose alarm has rung.
func (tx *Tx) RingingItems(limit int) ([]perdure.Item, error) {
	where, args := fmt.Sprintf("WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, run_id, seq LIMIT %d", limit), []any{int64(tx.Now)}
	if err := tx.ownersFirst("SELECT tenant, run_id FROM inbox "+where, args); err != nil {
		return nil, err
	}
	var out []perdure.Item
	err := itemTable.query(tx.sess, where, args, func(i *perdure.Item) error {
		k := itemKey{runKey{i.Tenant, i.RunID}, i.Seq}
		if _, _, known := tx.runs.get(k.runKey); !known {
			return nil // it has come since; so will the next sweep
		}
		tx.items.absorb(k, *i, true)
		if cur, ok, _ := tx.items.get(k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= tx.Now {
			out = append(out, cur)
		}
		return nil
	})
	return out, err
}

// ownersFirst reads the runs that a query names. What is found by anything but its run is read after its run:
// then a change between the two is a change of the run, and the batch does not hold. The other way round it
// would go unnoticed.
func (tx *Tx) ownersFirst(query string, args []any) error {
	owners := make(map[perdure.TenantID][]perdure.RunID)
	err := tx.sess.Query(query, args, func(scan func(...any) error) error {
		var k runKey
		err := scan(&k.t, &k.r)
		owners[k.t] = append(owners[k.t], k.r)
		return err
	})
	for _, t := range slices.Sorted(maps.Keys(owners)) {
		if err == nil {
			err = tx.Prefetch(t, owners[t])
		}
	}
	return err
}

// PutItem stages an inbox item.
func (tx *Tx) PutItem(i perdure.Item) {
	k := itemKey{runKey{i.Tenant, i.RunID}, i.Seq}
	if sl := tx.items.slots[k]; sl != nil && sl.exists && !sl.dirty {
		if tx.itemsWere == nil {
			tx.itemsWere = make(map[itemKey]perdure.Item)
		}
		tx.itemsWere[k] = sl.val
	}
	tx.items.put(tx, k, i)
}

// saveItems gives the statements that write inbox items. Those of a run that are handed over or done together are many
// that change in the same way: they are changed together.
func (tx *Tx) saveItems() (out []statement) {
	rows := tx.items.changed()
	slices.SortStableFunc(rows, func(a, b perdure.Item) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.RunID, b.RunID), cmp.Compare(a.Seq, b.Seq))
	})
	var single []perdure.Item
	for len(rows) > 0 {
		n := 0
		for n < len(rows) && tx.onlyMoved(&rows[0], &rows[n], int64(n)) {
			n++
		}
		if n < 4 { // not worth a statement
			n = max(n, 1)
			single = append(single, rows[:n]...)
		} else {
			first, last := &rows[0], &rows[n-1]
			out = append(out, statement{"UPDATE inbox SET status=?, epoch=?, alarm_at=? WHERE tenant=? AND run_id=? AND seq>=? AND seq<=?",
				[]any{first.Status, first.Epoch, orNull(first.AlarmAt), string(first.Tenant), string(first.RunID), first.Seq, last.Seq}, anyNumber})
		}
		rows = rows[n:]
	}
	return append(itemTable.insert(tx.s.dialect, single), out...)
}

// onlyMoved tells whether an item is the nth after the first, and both are in the database and become the same.
func (tx *Tx) onlyMoved(first, i *perdure.Item, nth int64) bool {
	was, ok := tx.itemsWere[itemKey{runKey{i.Tenant, i.RunID}, i.Seq}]
	was.Status, was.Epoch, was.AlarmAt = first.Status, first.Epoch, first.AlarmAt
	return ok && was == *i && i.Tenant == first.Tenant && i.RunID == first.RunID && i.Seq == first.Seq+nth
}
