package api

import (
	"encoding/json"
	"testing"

	"github.com/perdure/perdure"
)

// A notice is known by its mark, and one of an older server by its status.
func TestNoticesAreKnown(t *testing.T) {
	for _, c := range []struct {
		what     string
		role     perdure.Role
		run      string
		metadata string
		want     bool
	}{
		{"a notice", "system", "r1", `{"notice":true,"run_id":"r1","status":"deferred"}`, true},
		{"a notice without a status", "system", "r1", `{"notice":true,"run_id":"r1"}`, true},
		{"a notice of an older server", "assistant", "r1", `{"status":"failed","run_id":"r1"}`, true},
		{"a system message of a user", "system", "", `{"notice":true,"run_id":"r1"}`, false},
		{"a system message of an agent", "system", "r1", "", false},
		{"a marked message about another run", "system", "r1", `{"notice":true,"run_id":"r2"}`, false},
		{"a tool's result", "tool", "r1", `{"status":"failed","run_id":"r1"}`, false},
		{"an adopted result", "assistant", "r1", `{"run_id":"r1","late_result":1}`, false},
		{"an answer that calls itself a notice", "assistant", "r1", `{"notice":true,"run_id":"r1"}`, false},
	} {
		m := Message{Role: c.role, RunID: perdure.RunID(c.run), Metadata: json.RawMessage(c.metadata)}
		if m.Notice() != c.want {
			t.Errorf("%s: Notice() = %v, want %v", c.what, m.Notice(), c.want)
		}
	}
}
