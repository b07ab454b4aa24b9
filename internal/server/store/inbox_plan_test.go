package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// planRecorder records which index SQLite uses for each query of the inbox, and how many rows it
// gives.
type planRecorder struct {
	Conn
	plan string
	rows int
}

func (p *planRecorder) Query(query string, args []any, row func(scan func(...any) error) error) error {
	if !strings.Contains(query, " FROM inbox ") || strings.HasPrefix(query, "EXPLAIN") {
		return p.Conn.Query(query, args, row)
	}
	err := p.Conn.Query("EXPLAIN QUERY PLAN "+query, args, func(scan func(...any) error) error {
		var id, parent, unused int64
		var detail string
		err := scan(&id, &parent, &unused, &detail)
		p.plan += detail + "; "
		return err
	})
	if err != nil {
		return err
	}
	return p.Conn.Query(query, args, func(scan func(...any) error) error {
		p.rows++
		return row(scan)
	})
}

// Every query of an inbox uses an index, does not sort, and reads no more than its limit.
func TestInboxQueriesUseTheirIndexes(t *testing.T) {
	p := &planRecorder{}
	s := open(t, Options{Hooks: Hooks{Wrap: func(s Conn) Conn { p.Conn = s; return p }}})
	must(t, s, insert("x"))
	must(t, s, opFunc(func(tx *Tx) error {
		for seq := range int64(400) {
			i := perdure.Item{Tenant: tenant, RunID: ref("x"), Seq: seq + 1, Type: perdure.ItemSignal,
				Status: perdure.ItemPending, Name: fmt.Sprint(seq % 2), Data: "1", AlarmAt: tx.Now.Add(1)}
			switch {
			case seq < 100:
				i.Status, i.AlarmAt = perdure.ItemDone, 0
			case seq < 200:
				i.Status, i.Epoch, i.WaitID = perdure.ItemProcessing, 3, fmt.Sprint("w", seq)
			case seq == 398:
				i.Type = perdure.ItemMessage
			case seq == 399:
				i.Type = perdure.ItemContinue
			}
			tx.Inbox.Put(i)
		}
		r, _, err := tx.Runs.Get(tenant, ref("x"))
		r.Version++
		r.InboxOpen, r.InboxSeq, r.Epoch = 300, 400, 3
		tx.Runs.Put(r, nil)
		return err
	}))
	for _, c := range []struct {
		what, index string
		rows        int
		ask         func(tx *Tx, r *perdure.Run) (int, error)
		found       int
	}{
		{"a page", "inbox_open", 8, func(tx *Tx, r *perdure.Run) (int, error) {
			l,
				err := tx.Inbox.After(r, 0, 8)
			return len(l), err
		}, 8},
		{"the next signal", "inbox_signals", 1, func(tx *Tx, r *perdure.Run) (int, error) {
			i, _, err := tx.Inbox.NextSignal(r, "1")
			return int(i.Seq), err
		}, 202},
		{"the next message", "inbox_messages", 1, func(tx *Tx, r *perdure.Run) (int, error) {
			i, _, err := tx.Inbox.NextMessage(r)
			return int(i.Seq), err
		}, 399},
		{"an untold wait", "inbox_answers", 0,
			func(tx *Tx, r *perdure.Run) (int, error) { w, err := tx.Inbox.UntoldWait(r); return len(w), err }, 0},
		{"work outside", "inbox_continues", 1,
			func(tx *Tx, r *perdure.Run) (int, error) { l, err := tx.Inbox.Continues(r, 256); return len(l), err }, 1},
		{"items by number", "PRIMARY KEY", 2, func(tx *Tx, r *perdure.Run) (int, error) {
			l, err := tx.Inbox.Get(r, []int64{7, 300})
			return len(l), err
		}, 2},
	} {
		must(t, s, opFunc(func(tx *Tx) error {
			r, _, err := tx.Runs.Get(tenant, ref("x"))
			if err != nil {
				return err
			}
			p.plan, p.rows = "", 0
			found, err := c.ask(tx, &r)
			if found != c.found || p.rows != c.rows {
				t.Errorf("%s: found %d by reading %d rows, want %d by %d", c.what, found, p.rows, c.found, c.rows)
			}
			if !strings.Contains(p.plan, c.index) || strings.Contains(p.plan, "TEMP B-TREE") ||
				strings.Contains(p.plan, "SCAN inbox") {
				t.Errorf("%s: the plan is %q, want the index %s", c.what, p.plan, c.index)
			}
			return err
		}))
	}
}

// PostgreSQL moves a range of items by their numbers. It reads neither the rest of the inbox nor
// all due items.
func TestPostgresMovesItemsByRange(t *testing.T) {
	s := open(t, Options{URL: pool.New(t)})
	must(t, s, insert("x"))
	for part := range 10 {
		must(t, s, opFunc(func(tx *Tx) error {
			for i := range 300 {
				n := int64(part*300 + i + 1)
				tx.Inbox.Put(perdure.Item{Tenant: tenant, RunID: ref("x"), Seq: n, Type: perdure.ItemSignal,
					Status: perdure.ItemPending, Data: "1", AlarmAt: 1})
			}
			return nil
		}))
	}
	plan := func(tx *Tx, st statement) (out string) {
		t.Helper()
		err := tx.s.lanes[LaneWork].write.Query("EXPLAIN "+st.text, st.args, func(scan func(...any) error) error {
			var line string
			err := scan(&line)
			out += line + "\n"
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	errs := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
		was := perdure.Item{Tenant: tenant, RunID: ref("x"), Seq: 7, Type: perdure.ItemSignal,
			Status: perdure.ItemPending, AlarmAt: 1}
		is := was
		is.AlarmAt = tx.Now.Add(1)
		tx.Inbox.Move(was, is)
		p := plan(tx, tx.Inbox.saveMoves()[0])
		if n := strings.Count(p, "seq >="); n != 2 || strings.Contains(p, "inbox_alarm") ||
			strings.Contains(p, "Seq Scan") {
			t.Errorf("the plan of putting off an item is\n%swant both halves by the range of numbers", p)
		}
		return perdure.Errorf(perdure.CodeInvalid, "nothing is written")
	}))
	if perdure.CodeOf(errs[0]) != perdure.CodeInvalid {
		t.Errorf("explaining: %v", errs[0])
	}
}
