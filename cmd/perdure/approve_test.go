package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/cmd/internal/golden"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/wire/session"
)

// asks starts a run that waits for an approval, and returns the approval's id.
func asks(t *testing.T, c *client.Client, spec perdure.ApprovalSpec) perdure.ApprovalID {
	t.Helper()
	ctx := context.Background()
	queue := rand.Text() // so that the poll does not get a run of another test
	r, err := c.Start(ctx, perdure.Submission{Kind: "deploy", Queue: queue, Class: perdure.Agent})
	if err != nil {
		t.Fatal(err)
	}
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Queues: []string{queue}, Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 || polled.Runs[0].RunID != r.RunID {
		t.Fatalf("poll = %+v (error %v), want one run", polled, err)
	}
	_, err = session.Of(c).Commit(ctx, "w",
		perdure.Commit{ID: "ask", RunID: r.RunID, Epoch: polled.Runs[0].Epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend},
			Waits:   []perdure.WaitSpec{{ID: "ok", Type: perdure.WaitApproval, Name: "approve_push", Approval: &spec}}})
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.Approvals(ctx, client.ApprovalFilter{RunID: r.RunID})
	if err != nil || len(page.Approvals) != 1 {
		t.Fatalf("approvals of the run = %+v (error %v), want one", page, err)
	}
	return page.Approvals[0].ID
}

func decidedAs(t *testing.T, c *client.Client, id perdure.ApprovalID, state perdure.ApprovalState) *perdure.Approval {
	t.Helper()
	a, err := c.Approval(context.Background(), id)
	if err != nil || a.State != state {
		t.Fatalf("approval %s = %+v (error %v), want state %s", id, a, err, state)
	}
	return a
}

// A person with a key of the tenant is not asked about what the platform decides.
func TestApproveAsksOnlyThoseWhoMayDecide(t *testing.T) {
	c, _ := live(t)
	id := asks(t, c, perdure.ApprovalSpec{Action: json.RawMessage(`{"program":"rm"}`),
		Approvers: perdure.ApproversPlatform})
	_, errs := mustRun(t, 1, "approve", string(id))
	has(t, errs, "say --yes or --reject")
	key, err := admin.New(c).CreateTenantKey(t.Context(), embedded.DefaultTenant, api.CreateKey{Name: "p",
		Scopes: []string{string(perdure.ScopeRead), string(perdure.ScopeApprove)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERDURE_KEY", key.Secret)
	out, errs := mustRun(t, 1, "approve", string(id))
	has(t, out, `"program": "rm"`)
	has(t, errs, "the platform decides about this")
	_, errs = mustRun(t, 1, "approve", string(id), "--yes")
	has(t, errs, "platform_decides")
}

func TestApprovalsOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	has(t, first(mustRun(t, 0, "approve")), "Nothing waits for a decision.")
	push := perdure.ApprovalSpec{Title: "Push?", Action: json.RawMessage(`{"branch":"main"}`)}
	id := asks(t, c, push)
	has(t, first(mustRun(t, 0, "approve")), string(id), "approve_push", "Push?", "asked by  deploy, run ",
		`"branch": "main"`, "until its own timeout: it then counts as rejected", "perdure approve ID decides")
	has(t, first(mustRun(t, 0, "approve", "--json")), `"approval_id": "`+string(id))
	has(t, first(mustRun(t, 0, "approve", string(id), "--json")), `"state": "open"`)
	// Standard input is no terminal, so nobody can be asked.
	out, errs := mustRun(t, 1, "approve", string(id))
	has(t, out, `"branch": "main"`)
	has(t, errs, "say --yes or --reject")
	decidedAs(t, c, id, perdure.ApprovalOpen)
	has(t, first(mustRun(t, 0, "approve", string(id), "--yes", "--comment", "go on")), string(id)+" is approved")
	if a := decidedAs(t, c, id, perdure.ApprovalApproved); a.Comment != "go on" || a.DecidedBy.Name != "admin" {
		t.Errorf("approval = %+v, want the comment, decided by admin", a)
	}
	mustRun(t, 0, "approve", string(id), "--yes") // repeating the decision is no error
	_, errs = mustRun(t, 1, "approve", string(id), "--reject")
	has(t, errs, "already_decided")
	out, _ = mustRun(t, 0, "approve", string(id)) // it is decided: nobody is asked
	has(t, out, "state     approved", "by        admin (key ", "comment   go on")

	id = asks(t, c, push)
	has(t, first(mustRun(t, 0, "approve", string(id), "--reject", "--json")), `"state": "rejected"`)
	push.Form = []perdure.FormField{{Name: "where", Type: perdure.FieldChoice, Options: []string{"eu", "us"},
		Required: true}}
	id = asks(t, c, push)
	_, errs = mustRun(t, 1, "approve", string(id), "--yes")
	has(t, errs, "answer_invalid", "answer.where")
	mustRun(t, 0, "approve", string(id), "--yes", "--answer", `{"where":"eu"}`)
	has(t, first(mustRun(t, 0, "approve", "--state", "all", "--limit", "1")), "There are more")
}

func TestBadCallsOfApproveAndSignal(t *testing.T) {
	live(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"approve -h", 0, "perdure approve ID --yes"},
		{"approve a b", 2, "Usage"},
		{"approve --yes", 2, "say which"},
		{"approve --comment x", 2, "say which"},
		{"approve apv_x --yes --reject", 2, "not both"},
		{"approve --limit 0", 2, "limit"},
		{"approve --state pending", 1, "state"},
		{"approve apv_x", 1, "not_found"},
		{"approve apv_x --yes", 1, "not_found"},
		{"signal", 2, "Usage"},
		{"signal run", 2, "Usage"},
		{"signal run name 1 2", 2, "Usage"},
		{"signal run name nonsense", 1, "is not valid JSON"},
		{"signal nowhere go 1", 1, "not_found"},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("perdure %s: exit code %d, want %d with %q\n%s%s", c.args, code, c.code, c.want, stdout, stderr)
		}
	}
}

func TestSignalsOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	id := asks(t, c, perdure.ApprovalSpec{Action: json.RawMessage(`1`)})
	run := string(decidedAs(t, c, id, perdure.ApprovalOpen).RunID)
	has(t, first(mustRun(t, 0, "signal", run, "hello", `{"a":1}`)), run+" suspended", "it waits for: approve_push")
	has(t, first(mustRun(t, 0, "signal", run, "hello", "--idempotency-key", "k", "--json")), `"run_id": "`+run)
	has(t, first(mustRun(t, 0, "signal", run, "approve_push", `{"decision":"reject"}`)), string(id)+" is decided",
		run+" queued")
	decidedAs(t, c, id, perdure.ApprovalRejected)
	_, errs := mustRun(t, 1, "signal", run, "approve_push", `{"decision":"approve"}`)
	has(t, errs, "no_open_approval")
}

// terminal replaces standard input by a terminal, and returns the person's end of it.
func terminal(t *testing.T) *os.File {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatalf("open a terminal: %v (mount -t devpts devpts /dev/pts)", err)
	}
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = in
	t.Cleanup(func() {
		os.Stdin = before
		in.Close()
		person.Close()
	})
	return person
}

func TestApproveAsksOnATerminal(t *testing.T) {
	c, _ := live(t)
	form := []perdure.FormField{{Name: "where", Type: perdure.FieldChoice, Options: []string{"eu", "us"},
		Required: true}, {Name: "n", Type: perdure.FieldNumber},
		{Name: "sure", Type: perdure.FieldBoolean}, {Name: "note", Type: perdure.FieldText}}
	for _, x := range []struct {
		typed  string
		form   []perdure.FormField
		code   int
		state  perdure.ApprovalState
		answer string
	}{
		{"y\n", nil, 0, perdure.ApprovalApproved, ""},
		{"YES\n", nil, 0, perdure.ApprovalApproved, ""},
		{"n\n", form, 0, perdure.ApprovalRejected, ""},
		{"\n", nil, 0, perdure.ApprovalOpen, ""},
		{"sure\n", nil, 0, perdure.ApprovalOpen, ""},
		{"\x04", nil, 0, perdure.ApprovalOpen, ""}, // end of input
		{"y\neu\n3\ny\n\n", form, 0, perdure.ApprovalApproved, `{"n":3,"sure":true,"where":"eu"}`},
		{"y\nmars\n\n\n\n", form, 1, perdure.ApprovalOpen, ""},
		{"y\neu\nthree\n\n\n", form, 1, perdure.ApprovalOpen, ""},
	} {
		id := asks(t, c, perdure.ApprovalSpec{Action: json.RawMessage(`"rm"`), Form: x.form})
		person := terminal(t)
		if _, err := io.WriteString(person, "y\ny"); err != nil { // before the question
			t.Fatal(err)
		}
		var out strings.Builder
		errs := &watched{text: "Approve?", seen: make(chan struct{})}
		go func() {
			<-errs.seen
			io.WriteString(person, x.typed)
		}()
		code := run([]string{"approve", string(id)}, &out, errs)
		stdout, stderr := out.String(), errs.all.String()
		if code != x.code || !strings.Contains(stdout, `"rm"`) || !strings.Contains(stderr, "Approve? [y/n") {
			t.Errorf("answer %q: exit code = %d, want %d with the action and the question\n%s%s",
				x.typed, code, x.code, stdout, stderr)
		}
		if a := decidedAs(t, c, id, x.state); string(a.Answer) != x.answer {
			t.Errorf("answer %q: form = %s, want %s", x.typed, a.Answer, x.answer)
		}
	}
}

