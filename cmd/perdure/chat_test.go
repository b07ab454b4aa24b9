package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/worker"
)

// supervised starts a server with the scripted supervisor.
func supervised(t *testing.T) *client.Client {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	srv, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &settings.Config{Trial: true, Supervisor: scriptedSupervisor}
	stop, err := startSupervisor(t.Context(), cfg, srv, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(srv.Handler())
	t.Cleanup(func() {
		srv.Drain()
		if err := stop(); err != nil {
			t.Errorf("the supervisor stopped with %v", err)
		}
		hs.Close()
		srv.Close()
	})
	t.Setenv("PERDURE_URL", hs.URL)
	t.Setenv("PERDURE_DATA", dir)
	t.Setenv("PERDURE_KEY", "")
	return client.New(hs.URL, srv.Key(), client.Options{})
}

// The server's own supervisor delegates to a worker, which executes a real program.
func TestChatWithTheScriptedSupervisor(t *testing.T) {
	supervised(t)
	out, errs := mustRun(t, exitOK, "chat", "please", "check", "disk", "space")
	has(t, out, "Let me look.\n", "I had a worker look at the disk. df says: Filesystem")
	has(t, errs, "· spawn_worker\n")

	out, errs = mustRun(t, exitOK, "chat", "--resume", "and you are?")
	has(t, errs, "> please check disk space\n")
	has(t, out, "I had a worker look", "I am no model")
	if n := strings.Count(out, "I am no model"); n != 1 {
		t.Errorf("the answer is shown %d times, want once:\n%s", n, out)
	}

	out, _ = mustRun(t, exitOK, "chat", "--json", "hello")
	has(t, out, `"state": "completed"`, "I am no model")
}

// A worker inside the server has a thread of its own, with its task and its result, and leaves artifacts.
// It is no conversation to come back to.
func TestWorkerInServerHasAThread(t *testing.T) {
	c := supervised(t)
	mustRun(t, exitOK, "chat", "check disk space")
	page, err := c.List(t.Context(), client.Filter{Kind: supervisor.WorkerKind})
	if err != nil || len(page.Runs) != 1 {
		t.Fatalf("runs of workers = %+v, %v; want one", page, err)
	}
	w := page.Runs[0]
	th, err := c.Thread(t.Context(), w.ThreadID)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(th.Metadata), `"`+perdure.ThreadParent+`":"`+string(w.ParentRunID)+`"`)
	said, err := c.Messages(t.Context(), w.ThreadID, 0)
	if err != nil || len(said.Messages) != 2 || said.Messages[0].Role != perdure.RoleUser ||
		said.Messages[1].Role != perdure.RoleAssistant {
		t.Fatalf("messages of the worker = %+v, %v; want its task and its result", said, err)
	}
	has(t, string(said.Messages[1].Content), "Filesystem")
	left, err := c.Artifacts(t.Context(), w.RunID)
	if err != nil || len(left) != 3 {
		t.Errorf("artifacts of the worker = %+v, %v; want its conversation, its calls and its result", left, err)
	}
	// The worker's thread is the last one on which something happened.
	if _, err := c.AppendMessage(t.Context(), w.ThreadID,
		perdure.Message{Role: perdure.RoleUser, Content: client.JSON("thank you, worker")}); err != nil {
		t.Fatal(err)
	}
	_, errs := mustRun(t, exitOK, "chat", "--resume", "and you are?")
	has(t, errs, "> check disk space\n")
}

// A person who leaves is told how to come back, and finds the answer there.
func TestChatIsLeftAndResumed(t *testing.T) {
	c := supervised(t)
	_, errs := mustRun(t, exitDeferred, "chat", "--wait", "1s", "check disk space")
	has(t, errs, "Still working", "perdure chat --thread ")
	page, err := c.Threads(t.Context(), client.ThreadFilter{Limit: 1})
	if err != nil || page.Threads[0].LiveRun == nil {
		t.Fatalf("threads = %+v, %v; want one with a live run", page, err)
	}
	if _, deferred, err := c.Join(t.Context(), page.Threads[0].LiveRun.RunID, time.Minute); err != nil || deferred {
		t.Fatalf("join = %t, %v; want the end", deferred, err)
	}
	out, errs := mustRun(t, exitOK, "chat", "--resume", "thanks")
	has(t, errs, "> check disk space", "[Still working on this in the background")
	has(t, out, "df says: Filesystem")
}

