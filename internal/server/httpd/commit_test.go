package httpd

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// A call of many commits is cut between them, so that no part has more entries than one commit may have.
func TestCommitsAreCutIntoParts(t *testing.T) {
	many := func(commits, spawns int) []perdure.Commit {
		return slices.Repeat([]perdure.Commit{{Children: make([]perdure.Spawn, spawns)}}, commits)
	}
	for _, c := range []struct {
		what  string
		list  []perdure.Commit
		parts []int
	}{
		{"one", many(1, 1000), []int{1}},
		{"three full ones", many(3, 1000), []int{1, 2, 3}},
		{"small ones", many(300, 0), []int{128, 256, 300}},
		{"some of each", slices.Concat(many(2, 10), many(1, 990), many(1, 5)), []int{2, 4}},
	} {
		if got := commitParts(c.list); !slices.Equal(got, c.parts) {
			t.Errorf("%s: cut at %v, want %v", c.what, got, c.parts)
		}
	}
	if got := commitParts(many(64, 1000)); len(got) < 64 {
		t.Errorf("64 commits of 1000 children are %d batches, want 64", len(got))
	}
}
