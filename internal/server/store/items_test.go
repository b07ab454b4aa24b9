package store

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// writeCounter counts the statements that write the inbox.
type writeCounter struct {
	Conn
	n map[string]int
}

func (w *writeCounter) note(text string) {
	for _, verb := range []string{"INSERT INTO inbox", "UPDATE inbox"} {
		if strings.HasPrefix(strings.Replace(text, sqliteDialect.orFail, "", 1), verb) {
			w.n[verb]++
		}
	}
}

func (w *writeCounter) Exec(query string, args []any) (int64, error) {
	w.note(query)
	return w.Conn.Exec(query, args)
}

// ExecAll counts the statements of a whole transaction. A session that is no pipeliner executes
// them one by one.
func (w *writeCounter) ExecAll(list iter.Seq2[string, []any]) (counts []int64, err error) {
	if p, ok := w.Conn.(pipeliner); ok {
		for text := range list {
			w.note(text)
		}
		return p.ExecAll(list)
	}
	if err := w.Begin(); err != nil {
		return nil, err
	}
	for text, args := range list {
		n, err := w.Exec(text, args)
		if err != nil {
			return nil, err
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// Consecutive items with the same change share one statement. Other items are written row by row.
func TestConsecutiveItemsShareOneUpdate(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		n := make(map[string]int)
		at.Hooks.Wrap = func(s Conn) Conn { return &writeCounter{s, n} }
		s := open(t, at)
		const items = 20
		must(t, s, insert("x"), insert("y"))
		for _, id := range []string{"x", "y"} {
			must(t, s, opFunc(func(tx *Tx) error {
				for i := range int64(items) {
					tx.Inbox.Put(perdure.Item{Tenant: tenant, RunID: ref(id), Seq: i + 1, Type: "signal",
						Status: perdure.ItemPending, Name: fmt.Sprint(id, i), Data: "1", AlarmAt: tx.Now.Add(1)})
				}
				r, _, err := tx.Runs.Get(tenant, ref(id))
				r.Version++
				r.InboxOpen = items
				tx.Runs.Put(r, nil)
				return err
			}))
		}
		// move changes those items of run x for which change returns true.
		move := func(change func(i *perdure.Item) bool) {
			t.Helper()
			clear(n)
			must(t, s, opFunc(func(tx *Tx) error {
				r, _, err := tx.Runs.Get(tenant, ref("x"))
				if err != nil {
					return err
				}
				open, err := tx.Inbox.After(&r, 0, 100)
				for _, i := range open {
					if change(&i) {
						tx.Inbox.Put(i)
					}
				}
				return err
			}))
		}
		is := func(what, want string, inserts bool, updates int) {
			t.Helper()
			got := ""
			for i := range items {
				got += fmt.Sprint(count(t, s,
					"SELECT CASE status WHEN 'pending' THEN 0 WHEN 'processing' THEN epoch ELSE 9 END FROM inbox "+
						"WHERE tenant='acme' AND run_id='x' AND seq=?", int64(i+1)))
			}
			if got != want || n["INSERT INTO inbox"] > 0 != inserts || n["UPDATE inbox"] != updates {
				t.Errorf("%s: statuses of the items = %s, want %s; statements: %v, want inserts %t and %d updates",
					what, got, want, n, inserts, updates)
			}
			if m := count(t, s, "SELECT count(*) FROM inbox WHERE run_id='y' AND status='pending' AND name<>'' "+
				"AND alarm_at IS NOT NULL"); m != items {
				t.Errorf("%s: %d items of run y are unchanged, want %d", what, m, items)
			}
		}
		move(func(i *perdure.Item) bool { i.Status, i.Epoch = perdure.ItemProcessing, 1; return true })
		is("handed over", "11111111111111111111", false, 1)
		move(func(i *perdure.Item) bool { // two ranges with a gap, and a single item
			i.Status, i.AlarmAt = perdure.ItemDone, 0
			return i.Seq <= 6 || i.Seq >= 9 && i.Seq <= 14 || i.Seq == 17
		})
		is("some done", "99999911999999119111", true, 2)
		move(func(i *perdure.Item) bool { // another column changes too
			i.Status, i.Epoch, i.WaitID = perdure.ItemProcessing, 2, fmt.Sprint("w", i.Seq)
			return true
		})
		is("each in its own way", "99999922999999229222", true, 0)
		got := count(t, s, "SELECT count(*) FROM inbox WHERE run_id='x' AND wait_id='w20' AND name='x19'")
		if got != 1 {
			t.Errorf("items with wait_id w20 and name x19 = %d, want 1", got)
		}
		got = count(t, s, "SELECT count(*) FROM inbox WHERE run_id='x' AND status='done' AND alarm_at IS NULL")
		if got != 13 {
			t.Errorf("%d items are done without an alarm, want 13", got)
		}
	})
}
