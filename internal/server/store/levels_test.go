package store

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/wire/release"
)

// named gives an address whose connections have a name.
func named(t *testing.T, address, name string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// recordedLevel reads the row of meta.
func recordedLevel(p *psql) string {
	if rows := p.exec("SELECT value FROM meta WHERE name='level'"); len(rows) > 0 {
		return rows[0][0]
	}
	return ""
}

// A node knows when one of an older release is connected, whether that was there before it or comes
// later. Commands and newer releases are no reason. The store records when no older one is left.
func TestOlderNodeIsKnown(t *testing.T) {
	t.Parallel()
	address := pgtest.New(t)
	if err := open(t, Options{URL: address}).Close(); err != nil {
		t.Fatal(err)
	}
	admin := newPSQL(t, address)
	if got := recordedLevel(admin); got != release.Version {
		t.Errorf("the level of a new store = %q, want %q", got, release.Version)
	}
	admin.exec("DELETE FROM meta WHERE name='level'") // as release 0.1.0 has made it
	newPSQL(t, named(t, address, "perdure-tool/0.0.1"))
	newPSQL(t, named(t, address, "perdure/9.0.0 mine"))
	old := newPSQL(t, named(t, address, "perdure/0.1.0 mine"))
	s := open(t, Options{URL: address})
	if got := s.OlderNode(); got != "0.1.0" {
		t.Errorf("the older node of a store that is just open = %q, want 0.1.0", got)
	}
	if got := recordedLevel(admin); got != "" {
		t.Errorf("the level while an older node is connected = %q, want none", got)
	}
	list, err := Connected(address)
	if err != nil || len(list) != 3 || list[0].Version != "0.1.0" || list[0].Connections != 1 ||
		list[1].Version != release.Version || list[2].Version != "9.0.0" {
		t.Errorf("releases of nodes = %+v, %v, want 0.1.0, this one and 9.0.0", list, err)
	}
	old.conn.Close(context.Background())
	eventually.True(t, "the older node is known to be gone, and the level is recorded", func() bool {
		return s.OlderNode() == "" && recordedLevel(admin) == release.Version
	})
	newPSQL(t, named(t, address, "perdure/0.1.0"))
	eventually.True(t, "an older node that comes back is known", func() bool { return s.OlderNode() == "0.1.0" })
	if got := recordedLevel(admin); got != release.Version {
		t.Errorf("the level after an older node came back = %q, want %q: it never falls", got, release.Version)
	}
}

// A node whose release is older than the store's level says so when it starts, on both stores. The level
// stays, and a SQLite file of an older release gets it.
func TestNodeOlderThanTheStoreSaysSo(t *testing.T) {
	t.Parallel()
	address, path := pgtest.New(t), t.TempDir()+"/perdure.db"
	for _, opt := range []Options{{URL: address}, {Path: path}} {
		s := open(t, opt)
		meta := func(do func(tx *Tx) error) {
			t.Helper()
			if err := s.Do(t.Context(), opFunc(do)); err != nil {
				t.Fatal(err)
			}
		}
		level := func() (v string) {
			t.Helper()
			meta(func(tx *Tx) (err error) {
				v, err = tx.Meta.Get(metaLevel)
				return err
			})
			return v
		}
		if got := level(); got != release.Version {
			t.Errorf("the level of a new store = %q, want %q", got, release.Version)
		}
		for recorded, want := range map[string]string{"99.0.0": "99.0.0", "0.1.0": release.Version} {
			meta(func(tx *Tx) error {
				tx.Meta.Set(metaLevel, recorded)
				return nil
			})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			opt.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s = open(t, opt)
			if got := level(); got != want {
				t.Errorf("the level after a start on a store of %s = %q, want %q", recorded, got, want)
			}
			if told := strings.Contains(log.String(), "was used by a newer release"); told != (recorded == "99.0.0") {
				t.Errorf("a start on a store of %s says that it was used by a newer release: %t", recorded, told)
			}
		}
	}
}

// A command is no node from its first connection on. The end of a connection takes PostgreSQL a moment.
func TestCommandsAreNoNodes(t *testing.T) {
	url := pgtest.New(t)
	for i := range 200 {
		list, err := Connected(url)
		if err != nil || len(list) > 0 {
			t.Fatalf("after %d commands the nodes are %+v (error %v), want none", i, list, err)
		}
	}
}
