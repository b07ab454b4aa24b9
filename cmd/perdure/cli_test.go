package main

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/wire/session"
)

// live starts a server with a socket, and sets the environment of the commands.
func live(t *testing.T) (*client.Client, string) {
	t.Helper()
	return liveWith(t, embedded.Options{WebhookAllow: []string{"127.0.0.0/8"}})
}

func liveWith(t *testing.T, opt embedded.Options) (*client.Client, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	opt.Dir = dir
	srv, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(srv.Handler())
	t.Cleanup(func() {
		srv.Drain()
		hs.Close()
		srv.Close()
	})
	t.Setenv("PERDURE_URL", hs.URL)
	t.Setenv("PERDURE_DATA", dir)
	t.Setenv("PERDURE_KEY", "")
	return client.New(hs.URL, srv.Key(), client.Options{}), dir
}

// answer executes the next run of a kind: it completes it, or fails it permanently.
func answer(t *testing.T, c *client.Client, kind string, o perdure.Outcome) {
	t.Helper()
	ctx := context.Background()
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Kinds: []string{kind}, Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Errorf("poll for a run of kind %s: %v, want one run", kind, err)
		return
	}
	g := polled.Runs[0]
	if _, err := session.Of(c).Commit(ctx, "w", perdure.Commit{ID: "end", RunID: g.RunID, Epoch: g.Epoch,
		Outcome: &o}); err != nil {
		t.Error(err)
	}
}

func mustRun(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	got, stdout, stderr := call(args...)
	if got != code {
		t.Fatalf("perdure %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	return stdout, stderr
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("output = %q, want it to contain %q", text, p)
		}
	}
}

