package store

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/pgtest"
)

// A store from before there were webhooks.
func TestAStoreOfSchema3IsBroughtUp(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		m, err := NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		bringUp(t, m.sess, sqliteDialect, Options{Memory: m})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		url := pgtest.New(t)
		p, err := openPostgres(url)
		if err != nil {
			t.Fatal(err)
		}
		s := p.writer()
		defer s.Close()
		bringUp(t, s, postgresDialect, Options{URL: url})
	})
}

func bringUp(t *testing.T, old Session, d *dialect, at Options) {
	t.Helper()
	files, err := schema.ReadDir("schema")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files[:3] {
		text, err := schema.ReadFile("schema/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := applyFile(old, d.schema.Replace(string(text)), i+1); err != nil {
			t.Fatal(err)
		}
	}
	run := newRun("a", 1e15)
	run.Options.Webhook = `"https://example.com/a"`
	list := slices.Concat(runTable.insert(d, []perdure.Run{run}), keysTable.insert(d, []perdure.Key{
		{ID: "admin", Tenant: "default", Platform: true, Scopes: []perdure.Scope{"runs:create", "runs:read", "runs:control", "worker:poll", "worker:report", "keys:admin"}},
		{ID: "worker", Tenant: "default", Platform: true, Scopes: []perdure.Scope{"worker:poll", "worker:report"}},
		{ID: "tenant", Tenant: "acme", Scopes: []perdure.Scope{"runs:create", "runs:read", "runs:control", "worker:poll", "worker:report", "keys:admin"}},
	}), []statement{{"INSERT INTO outbox (tenant,run_id,seq,target,type,state,attempts,created_at,alarm_at) VALUES ('acme','a',1,'run','run:created','pending',0,1,1)", nil, 1}})
	if _, err := execAll(old, list); err != nil {
		t.Fatal(err)
	}
	if err := old.Commit(); err != nil {
		t.Fatal(err)
	}

	s := open(t, at)
	if err := s.View(t.Context(), func(v *View) error {
		for id, want := range map[string]bool{"admin": true, "worker": false, "tenant": false} {
			k, ok, err := v.Credential(id)
			if err != nil || !ok || k.Allows(perdure.ScopeWebhooks) != want || !k.Allows(perdure.ScopePoll) || k.Allows(perdure.ScopeKeys) != (id != "worker") {
				t.Errorf("%s: %v, %v", id, k.Scopes, err)
			}
		}
		notes, err := v.Outbox(tenant, "a")
		if err != nil || len(notes) != 1 || notes[0].State != perdure.NoteDropped || notes[0].AlarmAt != 0 {
			t.Errorf("%+v, %v", notes, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err = s.Batch(s.Now(), opFunc(func(tx *Tx) error {
		r, ok, err := tx.Run(tenant, "a")
		if !ok || r.Options.Webhook != run.Options.Webhook {
			t.Errorf("%+v", r)
		}
		return err
	}))[0]
	if err != nil {
		t.Fatal(err)
	}
}
