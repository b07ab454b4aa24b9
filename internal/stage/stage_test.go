package stage

import (
	"testing"

	"github.com/perdure/perdure/internal/storetest"
)

// A noted test records the reason for which it is left out.
type noted struct {
	testing.TB
	reasons []any
}

func (n *noted) Helper()          {}
func (n *noted) Skip(args ...any) { n.reasons = append(n.reasons, args...) }

func TestTestIsLeftOutWhereItShowsNothing(t *testing.T) {
	for _, row := range []struct {
		name, store string
		line        func(testing.TB)
		out         bool
	}{
		{"NoStore on SQLite", "sqlite", NoStore, false},
		{"NoStore on PostgreSQL", "postgres", NoStore, true},
		{"NoRace", "sqlite", NoRace, raced},
	} {
		t.Setenv(storetest.Env, row.store)
		n := &noted{TB: t}
		row.line(n)
		if out := len(n.reasons) == 1 && n.reasons[0] == Elsewhere; out != row.out {
			t.Errorf("%s: left out with the reasons %v, want left out %v", row.name, n.reasons, row.out)
		}
	}
}
