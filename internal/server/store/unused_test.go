package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// Unused rows, and the threads of a list, are found by an index and not sorted.
func TestUnusedRowsAreIndexed(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		const many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<5000) INSERT INTO "
		for table, rows := range map[string]string{
			"workers": "(tenant,id,queues,slots,seen_at,offline) SELECT 'acme','w'||i,'[]',1,1000+i,1 FROM n",
			"keys": "(id,tenant,name,hash,platform,scopes,created_at,expires_at,revoked_at) " +
				"SELECT 'k'||i,'acme','k','h'||i,0,'',1,1000+i,1000+i FROM n",
			"threads": "(tenant,id,metadata,created_at,version,active,seq,updated_at) " +
				"SELECT 'acme','t'||i,'{}',1000+i,1,'',0,1000+i FROM n",
			"webhooks": "(tenant,id,scope,thread_id,url,events,description,secret_version,rotated_at,created_at," +
				"disabled_at,disabled_reason,failing_at,deleted_at,version,unused_at) " +
				"SELECT 'acme','h'||i,'run','','u','','',1,0,1,0,'',0,0,1,1000+i FROM n",
			"outbox": "(tenant,run_id,seq,target,type,state,attempts,created_at) " +
				"SELECT 'acme','r'||i,1,'h'||i,'t','delivered',1,1 FROM n",
		} {
			execDirect(t, s, many+table+" "+rows)
			if s.Shared() {
				execDirect(t, s, "ANALYZE "+table)
			}
		}
		for _, c := range []struct {
			what    string
			indexes []string
			ask     func(tx *Tx) error
		}{
			{"workers", []string{"workers_offline"},
				func(tx *Tx) error { _, err := tx.Workers.DropUnused(1010, 5); return err }},
			{"keys", []string{"keys_revoked", "keys_expired"},
				func(tx *Tx) error { _, err := tx.Keys.DropUnused(1010, 5); return err }},
			{"webhooks", []string{"webhooks_unused", "outbox_target"}, func(tx *Tx) error {
				_, _, err := tx.Webhooks.Unused(HookCursor{At: 1002}, 1010, 5)
				return err
			}},
			{"threads", []string{"threads_updated"}, func(tx *Tx) error {
				_, _, err := newView(tx.Now, tx.dialect, tx.sess).Threads.Page(tenant,
					Page{After: "5000.t9", Limit: 5}, true)
				return err
			}},
		} {
			var plan string
			must(t, s, opFunc(func(tx *Tx) error {
				w := &queryRecorder{Conn: tx.sess}
				tx.sess = w
				err := c.ask(tx)
				tx.sess = w.Conn
				plan = plans(t, s, w)
				return err
			}))
			for _, index := range c.indexes {
				if !strings.Contains(plan, index) {
					t.Errorf("%s: no index %s in the plan\n%s", c.what, index, plan)
				}
			}
			for _, bad := range []string{"ORDER BY", "SCAN " + c.what + "\n", "Seq Scan on " + c.what, "Sort"} {
				if strings.Contains(plan, bad) {
					t.Errorf("%s: %q in the plan\n%s", c.what, bad, plan)
				}
			}
		}
	})
}