func TestRunFollowsARunToItsEnd(t *testing.T) {
	c, _ := live(t)
	no := false
	for _, x := range []struct {
		kind string
		o    perdure.Outcome
		code int
		out  string
		err  string
	}{
		{"good", perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"disk":"45%"}`)}, 0,
			`{"disk":"45%"}`, "run:completed"},
		{"bad", perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: "boom", Message: "it broke"},
			Retryable: &no}, 1, "", "failed: boom it broke"},
	} {
		done := make(chan struct{})
		go func() { defer close(done); answer(t, c, x.kind, x.o) }()
		out, err := mustRun(t, x.code, "run", x.kind, "--input", `{"host":"cube"}`)
		<-done
		has(t, out, x.out)
		has(t, err, "Ctrl-C detaches", "run:started", x.err)
	}
	out, _ := mustRun(t, 4, "run", "nobody", "--timeout", "100ms", "--json")
	has(t, out, `"state": "timeout"`, `"deadline_exceeded"`)
	out, err := mustRun(t, 3, "run", "nobody", "--wait", "50ms")
	has(t, out+err, "Detached. The run goes on", "perdure fg ")
	has(t, first(mustRun(t, 0, "jobs", "--status", "deferred")), "nobody", "deferred")
}

func TestWatchdogListsActions(t *testing.T) {
	live(t)
	out, _ := mustRun(t, 0, "watchdog", "--rule", "W8")
	has(t, out, "did nothing")
	for range 2 {
		mustRun(t, 4, "run", "nobody", "--timeout", "50ms", "--json")
	}
	id := strings.Fields(first(mustRun(t, 0, "jobs", "--kind", "nobody", "--limit", "1")))[8]
	out, errs := mustRun(t, 0, "watchdog", "--rule", "deadline", "-n", "1")
	has(t, out, "AT", "RULE", "WHY", "W8", id, "timeout/deadline_exceeded", "its deadline passed")
	has(t, errs, "There may be more")
	t.Setenv("FORCE_COLOR", "1")
	has(t, first(mustRun(t, 0, "watchdog", "--run", id)), "\x1b[31mtimeout/deadline_exceeded\x1b[0m")
	out, _ = mustRun(t, 0, "watchdog", "--json", "--tenant", "default", "--run", id)
	var page api.WatchdogLog
	if err := json.Unmarshal([]byte(out), &page); err != nil || len(page.Actions) != 1 ||
		page.Actions[0].Run != perdure.RunID(id) {
		t.Errorf("watchdog --json: %v, want the deadline of the run\n%s", err, out)
	}
	has(t, first(mustRun(t, 0, "watchdog", "--rules")), "BOUND", "lost-worker", "lease 1m0s",
		"hold_timeout 24h0m0s, on a thread hold_timeout_thread 15m0s; at most deadline_at")
	has(t, first(mustRun(t, 0, "watchdog", "--rules", "--json")), `"name": "lease"`, `"value": "1m0s"`)
}

func TestJobControl(t *testing.T) {
	c, dir := live(t)
	id, _ := mustRun(t, 0, "run", "-d", "slow", "--input", "@"+writeFile(t, `[1,2,3]`))
	id = strings.TrimSpace(id)
	r, err := c.Get(context.Background(), perdure.RunID(id))
	if err != nil || string(r.Input) != `[1,2,3]` {
		t.Fatalf("run = %+v (error %v), want the input [1,2,3]", r, err)
	}
	again, _ := mustRun(t, 0, "run", "once", "-d", "--idempotency-key", "k", "--json")
	same, _ := mustRun(t, 0, "run", "once", "-d", "--idempotency-key", "k", "--json")
	if again != same {
		t.Errorf("second submission = %s, want the first run %s", again, same)
	}
	out, _ := mustRun(t, 0, "jobs")
	has(t, out, "RUN", id, "slow", "queued")
	out, _ = mustRun(t, 0, "jobs", "--json", "--kind", "slow")
	has(t, out, `"run_id": "`+id)
	out, _ = mustRun(t, 0, "logs", id)
	has(t, out, "run:created", `"task":"slow"`)
	out, _ = mustRun(t, 0, "kill", id, "--reason", "enough")
	has(t, out, id, "cancelled")
	out, _ = mustRun(t, 0, "logs", "-f", id, "--json")
	has(t, out, `"type":"run:cancelled"`, "enough")
	out, _ = mustRun(t, 1, "doctor") // a run is claimable, and there is no worker
	has(t, out, "BAD  workers", "ok   invariants")
	out, _ = mustRun(t, 0, "fsck")
	has(t, out, "0 violations")
	_, errs := mustRun(t, 1, "fsck", "--stopped", "--data", dir)
	has(t, errs, "another server has this store open")
}

func TestAttachAndDetach(t *testing.T) {
	c, _ := live(t)
	id, _ := mustRun(t, 0, "run", "-d", "slow")
	id = strings.TrimSpace(id)
	_, errs := mustRun(t, 3, "wait", id, "--timeout", "50ms")
	has(t, errs, "Detached. The run goes on", "perdure fg "+id)
	out, _ := mustRun(t, 3, "fg", id, "--wait", "50ms", "--json")
	has(t, out, `"status":"deferred"`, id)
	out, _ = mustRun(t, 0, "bg", id)
	has(t, out, id+" deferred")

	done := make(chan struct{})
	go func() {
		defer close(done)
		answer(t, c, "slow", perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`"at last"`)})
	}()
	out, errs = mustRun(t, 0, "fg", id)
	<-done
	if out != "\"at last\"\n" {
		t.Errorf("fg printed %q, want the result", out)
	}
	has(t, errs, "1  run:created", "run:started", "run:completed")
	_, errs = mustRun(t, 0, "fg", id, "--after", "2") // also after its end
	has(t, errs, "run:completed")
	if strings.Contains(errs, "run:created") {
		t.Errorf("fg --after 2 printed %s, want only later events", errs)
	}
	out, _ = mustRun(t, 0, "wait", id)
	has(t, out, "at last")
	out, _ = mustRun(t, 0, "wait", id, "--json")
	has(t, out, `"state": "completed"`)

	no := false
	for kind, code := range map[string]int{"bad": 1, "late": 4, "unwanted": 5} {
		args := []string{"run", "-d", kind}
		if kind == "late" {
			args = append(args, "--timeout", "10ms")
		}
		id, _ := mustRun(t, 0, args...)
		id = strings.TrimSpace(id)
		switch kind {
		case "bad":
			answer(t, c, kind, perdure.Outcome{Type: perdure.OutcomeFail,
				Error: &perdure.Failure{Code: "boom", Message: "it broke"}, Retryable: &no})
		case "unwanted":
			mustRun(t, 0, "kill", id)
		}
		mustRun(t, code, "wait", id)
		mustRun(t, code, "fg", id)
	}
}

