package embedded_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A server logs one line about each thing that it depends on, with its version, and without passwords.
func TestStartNamesWhatTheServerUses(t *testing.T) {
	for _, x := range []struct {
		name string
		opt  embedded.Options
		want []string
	}{
		{"SQLite", embedded.Options{Dir: t.TempDir(), Workspace: t.TempDir()},
			[]string{`what=store is="SQLite 3.`, `what=doorbell is="none: in the process"`, "what=workspace is=/",
				"what=TLS is=off", `what=keys is="runs are not signed, 0 keys`}},
		{"PostgreSQL", embedded.Options{Dir: t.TempDir(), Store: pgtest.New(t)},
			[]string{`what=store is="PostgreSQL 1`, `what=doorbell is="LISTEN/NOTIFY on the store"`,
				"what=workspace is=none", "what=TLS is=off", "what=keys"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var log bytes.Buffer
			x.opt.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s, err := embedded.Open(x.opt)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for _, want := range x.want {
				if n := strings.Count(log.String(), "msg=uses "+want); n != 1 {
					t.Errorf("lines with %q = %d, want 1, in:\n%s", want, n, &log)
				}
			}
			if n := strings.Count(log.String(), "msg=uses"); n != 5 {
				t.Errorf("%d lines about what the server uses, want 5", n)
			}
		})
	}
}