// Schema 16 is from before threads had titles. They are still listed, and webhooks of runs stay
// while a run from before the migration is live.
func TestMigrationFromSchema16(t *testing.T) {
	onOld(t, 16, func(t *testing.T, old Conn, d *dialect, at Options) {
		const first = 1000
		run := newRun("a", 5000)
		run.DeadlineAt = 9000
		list := runsOfSchema(16).insert(d, []perdure.Run{run})
		add := func(text string, args ...any) { list = append(list, statement{fmt.Sprintf(text, args...), nil, 1}) }
		for i, metadata := range []string{"", `{"title":"named"}`, ""} {
			add("INSERT INTO threads (tenant,id,metadata,created_at,version,active,seq) "+
				"VALUES ('acme','t%d','%s',%d,1,'',%d)", i, metadata, first+i, 2-i)
		}
		add("INSERT INTO messages (tenant,thread_id,seq,role,content,metadata,run_id,at) "+
			"VALUES ('acme','t0',1,'user','\"how are you?\"','','',%d)", first+10)
		add("INSERT INTO messages (tenant,thread_id,seq,role,content,metadata,run_id,at) "+
			"VALUES ('acme','t0',2,'assistant','\"well\"','','',%d)", first+20)
		add("INSERT INTO messages (tenant,thread_id,seq,role,content,metadata,run_id,at) "+
			"VALUES ('acme','t1',1,'user','\"hello\"','','',%d)", first+30)
		for id, scope := range map[string]string{"wh_run": "run", "wh_here": "tenant", "wh_gone": "tenant"} {
			deleted := 0
			if id == "wh_gone" {
				deleted = 7
			}
			add("INSERT INTO webhooks "+
				"(tenant,id,scope,thread_id,url,events,description,secret_version,rotated_at,created_at,"+
				"disabled_at,disabled_reason,failing_at,deleted_at,version) "+
				"VALUES ('acme','%s','%s','','','','',1,0,5,0,'',0,%d,1)", id, scope, deleted)
		}
		if _, err := execAll(old, list); err != nil {
			t.Fatal(err)
		}
		if err := old.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := open(t, at).View(t.Context(), func(v *View) error {
			threads, _, err := v.Threads.Page(tenant, Page{Limit: 10}, true)
			var got []string
			for _, th := range threads {
				last, err := v.Threads.LastMessages(tenant, []perdure.ThreadID{th.ID})
				got = append(got, fmt.Sprintf("%s %q %s %q %d %v", th.ID, th.Title, last[th.ID].Role, last[th.ID].Text,
					th.UpdatedAt, err))
			}
			want := []string{`t1 "named" user "hello" 1030 <nil>`, `t0 "how are you?" assistant "well" 1020 <nil>`,
				`t2 ""  "" 1002 <nil>`}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("threads of an old store:\n%s\nwant\n%s\n(%v)", strings.Join(got, "\n"),
					strings.Join(want, "\n"), err)
			}
			for id, want := range map[perdure.WebhookID]perdure.Instant{"wh_run": 9000, "wh_here": 0, "wh_gone": 7} {
				w, _, err := v.Webhooks.Get(tenant, id)
				if err != nil || w.UnusedAt != want {
					t.Errorf("webhook %s is unused since %d, want %d (%v)", id, int64(w.UnusedAt), int64(want), err)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// Threads of children are left out of a list, however many there are in a row. A page that would read too many of
// them is short, and its cursor goes on behind them.
func TestThreadPagesWithoutChildren(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		parent := perdure.RunID("01a1dd64-c4a5-7000-8000-000000000001")
		metadata := perdure.Object(perdure.ThreadParent, string(parent), "key", strings.Repeat("k", 200))
		var want []perdure.ThreadID
		put := func(n int, id string, metadata perdure.Value) {
			must(t, s, opFunc(func(tx *Tx) error {
				for i := range n {
					th := perdure.Thread{Tenant: tenant, ID: perdure.ThreadID(fmt.Sprintf("%s%04d", id, i)), Title: "x",
						CreatedAt: tx.Now, Metadata: metadata}
					if tx.Threads.Put(th); id[0] == 'p' {
						want = append(want, th.ID)
					}
				}
				return nil
			}))
		}
		put(100, "p1", "")
		put(threadRows+100, "c1", metadata)
		put(100, "p2", perdure.Object("about", "x", perdure.ThreadParent, string(parent)))
		put(70, "c2", metadata)
		put(10, "p3", perdure.Object(perdure.ThreadParent, `an "id`))
		slices.Reverse(want)
		var got []perdure.ThreadID
		short := 0
		if err := s.View(t.Context(), func(v *View) error {
			for next := ""; ; {
				list, more, err := v.Threads.Page(tenant, Page{After: next, Limit: 30}, false)
				for _, th := range list {
					got = append(got, th.ID)
				}
				if len(list) < 30 {
					short++
				}
				if next = more; err != nil || next == "" {
					return err
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d threads on all pages without children: %v, want %d, newest first", len(got), got, len(want))
		}
		if short != 2 {
			t.Errorf("%d pages are short, want the one that has read %d threads and the last one", short, threadRows)
		}
		if err := s.View(t.Context(), func(v *View) error {
			list, _, err := v.Threads.Page(tenant, Page{Limit: 100}, true)
			for i, th := range list {
				of := perdure.RunID("")
				if i >= 10 && i < 80 {
					of = parent
				}
				if th.Parent != of {
					t.Errorf("thread %s: parent %q, want %q", th.ID, th.Parent, of)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// Pages of threads are the same on both databases, also where many have the same instant.
func TestThreadPagesByActivity(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		var want []perdure.ThreadID
		for round := range 3 {
			must(t, s, opFunc(func(tx *Tx) error {
				for i := range 100 {
					id := perdure.ThreadID(fmt.Sprintf("t%d%02d", round, i))
					tx.Threads.Put(perdure.Thread{Tenant: tenant, ID: id, Title: string(id), CreatedAt: tx.Now})
					want = append(want, id)
				}
				tx.Threads.Put(perdure.Thread{Tenant: "other", ID: perdure.ThreadID(fmt.Sprint("x", round)),
					Title: "x", CreatedAt: tx.Now})
				return nil
			}))
		}
		slices.Reverse(want)
		var got []perdure.ThreadID
		if err := s.View(t.Context(), func(v *View) error {
			for next := ""; ; {
				list, more, err := v.Threads.Page(tenant, Page{After: next, Limit: 70}, true)
				for _, th := range list {
					got = append(got, th.ID)
				}
				if next = more; err != nil || next == "" {
					return err
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d threads on all pages: %v, want %d, newest first", len(got), got, len(want))
		}
	})
}