func TestInterruptedPromptDecidesNothing(t *testing.T) {
	r, _ := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var decision perdure.Decision
	err := askPerson(ctx, newKeyboard(r), io.Discard, &perdure.Approval{}, &decision)
	if err == nil || decision.Decision != "" {
		t.Errorf("interrupted prompt: decision %+v (error %v), want an error and no decision", decision, err)
	}
}

// Text from an agent is escaped, so that it can't look like something else.
func TestApprovalsAreEscaped(t *testing.T) {
	at := perdure.At(time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC))
	evil := "push\u202emain\u2066\x1b[2J\x1b]0;owned\x07\u200b\u00ad\rall\u2028\u0085\xff"
	page := &api.Approvals{NextCursor: "apv_2", Approvals: []perdure.Approval{
		{ID: "apv_1", RunID: "01999999-9999-7999-8999-999999999999", Kind: "deploy", Name: "approve_push",
			Title: "Push to main?\nasked by  your boss", State: perdure.ApprovalOpen,
			OpenedAt: at.Add(-time.Minute), ExpiresAt: at.Add(9*time.Minute + 30*time.Second),
			Action: perdure.Value(`{"cmd":["git","push"],"to":"` + "ma\u202ein\u200b" + `","note":"\u001b[2J"}`),
			Form: []perdure.FormField{{Name: "where", Label: "Where to?", Type: perdure.FieldChoice,
				Options: []string{"eu", "u\u202es"}, Required: true}, {Name: "why", Type: perdure.FieldText}}},
		{ID: "apv_2", RunID: "01888888-8888-7888-8888-888888888888", Kind: "größe", Name: "start_task", Title: evil,
			State: perdure.ApprovalOpen, Default: perdure.Approve,
			OpenedAt: at.Add(-time.Hour), ExpiresAt: at.Add(-time.Second),
			Action: perdure.Value("[" + strings.Repeat("1,", 30) + "1]")},
		{ID: "apv_3", RunID: "01888888-8888-7888-8888-888888888888", Kind: "deploy", Name: "start_task",
			State: perdure.ApprovalApproved, OpenedAt: at.Add(-time.Hour), Action: `"x"`,
			DecidedAt: at, DecidedBy: &perdure.Decider{KeyID: "98b00a90b8b0", Name: "ada"}, Comment: evil,
			Answer: `{"where":"eu"}`},
		{ID: "apv_4", RunID: "01888888-8888-7888-8888-888888888888", Kind: "deploy", Name: "start_task",
			State: perdure.ApprovalOpen, OpenedAt: at.Add(-time.Hour), Action: `"y"`,
			ExpiresAt: at.Add(time.Minute), ExpiresBy: perdure.ExpiresByDeadline, Default: perdure.Approve},
		{ID: "apv_5", RunID: "01888888-8888-7888-8888-888888888888", Kind: "deploy", Name: "start_task",
			State: perdure.ApprovalOpen, OpenedAt: at.Add(-time.Hour), Action: `"z"`,
			ExpiresAt: at.Add(time.Hour), ExpiresBy: perdure.ExpiresByTimeout},
	}}
	var b bytes.Buffer
	if err := printApprovals(&b, page, at.Time()); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "approve.txt", b.String())
	if bad := regexp.MustCompile(`[^\n\PC]|[\x{2028}\x{2029}\x{85}]`).FindString(b.String()); bad != "" {
		t.Errorf("the output contains %q, want it escaped", bad)
	}
}
