package runner

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// codex tells the usage of the whole session. A run that continues it has used the difference.
func TestTokensOfAContinuedSessionAreCountedOnce(t *testing.T) {
	w := newWorld(t)
	for _, x := range []struct {
		name        string
		before      jobdir.Tokens
		total, want jobdir.Tokens
	}{
		{"a new session", jobdir.Tokens{}, jobdir.Tokens{Input: 100, Output: 10},
			jobdir.Tokens{Input: 100, Output: 10}},
		{"a continued one", jobdir.Tokens{Input: 100, Output: 10}, jobdir.Tokens{Input: 250, Output: 14},
			jobdir.Tokens{Input: 150, Output: 4}},
		{"one that counts anew", jobdir.Tokens{Input: 100, Output: 10}, jobdir.Tokens{Input: 70, Output: 7},
			jobdir.Tokens{Input: 70, Output: 7}},
		{"one that ends before its first turn", jobdir.Tokens{Input: 100, Output: 10},
			jobdir.Tokens{Input: 100, Output: 10}, jobdir.Tokens{}},
	} {
		line := fmt.Sprintf(`{"type":"turn.completed","usage":{"input_tokens":%d,"output_tokens":%d}}`,
			x.total.Input, x.total.Output)
		if x.want == (jobdir.Tokens{}) {
			line = ""
		}
		s := w.start("", func(j *Job, _ *perdure.Submission) {
			j.Spec.Command, j.Spec.Engine = []string{"echo", line}, "codex"
			j.Spec.SessionTokens = x.before
		})
		r := s.ended(perdure.Completed, "")
		var p jobdir.Process
		if err := unmarshal(r.Result, &p); err != nil {
			t.Fatal(err)
		}
		if got := (jobdir.Tokens{Input: p.InputTokens, Output: p.OutputTokens}); got != x.want || p.Used() != x.total {
			t.Errorf("%s: the run has used %+v, and the session %+v; want %+v and %+v", x.name, got, p.Used(), x.want,
				x.total)
		}
	}
}