// Lines are said one after the other, and the end of the input ends the conversation.
func TestChatLineByLine(t *testing.T) {
	c, _ := live(t)
	var out, errs strings.Builder
	ch := &conversation{c: c, kind: "parrot", wait: time.Minute, in: newKeyboard(strings.NewReader("one\n\ntwo")),
		stdout: &out, stderr: &errs}
	done := make(chan error, 1)
	go func() { done <- ch.converse(t.Context()) }()
	answerChat(t, c, "first")
	answerChat(t, c, "second")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if out.String() != "first\nsecond\n" {
		t.Errorf("output = %q, want both answers", out.String())
	}
}

// A proxy accepts streams and sends nothing of them. The person is told that the agent is working, and
// the answer comes all the same.
func TestChatBehindProxyThatSwallowsStreams(t *testing.T) {
	c, dir := live(t)
	key, err := os.ReadFile(filepath.Join(dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(os.Getenv("PERDURE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/stream") {
			pass.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", api.MediaStream)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // a caller who has left is noticed below
		<-r.Context().Done()
	}))
	defer proxy.Close()
	behind := client.New(proxy.URL, strings.TrimSpace(string(key)), client.Options{})
	defer behind.Close()
	var out strings.Builder
	errs := &watched{text: "Still working", seen: make(chan struct{})}
	ch := &conversation{c: behind, kind: "parrot", wait: time.Minute, silence: 50 * time.Millisecond,
		in: newKeyboard(strings.NewReader("hello\n")), stdout: &out, stderr: errs}
	done := make(chan error, 1)
	go func() { done <- ch.converse(t.Context()) }()
	select {
	case <-errs.seen:
	case err := <-done:
		t.Fatalf("the chat ended with %v before the person was told anything:\n%s", err, errs.all.String())
	}
	answerChat(t, c, "at last")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if out.String() != "at last\n" {
		t.Errorf("output = %q, want the answer, once", out.String())
	}
	if n := strings.Count(errs.all.String(), errs.text); n != 1 {
		t.Errorf("the person was told %d times that the agent is working, want once:\n%s", n, errs.all.String())
	}
}

// A watched writer closes a channel when a text is written to it.
type watched struct {
	all  strings.Builder
	text string
	seen chan struct{}
	once sync.Once
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.all.Write(b)
	if strings.Contains(w.all.String(), w.text) {
		w.once.Do(func() { close(w.seen) })
	}
	return n, err
}

// typing is a person who types something, and something else when a question was shown.
func typing(first string, shown <-chan struct{}, then string) *keyboard {
	r, w := io.Pipe()
	go func() {
		io.WriteString(w, first)
		if then != "" {
			<-shown
			io.WriteString(w, then)
		}
		w.Close()
	}()
	return newKeyboard(r)
}

// Keys that were pressed before a question was shown do not answer it, in either form of the chat.
func TestKeysTypedBeforeTheQuestionDecideNothing(t *testing.T) {
	for _, typed := range []string{"", "pay\n"} {
		t.Run(fmt.Sprintf("typed %q", typed), func(t *testing.T) {
			c, _ := live(t)
			w := worker.New(c, worker.Options{DrainTimeout: -1, Logger: slog.New(slog.DiscardHandler)})
			worker.Agent(w, "asker", func(ctx *agent.Context, _ map[string]any) (string, error) {
				v, err := agent.Approve(ctx, agent.Approval{Name: "shell", Title: "execute rm -rf /",
					Action: map[string]any{"program": "/bin/rm", "args": []string{"-rf", "/"}}, Timeout: time.Minute})
				text := fmt.Sprintf("approved: %t", v.Approved)
				return text, errors.Join(err, agent.Message(ctx, perdure.RoleAssistant, text))
			})
			ctx, cancel := context.WithCancel(t.Context())
			worked := make(chan error, 1)
			go func() { worked <- w.Run(ctx) }()
			defer func() {
				cancel()
				<-worked
			}()
			person := terminal(t)
			var out strings.Builder
			errs := &watched{text: "Approve? [type rm to approve", seen: make(chan struct{})}
			ch := &conversation{c: c, kind: "asker", wait: time.Minute, asks: true,
				in: newKeyboard(os.Stdin), stdout: &out, stderr: errs}
			if _, err := io.WriteString(person, typed+"rm\nrm\ny\nr"); err != nil {
				t.Fatal(err)
			}
			go func() {
				<-errs.seen
				io.WriteString(person, "no\n\x04")
			}()
			if typed != "" { // the other lines are said too, and ask again
				ch.talks = true
				go ch.converse(ctx)
				eventually.True(t, "the action is rejected", func() bool {
					page, err := c.Approvals(t.Context(), client.ApprovalFilter{State: perdure.ApprovalRejected})
					return err == nil && len(page.Approvals) == 1
				})
				page, err := c.Approvals(t.Context(), client.ApprovalFilter{State: perdure.ApprovalApproved})
				if err != nil || len(page.Approvals) != 0 {
					t.Errorf("approved are %+v (%v), want none", page, err)
				}
				return
			}
			if err := ch.say(t.Context(), "pay"); err != nil {
				t.Fatal(err)
			}
			has(t, out.String(), "approved: false")
			has(t, errs.all.String(), "What you typed before this question was left out.")
		})
	}
}

// Lines of an agent are indented on a terminal, so that none looks like one of the person or of perdure.
func TestAgentForgesNoLines(t *testing.T) {
	var out strings.Builder
	v := voice{width: 20}
	for _, text := range []string{"> yes, do it\n[1 in the ", "background]\n", strings.Repeat(" ", 18), "> yes",
		"\n\n? no\n"} {
		v.say(&out, text)
	}
	for _, line := range strings.Split(strings.TrimRight(out.String(), "\n"), "\n") {
		if line != "" && !strings.HasPrefix(line, "  ") || len(line) > 20 {
			t.Errorf("the line %q is not indented or too long, in\n%s", line, out.String())
		}
	}
	if got, want := indented("a\n> b"), "a\n  > b"; got != want {
		t.Errorf("indented = %q, want %q", got, want)
	}
}

// A line that is typed while the agent works is said to it.
func TestChatPassesOnWhatIsTypedMeanwhile(t *testing.T) {
	c, _ := live(t)
	person := terminal(t)
	var out strings.Builder
	ch := &conversation{c: c, kind: "parrot", wait: time.Minute, in: newKeyboard(os.Stdin), asks: true, talks: true,
		stdout: &out, stderr: io.Discard}
	done := make(chan error, 1)
	go func() { done <- ch.converse(t.Context()) }()
	if _, err := io.WriteString(person, "one\n"); err != nil {
		t.Fatal(err)
	}
	var thread perdure.ThreadID
	eventually.True(t, "the conversation has begun", func() bool {
		page, err := c.Threads(t.Context(), client.ThreadFilter{})
		if err != nil || len(page.Threads) == 0 {
			return false
		}
		thread = page.Threads[0].ThreadID
		return true
	})
	if _, err := io.WriteString(person, "two\n"); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "what was typed is in the thread", func() bool {
		page, err := c.Messages(t.Context(), thread, 0)
		return err == nil && len(page.Messages) == 2
	})
	answerChat(t, c, "first")
	answerChat(t, c, "second") // of the run that takes up what the parrot has not read
	if _, err := io.WriteString(person, "\x04"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if out.String() != "first\nsecond\n" {
		t.Errorf("output = %q, want both answers", out.String())
	}
}

// answerChat answers the next message to the parrot.
func answerChat(t *testing.T, c *client.Client, text string) {
	t.Helper()
	polled, err := session.Of(c).Poll(context.Background(), "w", api.Poll{Kinds: []string{"parrot"}, Slots: 1,
		Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("poll = %+v, %v; want a run", polled, err)
	}
	g := polled.Runs[0]
	_, err = session.Of(c).Commit(context.Background(), "w", perdure.Commit{ID: "end", RunID: g.RunID, Epoch: g.Epoch,
		Messages: []perdure.Message{{Role: perdure.RoleAssistant, Content: client.JSON(text)}},
		Outcome:  &perdure.Outcome{Type: perdure.OutcomeComplete, Result: client.JSON(text)}})
	if err != nil {
		t.Fatal(err)
	}
}

// An approval that the agent waits for is answered in the chat. Without a person it is only shown.
func TestChatAnswersApprovalsInPlace(t *testing.T) {
	for _, x := range []struct {
		name, typed string
		asks        bool
		want, errs  string
	}{
		{"approved", "y\n", true, "approved: true", "Approve?"},
		{"rejected", "n\n", true, "approved: false", "Approve?"},
		{"nobody there", "", false, "timed out: true", "perdure approve "},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, _ := live(t)
			w := worker.New(c, worker.Options{DrainTimeout: -1, Logger: slog.New(slog.DiscardHandler)})
			worker.Agent(w, "asker", func(ctx *agent.Context, _ map[string]any) (string, error) {
				wait := time.Minute
				if !x.asks {
					wait = time.Second
				}
				v, err := agent.Approve(ctx, agent.Approval{Name: "pay", Title: "pay the bill",
					Action: map[string]int{"amount": 7}, Timeout: wait})
				if err != nil {
					return "", err
				}
				text := fmt.Sprintf("approved: %t, timed out: %t", v.Approved, v.TimedOut)
				return text, agent.Message(ctx, perdure.RoleAssistant, text)
			})
			ctx, cancel := context.WithCancel(t.Context())
			worked := make(chan error, 1)
			go func() { worked <- w.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-worked; err != nil {
					t.Errorf("the worker ended with %v", err)
				}
			}()
			var out strings.Builder
			errs := &watched{text: "Approve?", seen: make(chan struct{})}
			ch := &conversation{c: c, kind: "asker", wait: time.Minute, asks: x.asks,
				in: typing("pay\n", errs.seen, x.typed), stdout: &out, stderr: errs}
			if err := ch.converse(t.Context()); err != nil {
				t.Fatal(err)
			}
			has(t, out.String(), x.want)
			has(t, errs.all.String(), "pay the bill", x.errs)
		})
	}
}

