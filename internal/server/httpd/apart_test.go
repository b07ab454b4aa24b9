package httpd

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/pairs"
)

// Pairs of features that a call can't ask for at once, because it has no such field. Other refusals
// of docs/pairs.md are provoked by package conformance.
func TestFieldsThatKeepPairsApart(t *testing.T) {
	w := newWorld(t, setup{})
	ended := func() string {
		t.Helper()
		id := w.start(`{"kind":"job","max_attempts":1}`)
		w.commits(w.lease("w", `,"start":true`), `"outcome":{"type":"fail","error":{"code":"broken","message":"no"}}`)
		return id
	}
	attempts := map[pairs.Pair]func() *answer{
		{First: pairs.Retry, Then: pairs.Delay}: func() *answer {
			return w.do("POST", runs+"/"+ended()+"/retry", `{"run_at":"2100-01-01T00:00:00Z"}`)
		},
		{First: pairs.Redrive, Then: pairs.Delay}: func() *answer {
			return w.do("POST", "/api/v1/dlq/"+ended()+"/redrive", `{"run_at":"2100-01-01T00:00:00Z"}`)
		},
		{First: pairs.Delay, Then: pairs.Chat}: func() *answer {
			return w.do("POST", "/api/v1/chat", `{"kind":"job","message":"hello","delay":"1h"}`)
		},
		{First: pairs.Chat, Then: pairs.Webhook}: func() *answer {
			return w.do("POST", "/api/v1/chat", `{"kind":"job","message":"hello","webhook":"https://1.1.1.1/"}`)
		},
		{First: pairs.Child, Then: pairs.Webhook}: func() *answer {
			return w.commit(w.running(`{"kind":"parent"}`),
				`"children":[{"key":"k","kind":"job","webhook":"https://1.1.1.1/"}]`)
		},
	}
	for _, p := range pairs.Refused() {
		if perdure.Code(pairs.CellOf(p).Code) != perdure.CodeInvalid {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			if attempts[p] == nil {
				t.Fatal("nothing provokes the refusal that docs/pairs.md names")
			}
			attempts[p]().refuses(400, "invalid")
		})
	}
}
