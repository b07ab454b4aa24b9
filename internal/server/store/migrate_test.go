package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// onOld calls f with a store on each database as it was at a schema version.
func onOld(t *testing.T, version int, f func(t *testing.T, old Conn, d *dialect, at Options)) {
	t.Helper()
	files, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	apply := func(t *testing.T, s Conn, d *dialect) {
		t.Helper()
		for i := range files[:version] {
			text := strings.ReplaceAll(files[i].text, "{concurrently} ", "")
			if err := applyFile(s, d.schema.Replace(text), &files[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("SQLite", func(t *testing.T) {
		m, err := NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		apply(t, m.sess, sqliteDialect)
		f(t, m.sess, sqliteDialect, Options{Memory: m})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		url := pgtest.New(t)
		p, err := pg.Open(pg.Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		s := p.Writer(pg.WriterOptions{Timeout: writeTimeout})
		defer s.Close()
		apply(t, s, postgresDialect)
		f(t, s, postgresDialect, Options{URL: url})
	})
}

// laterRunColumns has the columns of runs that a schema version added after the first.
var laterRunColumns = map[string]int{"place": 11, "held_by": 19, "origin_id": 20, "first_epoch": 20, "inbox_from": 20,
	"copy_to": 20, "limited_at": 34}

// runsOfSchema is the table of runs at a schema version.
func runsOfSchema(version int) *table[perdure.Run] {
	var keep []int
	for i, c := range runTable.cols {
		if laterRunColumns[c] <= version {
			keep = append(keep, i)
		}
	}
	return chosen(runTable, keep)
}

// Schema 3 is from before webhooks.
func TestMigrationFromSchema3(t *testing.T) { onOld(t, 3, bringUp) }

func bringUp(t *testing.T, old Conn, d *dialect, at Options) {
	t.Helper()
	run := newRun("a", 1e15)
	run.Options.Webhook = `"https://example.com/a"`
	list := slices.Concat(runsOfSchema(3).insert(d, []perdure.Run{run}), oldKeyTable().insert(d, []perdure.Key{
		{ID: "admin", Tenant: "default", Platform: true,
			Scopes: []perdure.Scope{"runs:create", "runs:read", "runs:control", "worker:poll", "worker:report",
				"keys:admin"}},
		{ID: "worker", Tenant: "default", Platform: true, Scopes: []perdure.Scope{"worker:poll", "worker:report"}},
		{ID: "tenant", Tenant: "acme", Scopes: []perdure.Scope{"runs:create", "runs:read", "runs:control",
			"worker:poll", "worker:report", "keys:admin"}},
	}), []statement{{"INSERT INTO outbox (tenant,run_id,seq,target,type,state,attempts,created_at,alarm_at) " +
		"VALUES ('acme','a',1,'run','run:created','pending',0,1,1)", nil, 1}})
	if _, err := execAll(old, list); err != nil {
		t.Fatal(err)
	}
	if err := old.Commit(); err != nil {
		t.Fatal(err)
	}

	s := open(t, at)
	if err := s.View(t.Context(), func(v *View) error {
		for id, want := range map[string]bool{"admin": true, "worker": false, "tenant": false} {
			k, ok, err := v.Keys.Get(id)
			if err != nil || !ok || k.Allows(perdure.ScopeWebhooks) != want || !k.Allows(perdure.ScopePoll) ||
				k.Allows(perdure.ScopeKeys) != (id != "worker") {
				t.Errorf("key %s: scopes after the migration = %v (%v), want webhooks:admin %t", id, k.Scopes, err,
					want)
			}
		}
		notes, err := v.Outbox.OfRun(tenant, "a")
		if err != nil || len(notes) != 1 || notes[0].State != perdure.NoteDropped || notes[0].AlarmAt != 0 {
			t.Errorf("notifications of run a = %+v (%v), want one that is dropped and has no alarm", notes, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
		r, ok, err := tx.Runs.Get(tenant, "a")
		if !ok || r.Options.Webhook != run.Options.Webhook {
			t.Errorf("run a: found %t, webhook = %s, want %s", ok, r.Options.Webhook, run.Options.Webhook)
		}
		return err
	}))[0]
	if err != nil {
		t.Fatal(err)
	}
}

// oldKeyTable is the table of keys before schema 24, in which they got a parent.
func oldKeyTable() *table[perdure.Key] {
	keep := make([]int, len(apiKeyTable.cols)-1)
	for i := range keep {
		keep[i] = i
	}
	return chosen(apiKeyTable, keep)
}

// chosen is a table with some columns of another one.
func chosen[T any](t *table[T], keep []int) *table[T] {
	old := &table[T]{name: t.name, once: t.once, keys: t.keys, columns: func(c *columns, v *T) {
		all := columns{of: c.of}
		t.columns(&all, v)
		for _, i := range keep {
			c.list = append(c.list, all.list[i])
		}
	}}
	return old.prepared()
}

// Schema 4 is from before approvals. Keys with all scopes keep all of them, and no other key gets
// more.
func TestMigrationFromSchema4(t *testing.T) {
	const all = "runs:create runs:read runs:control worker:poll worker:report webhooks:admin keys:admin"
	keys := []perdure.Key{{ID: "admin", Platform: true}, {ID: "ops", Platform: true}, {ID: "tenant"}}
	for i := range keys {
		keys[i].Tenant = "default"
		for _, s := range strings.Fields(all) {
			if keys[i].ID != "ops" || s != "keys:admin" {
				keys[i].Scopes = append(keys[i].Scopes, perdure.Scope(s))
			}
		}
	}
	onOld(t, 4, func(t *testing.T, old Conn, d *dialect, at Options) {
		if _, err := execAll(old, oldKeyTable().insert(d, keys)); err != nil {
			t.Fatal(err)
		}
		if err := old.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := open(t, at).View(t.Context(), func(v *View) error {
			for _, before := range keys {
				k, ok, err := v.Keys.Get(before.ID)
				// Schema 5 adds runs:approve. Schema 11 adds audit:read to keys:admin, and gives
				// platform keys the scopes for what they could do without one. Schema 21 adds
				// kinds:admin to a key with every scope.
				more := map[string]int{"admin": 1 + 3 + 1, "ops": 2, "tenant": 1}[k.ID]
				if err != nil || !ok || k.Allows(perdure.ScopeApprove) != (k.ID == "admin") ||
					len(k.Scopes) != len(before.Scopes)+more || k.Full() != (k.ID == "admin") {
					t.Errorf("key %s: scopes after the migration = %v (%v), want %d", k.ID, k.Scopes, err,
						len(before.Scopes)+more)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// Schema 10 is from before the audit log. Platform keys keep what they could do without a scope,
// and the store counts as started before.
func TestPlatformKeysKeepTheirRights(t *testing.T) {
	onOld(t, 10, func(t *testing.T, old Conn, d *dialect, at Options) {
		keys := []perdure.Key{
			{ID: "later", Tenant: "default", Platform: true, CreatedAt: 2, Scopes: []perdure.Scope{perdure.ScopePoll}},
			{ID: "first", Tenant: "default", Platform: true, CreatedAt: 1, Scopes: []perdure.Scope{perdure.ScopeKeys}},
			{ID: "tenant", Tenant: "acme", Scopes: []perdure.Scope{perdure.ScopeKeys}},
			{ID: "reader", Tenant: "acme", Scopes: []perdure.Scope{perdure.ScopeRead}},
		}
		if _, err := execAll(old, oldKeyTable().insert(d, keys)); err != nil {
			t.Fatal(err)
		}
		if err := old.Commit(); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"later": "worker:poll platform:read platform:admin",
			"first":  "keys:admin platform:read platform:admin audit:read",
			"tenant": "keys:admin audit:read", "reader": "runs:read"}
		s := open(t, at)
		if err := s.View(t.Context(), func(v *View) error {
			for id, scopes := range want {
				k, _, err := v.Keys.Get(id)
				if got := strings.Trim(fmt.Sprint(k.Scopes), "[]"); err != nil || got != scopes {
					t.Errorf("key %s: scopes after the migration = %s, want %s (%v)", id, got, scopes, err)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
			first, err := tx.Meta.Get("bootstrap")
			if first != "first" {
				t.Errorf("the first key of the store = %q, want first", first)
			}
			return err
		}))[0]
		if err != nil {
			t.Fatal(err)
		}
	})
}
