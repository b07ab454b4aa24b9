package httpd

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/wire/redact"
)

const hidden = "hunter2/7c1f-secret"

func hiding(t *testing.T, secrets ...string) *redact.Set {
	t.Helper()
	s, err := redact.New(append(secrets, hidden))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A repeated call gets the first answer: bodies are compared as they are stored, without secrets.
func TestRepeatedCallWithSecretGetsSameAnswer(t *testing.T) {
	w := newWorld(t, setup{secrets: hiding(t)})
	body := fmt.Sprintf(`{"kind":"k","input":{"key":%q,"again":"\u0068unter2\/7c1f-secret"},"metadata":{"m":%q}}`,
		hidden, "x"+hidden)
	key := http.Header{"Idempotency-Key": {"order " + hidden}}
	first := w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: body, header: key}).is(201)
	again := w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: body, header: key}).is(200)
	if first["run_id"] != again["run_id"] {
		t.Error("it is another run")
	}
	w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: `{"kind":"k","input":1}`,
		header: key}).refuses(422, "key_reused")
	run := w.get("/api/v1/runs/" + first["run_id"].(string)).is(200)
	if in := run["input"].(obj); in["key"] != "[redacted]" || in["again"] != "[redacted]" ||
		run["metadata"].(obj)["m"] != "x[redacted]" {
		t.Errorf("%v %v", run["input"], run["metadata"])
	}

	g := w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"start":true,"wait":"0s"}`).is(200)["runs"].([]any)[0].(obj)
	commit := func(id, rest string) string {
		return fmt.Sprintf(`{"commits":[{"commit_id":%q,"run_id":%q,"epoch":%v,%s}]}`, id, g["run_id"],
			g["epoch"], rest)
	}
	step := fmt.Sprintf(`"journal":[{"key":"s","value":%q}]`, "with "+hidden)
	w.do("POST", "/api/v1/workers/w/commit", commit("c1", step)).is(200)
	w.do("POST", "/api/v1/workers/w/commit", commit("c1", step)).is(200)
	w.do("POST", "/api/v1/workers/w/commit", commit("c2", step)).is(200) // the same step again is no contradiction
	w.do("POST", "/api/v1/workers/w/commit", commit("c3", `"journal":[{"key":"s","value":"other"}]`)).refuses(409,
		"nondeterminism")
	// A replay commits the redacted value that the server has returned, and is accepted.
	w.do("POST", "/api/v1/workers/w/commit", commit("c4", `"journal":[{"key":"s","value":"with [redacted]"}]`)).is(200)
}

func TestSecretInPathQueryOrNumberIsRedacted(t *testing.T) {
	w := newWorld(t, setup{secrets: hiding(t, "4111222233334444")})
	r := w.do("POST", "/api/v1/runs", `{"kind":"k","input":{"card":4111222233334444}}`).is(201)
	id := r["run_id"].(string)
	if in := w.get("/api/v1/runs/" + id).is(200)["input"].(obj); in["card"] != "[redacted]" {
		t.Errorf("in = %v, want card = [redacted]", in)
	}
	for _, a := range []ask{
		{method: "GET", path: "/api/v1/runs?kind=" + url.QueryEscape(hidden)},
		{method: "GET", path: "/api/v1/runs?" + url.QueryEscape(hidden) + "=1"},
		{method: "GET", path: "/api/v1/runs?metadata.k=" + url.QueryEscape(hidden)},
		{method: "GET", path: "/api/v1/runs/" + url.PathEscape(hidden)},
		{method: "POST", path: "/api/v1/runs/" + id + "/signals/" + url.PathEscape(hidden), body: `{}`},
		{method: "POST", path: "/api/v1/workers/" + url.PathEscape(hidden) + "/poll", body: `{"slots":1,"wait":"0s"}`},
		{method: "POST", path: "/api/v1/runs", body: fmt.Sprintf(`{"kind":%q}`, hidden)},
		{method: "POST", path: "/api/v1/runs", body: fmt.Sprintf(`{"kind":"k",%q:1}`, hidden)},
		{method: "POST", path: "/api/v1/runs", body: fmt.Sprintf(`{"kind":"k" %q`, hidden)},
		{method: "POST", path: "/api/v1/runs", body: `{"kind":"k","priority":4111222233334444}`},
	} {
		a.key = w.key
		if got := w.send(a); strings.Contains(string(got.body), "7c1f") || got.status >= 500 {
			t.Errorf("%s %s: %d %s", a.method, a.path, got.status, got.body)
		}
	}
	// A key that is a secret itself still opens.
	open := newWorld(t, setup{})
	open.s.opt.Secrets = hiding(t, open.key)
	open.get("/api/v1/runs").is(200)
	open.send(ask{method: "GET", path: "/api/v1/runs/" + "01234567-0123-0123-0123-012345678901" +
		"/stream?access_token=" + open.key}).refuses(404, "not_found")
}

func TestVocabularyHasWordsOfTheAPI(t *testing.T) {
	words, err := Vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]bool{"completed": true, "max_attempts": true, "run:created": true,
		"some-secret": false} {
		if hiding(t, word).Within(words) != want {
			t.Errorf("%s: %v", word, !want)
		}
	}
}
