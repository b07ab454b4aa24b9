package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

func TestWebhooksOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	var status atomic.Int64
	status.Store(200)
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(int(status.Load()))
		io.WriteString(w, "hello")
	}))
	t.Cleanup(sink.Close)
	has(t, first(mustRun(t, 0, "webhooks")), "No webhooks.")
	secret, errs := mustRun(t, 0, "webhooks", "add", sink.URL, "--events", "run:completed,x:*", "--description", "mine")
	id := regexp.MustCompile(`wh_[0-9a-f-]+`).FindString(errs)
	if !strings.HasPrefix(secret, "whsec_") || id == "" {
		t.Fatalf("webhooks add printed %q and %q, want a secret and its explanation", secret, errs)
	}
	has(t, first(mustRun(t, 0, "webhooks", "list")), "WEBHOOK", id, "tenant", "active", sink.URL)
	has(t, first(mustRun(t, 0, "webhooks", "--json")), `"webhook_id": "`+id)
	out, _ := mustRun(t, 0, "webhooks", "show", id)
	has(t, out, "run:completed x:*", "mine", "active")
	if strings.Contains(out, "whsec_") {
		t.Errorf("webhooks printed the secret again: %s", out)
	}
	has(t, first(mustRun(t, 0, "webhooks", "test", id)), `200 "hello" after `)
	_, errs = mustRun(t, 0, "webhooks", "add", sink.URL, "--format", "openai")
	formed := regexp.MustCompile(`wh_[0-9a-f-]+`).FindString(errs)
	has(t, first(mustRun(t, 0, "webhooks", "show", formed)), "format   openai", "run:completed run:failed")
	mustRun(t, 0, "webhooks", "rm", formed)

	status.Store(410)
	has(t, first(mustRun(t, 1, "webhooks", "test", id)), `410 "hello" after `)
	mustRun(t, 0, "run", "-d", "job")
	answer(t, c, "job", perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`1`)})
	var dead string
	eventually.True(t, "it is given up", func() bool {
		out, _ := mustRun(t, 0, "webhooks", "deliveries", id, "--state", "dead")
		dead = regexp.MustCompile(`msg_[\w-]+`).FindString(out)
		return dead != ""
	})
	has(t, first(mustRun(t, 0, "webhooks", "show", id)), "disabled since", "410")
	has(t, first(mustRun(t, 0, "webhooks", "enable", id)), "active")
	status.Store(204)
	has(t, first(mustRun(t, 0, "webhooks", "redeliver", dead)), dead, "is pending")
	eventually.True(t, "it is delivered", func() bool {
		out, _ := mustRun(t, 0, "webhooks", "attempts", dead)
		return strings.Contains(out, ": delivered") && strings.Contains(out, `410 "hello"`) &&
			strings.Contains(out, "204")
	})
	has(t, first(mustRun(t, 0, "webhooks", "attempts", dead, "--json")), `"history"`, `"state": "delivered"`)
	has(t, first(mustRun(t, 0, "webhooks", "deliveries", id)), "DELIVERY", dead, "run:completed", "delivered", "204")
	again, _ := mustRun(t, 0, "webhooks", "rotate", id)
	if again == secret || !strings.HasPrefix(again, "whsec_") {
		t.Errorf("webhooks rotate printed %q, want a new secret", again)
	}
	_, errs = mustRun(t, 0, "run", "-d", "told", "--webhook", sink.URL+"/run")
	has(t, errs, "shown this once: whsec_")
	has(t, first(mustRun(t, 0, "webhooks", "show", regexp.MustCompile(`wh_[0-9a-f-]+`).FindString(errs))),
		"as each run says")
	has(t, first(mustRun(t, 0, "webhooks", "disable", id)), "disabled since", "by hand")
	has(t, first(mustRun(t, 0, "webhooks", "rm", id)), id+" is deleted")
	has(t, first(mustRun(t, 0, "webhooks")), "No webhooks.")
}

func TestBadCallsOfWebhooks(t *testing.T) {
	live(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"frobnicate", 2, "Usage"},
		{"-h", 0, "perdure webhooks add URL"},
		{"list more", 2, "Usage"},
		{"add", 2, "Usage"},
		{"add https://10.0.0.1/", 1, "url_refused"},
		{"add nonsense", 1, "invalid"},
		{"add https://1.1.1.1/ --events run:exploded", 1, "events"},
		{"add https://1.1.1.1/ --thread nowhere", 1, "not_found"},
		{"show wh_none", 1, "not_found"},
		{"rm wh_none", 1, "not_found"},
		{"rotate wh_none", 1, "not_found"},
		{"enable wh_none", 1, "not_found"},
		{"disable", 2, "Usage"},
		{"test wh_none", 1, "not_found"},
		{"deliveries wh_none", 1, "not_found"},
		{"deliveries wh_none --limit 0", 2, "limit"},
		{"attempts msg_none", 1, "not_found"},
		{"redeliver msg_none", 1, "not_found"},
	} {
		code, stdout, stderr := call(append([]string{"webhooks"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("perdure webhooks %s: exit code %d, want %d with %q\n%s%s", c.args, code, c.code, c.want, stdout,
				stderr)
		}
	}
}