func TestKeysOnTheCommandLine(t *testing.T) {
	live(t)
	secret, _ := mustRun(t, 0, "keys", "create", "reader", "--scopes", "runs:read", "--ttl", "1h")
	secret = strings.TrimSpace(secret)
	mustRun(t, 0, "jobs", "--key", secret)
	_, errs := mustRun(t, 1, "run", "x", "-d", "--key", secret)
	has(t, errs, "forbidden", "runs:create")
	other, _ := mustRun(t, 0, "keys", "create", "theirs", "--tenant", "other", "--json")
	has(t, other, `"tenant": "other"`, `"secret"`)
	list, _ := mustRun(t, 0, "keys", "list")
	has(t, list, "reader", "admin", "platform")
	if strings.Contains(list, secret) || strings.Contains(list, "theirs") {
		t.Errorf("keys list printed %s, want no secret and no key of another tenant", list)
	}
	mustRun(t, 0, "keys", "revoke", strings.Split(secret, "_")[1])
	_, errs = mustRun(t, 1, "jobs", "--key", secret)
	has(t, errs, "unauthorized")
}

func TestBadCallsOfCommands(t *testing.T) {
	live(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"run"}, 2, "Usage"},
		{[]string{"run", "a", "b"}, 2, "Usage"},
		{[]string{"run", "a b\x00"}, 1, "invalid"},
		{[]string{"run", "x", "--input", "{"}, 1, "not valid JSON"},
		{[]string{"run", "x", "--input", "@/no/such/file"}, 1, "no such file"},
		{[]string{"run", "x", "--timeout", "soon"}, 2, "timeout"},
		{[]string{"run", "x", "--timeout", "99999h"}, 1, "timeout"},
		{[]string{"run", "x", "--timeout", "0"}, 2, "timeout"},
		{[]string{"run", "x", "--timeout", "0s"}, 2, "--timeout has to be positive"},
		{[]string{"run", "x", "--max-attempts", "0"}, 2, "--max-attempts has to be positive"},
		{[]string{"jobs", "--status", "bogus"}, 1, "status"},
		{[]string{"jobs", "--limit", "0"}, 2, "limit"},
		{[]string{"jobs", "--limit", "5000"}, 1, "limit"},
		{[]string{"logs"}, 2, "Usage"},
		{[]string{"logs", "no-such-run"}, 1, "not_found"},
		{[]string{"logs", "-f", "no-such-run"}, 1, "not_found"},
		{[]string{"kill", "no-such-run"}, 1, "not_found"},
		{[]string{"kill", "no-such-run", "--wait", "-5s"}, 2, "negative"},
		{[]string{"fg"}, 1, "there is no current job"},
		{[]string{"fg", "no-such-run"}, 1, "not_found"},
		{[]string{"fg", "no-such-run", "--after", "-1"}, 1, "Last-Event-ID"},
		{[]string{"bg"}, 2, "Usage"},
		{[]string{"bg", "no-such-run"}, 1, "not_found"},
		{[]string{"wait"}, 2, "Usage"},
		{[]string{"wait", "no-such-run"}, 1, "not_found"},
		{[]string{"wait", "no-such-run", "--timeout", "0s"}, 2, "positive"},
		{[]string{"keys"}, 2, "Usage"},
		{[]string{"keys", "create", "x", "--scopes", "everything"}, 1, "scopes"},
		{[]string{"keys", "revoke", "nope"}, 1, "not_found"},
		{[]string{"config"}, 2, "Usage"},
		{[]string{"fsck", "--stopped", "--data", "/no/such/folder"}, 1, "no data"},
		{[]string{"watchdog", "-n", "0"}, 2, "1 to 1000"},
		{[]string{"watchdog", "-n", "many"}, 2, "invalid value"},
		{[]string{"watchdog", "--rule", strings.Repeat("x", 1000)}, 2, "no rule"},
		{[]string{"watchdog", "--rule", "W99"}, 2, "the rules are W1, W2, "},
		{[]string{"watchdog", "--rule", "lost-worker"}, 0, "did nothing"},
		{[]string{"watchdog", "--rule", "group-deadline-passed"}, 0, "did nothing"},
		{[]string{"watchdog", "more"}, 2, "no arguments"},
		{[]string{"watchdog", "--run", "no-such-run"}, 1, "no such run"},
		{[]string{"jobs", "--key", "prd_nonsense"}, 1, "unauthorized"},
		{[]string{"serve", "--policy", "lease=0s"}, 1, "lease"},
		{[]string{"serve", "--policy", "leese=1s"}, 1, "no such setting"},
		{[]string{"serve", "--listen", "nowhere"}, 1, "listen"},
		{[]string{"serve", "--log-level", "loud"}, 1, "log_level"},
	} {
		code, stdout, stderr := call(c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("perdure %s: exit code %d, want %d with %q\n%s%s", strings.Join(c.args, " "), code, c.code, c.want,
				stdout, stderr)
		}
	}
}