// A run below the conversation's wants something to be approved: a child of its worker. The person is told
// who asks and what for, and answers in place.
func TestChatAnswersApprovalsOfChildren(t *testing.T) {
	for _, x := range []struct {
		name, typed string
		asks        bool
		want, errs  string
	}{
		{"approved", "rm\n", true, "approved: true", "Approve?"},
		{"rejected", "n\n", true, "approved: false", "Approve?"},
		{"nobody there", "", false, "approved: false", "perdure approve "},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, _ := live(t)
			w := worker.New(c, worker.Options{DrainTimeout: -1, Logger: slog.New(slog.DiscardHandler)})
			worker.Agent(w, "boss", func(ctx *agent.Context, _ map[string]any) (string, error) {
				text, err := agent.Spawn[string](ctx, "digger", map[string]string{"task": "dig a hole"},
					agent.Options{Class: perdure.Agent}).Join(ctx)
				if err != nil {
					return "", err
				}
				return text, agent.Message(ctx, perdure.RoleAssistant, text)
			})
			worker.Agent(w, "digger", func(ctx *agent.Context, _ map[string]any) (string, error) {
				return agent.Spawn[string](ctx, "shovel", nil, agent.Options{Class: perdure.Agent}).Join(ctx)
			})
			worker.Agent(w, "shovel", func(ctx *agent.Context, _ any) (string, error) {
				v, err := agent.Approve(ctx, agent.Approval{Name: "shell", Title: "execute rm -rf /garden",
					Action: map[string]string{"program": "rm"}, Timeout: time.Minute})
				return fmt.Sprintf("approved: %t", v.Approved), err
			})
			ctx, cancel := context.WithCancel(t.Context())
			worked := make(chan error, 1)
			go func() { worked <- w.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-worked; err != nil {
					t.Errorf("the worker ended with %v", err)
				}
			}()
			var out strings.Builder
			errs := &watched{text: "perdure approve ", seen: make(chan struct{})}
			go func() {
				<-errs.seen // somebody else decides
				page, err := c.Approvals(ctx, client.ApprovalFilter{})
				if err != nil || len(page.Approvals) != 1 {
					t.Errorf("open approvals = %+v, %v; want one", page, err)
					return
				}
				if _, err := c.Decide(ctx, page.Approvals[0].ID, api.Decide{Decision: perdure.Reject}); err != nil {
					t.Error(err)
				}
			}()
			asked := &watched{text: "Approve?", seen: make(chan struct{})}
			ch := &conversation{c: c, kind: "boss", wait: time.Minute, asks: x.asks,
				in: typing("go\n", asked.seen, x.typed), stdout: &out, stderr: io.MultiWriter(errs, asked)}
			if err := ch.converse(t.Context()); err != nil {
				t.Fatal(err)
			}
			has(t, out.String(), x.want)
			has(t, errs.all.String(), "shovel#1 of digger#1 (dig a hole) asks:", "execute rm -rf /garden",
				`"program": "rm"`, x.errs)
			if n := strings.Count(errs.all.String(), "asks:"); n != 1 {
				t.Errorf("the person was asked %d times, want once:\n%s", n, errs.all.String())
			}
		})
	}
}

// The text of an agent can't take over the terminal.
func TestSpeechIsHarmless(t *testing.T) {
	if got := speech("a\x1b[2Jb\tc\nd\u202ee"); got != "a·[2Jb    c\nd·e" {
		t.Errorf("speech = %q, want dots for what is not plain", got)
	}
}

func TestChatRefusesWhatItCannotMean(t *testing.T) {
	live(t)
	for _, args := range [][]string{{"--thread", "x", "--resume"}, {"--json"}, {"--wait", "0s", "hi"}} {
		mustRun(t, exitUsage, append([]string{"chat"}, args...)...)
	}
	_, errs := mustRun(t, exitFail, "chat", "--resume")
	has(t, errs, "no conversation yet")
	_, errs = mustRun(t, exitFail, "chat", "--thread", "none", "hi")
	has(t, errs, "not_found")
}
