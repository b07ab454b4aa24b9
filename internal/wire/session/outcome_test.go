package session

import (
	"testing"

	"github.com/perdure/perdure/api"
)

func TestRefusalHidesTheCommit(t *testing.T) {
	for _, x := range []struct{ field, detail, want string }{
		{"", "this request is too large", "this request is too large"},
		{"commits[0].outcome.result", "has 2 bytes", "the result has 2 bytes"},
		{"outcome.result", "has 2 bytes", "the result has 2 bytes"},
		{"commits[12].children[3].thread_id", "no such thread", "children[3].thread_id: no such thread"},
		{"commits[0]", "is nothing", "is nothing"},
		{"waits[0].timeout", "is too long", "waits[0].timeout: is too long"},
	} {
		if got := Refusal(&api.Refusal{Field: x.field, Detail: x.detail}); got != x.want {
			t.Errorf("Refusal of the field %q = %q, want %q", x.field, got, x.want)
		}
	}
}