func TestConfigurationFromFileEnvironmentAndFlags(t *testing.T) {
	file := writeFile(t,
		"listen = \"127.0.0.1:1\"\ndata = \"from-file\"\nhosts = [\"a.example\"]\n[policy]\nlease = \"90s\"\n"+
			"silent = \"45s\"\n")
	t.Setenv("PERDURE_DATA", "from-env")
	t.Setenv("PERDURE_POLICY_LEASE", "80s")
	out, _ := mustRun(t, 0, "config", "check", "--config", file, "--listen", "127.0.0.1:2", "--json")
	var got struct {
		Listen, Data string
		Policy       map[string]string
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Listen != "127.0.0.1:2" || got.Data != "from-env" || got.Policy["lease"] != "1m20s" ||
		got.Policy["silent"] != "45s" {
		t.Errorf("configuration = %+v, want listen by flag, data by environment, lease 1m20s and silent 45s", got)
	}
	t.Setenv("PERDURE_POLICY_LEASE", "")
	for text, want := range map[string]string{"lisen = \"x\"\n": "lisen", "listen = 3\n": "listen",
		"[policy]\nlease = \"long\"\n": "duration", "[policy]\nactive_reap = \"1s\"\n": "active_reap"} {
		_, errs := mustRun(t, 1, "config", "check", "--config", writeFile(t, text))
		has(t, errs, want)
	}
}

func TestServeStopsWhenInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	cfg := settings.Default()
	cfg.Listen, cfg.Dir = "127.0.0.1:0", filepath.Join(t.TempDir(), "data")
	up, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- serveWith(ctx, cfg, os.Stderr, os.Stderr, func(url string, _ *embedded.Server) { up <- url })
	}()
	url := <-up
	key, err := os.ReadFile(filepath.Join(cfg.Dir, embedded.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	c := client.New(url, strings.TrimSpace(string(key)), client.Options{})
	// A poll waits during the shutdown. It is answered at once, without a run.
	answered := make(chan bool, 1)
	begun := make(chan perdure.RunID, 1)
	go func() {
		r, err := c.Start(context.Background(), perdure.Submission{Kind: "slow"})
		if err != nil {
			t.Error(err)
		}
		begun <- r.RunID
		polled, err := session.Of(c).Poll(context.Background(), "w", api.Poll{Kinds: []string{"other"}, Slots: 1})
		answered <- err == nil && len(polled.Runs) == 0
	}()
	<-begun
	for workers := 0; workers == 0; {
		list, err := admin.New(c).Workers(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		workers = len(list)
	}
	begin := time.Now()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !<-answered {
		t.Error("the poll failed during the shutdown, want an empty answer")
	}
	if took := time.Since(begin); took > 20*time.Second { // the poll would wait for 30 s
		t.Errorf("the server took %s to stop, want at most 20 s", took)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
