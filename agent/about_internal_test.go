package agent

import (
	"testing"

	"github.com/perdure/perdure/agent/internal/journal"
)

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
