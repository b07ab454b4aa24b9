package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure/agent/internal/journal"
)

// A digest is that of the value and not of its text: the order of names does not matter, and neither
// do the limits of the store.
func TestDigestOfValue(t *testing.T) {
	t.Parallel()
	type ab struct{ A, B int }
	type ba struct{ B, A int }
	same := [][]any{
		{ab{1, 2}, ba{2, 1}, map[string]int{"B": 2, "A": 1}, json.RawMessage(`{ "B":2, "A":1 }`)},
		{"a\x00b"}, {strings.Repeat("x", 2<<20)}, {ab{2, 1}}, {1.5}, {nil, (*ab)(nil)}, {"<"},
	}
	seen := map[string]int{}
	for n, values := range same {
		for _, v := range values {
			digest, err := digestOfValue(v)
			if err != nil || len(digest) != 24 {
				t.Errorf("digest of %.40v = %q, %v, want 24 digits", v, digest, err)
			}
			if before, ok := seen[digest]; ok && before != n {
				t.Errorf("%.40v has the digest of other values", v)
			}
			seen[digest] = n
		}
	}
	if len(seen) != len(same) {
		t.Errorf("%d digests of %d different values", len(seen), len(same))
	}
	if _, err := digestOfValue(make(chan int)); err == nil {
		t.Error("a channel has a digest, want an error")
	}
}

// A record without a digest, and code without one, are taken as they are.
func TestRecordAboutSomethingElse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		recorded, asked string
		held            bool
	}{{"", "", false}, {"", "a", false}, {"a", "", false}, {"a", "a", false}, {"a", "b", true}} {
		of := about{digest: row.asked, says: aboutItem}
		if err := of.check("k#1/0", &journal.Step{Of: row.recorded}); (err != nil) != row.held {
			t.Errorf("recorded %q, asked for %q: error %v, want held %t", row.recorded, row.asked, err, row.held)
		}
	}
}
