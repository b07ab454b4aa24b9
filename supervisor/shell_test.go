package supervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
)

// shelling is a world whose model executes one program.
func shelling(t *testing.T, opt supervisor.ShellOptions, in args) *world {
	t.Helper()
	shell, err := supervisor.Shell(opt)
	if err != nil {
		t.Fatal(err)
	}
	return &world{tools: func(*agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{shell} },
		rules: []mockmodel.Rule{calls("go", call("shell", in)), says("tool", "", "Output: {{last}}")}}
}

func TestShell(t *testing.T) {
	t.Setenv("SECRET_OF_THE_TEST", "hush")
	file := filepath.Join(t.TempDir(), "made")
	listed := supervisor.ShellOptions{Allow: [][]string{{"echo", "a;", "$HOME"}, {"env"}, {"echo", "*", "-n"},
		{"sh", "-c", "exit 3"}}, Approve: supervisor.ApproveNever,
		Env: []string{"COLOUR=red"}}
	interpreter := supervisor.ShellOptions{Interpreter: true}
	for _, c := range []struct {
		name   string
		opt    supervisor.ShellOptions
		in     args
		decide perdure.DecisionKind
		want   string
	}{
		{"listed", listed, args{"program": "echo", "args": []any{"a;", "$HOME"}}, "", "Output: a; $HOME"},
		{"environment", listed, args{"program": "env"}, "", "COLOUR=red"},
		{"status", listed, args{"program": "sh", "args": []any{"-c", "exit 3"}}, "", "exit status 3"},
		{"refused", listed, args{"program": "touch", "args": []any{file}}, "", "not on the list"},
		{"path is no name", listed, args{"program": "/bin/echo"}, "", "not on the list"},
		{"one argument", listed, args{"program": "echo", "args": []any{"word", "-n"}}, "", "Output: word -n"},
		{"an argument that is a path", listed, args{"program": "echo", "args": []any{"../x", "-n"}}, "",
			"not on the list"},
		{"an argument that is an option", listed, args{"program": "echo", "args": []any{"--files0-from=x", "-n"}}, "",
			"not on the list"},
		{"an argument too many", listed, args{"program": "env", "args": []any{"sh"}}, "", "not on the list"},
		{"an argument too few", listed, args{"program": "echo", "args": []any{"word"}}, "", "not on the list"},
		{"an empty argument", listed, args{"program": "echo", "args": []any{"", "-n"}}, "", "not on the list"},
		{"another tenant's", supervisor.ShellOptions{Allow: listed.Allow, Tenant: "platform"},
			args{"program": "env"}, "", "there is no tool"},
		{"command line refused", listed, args{"command": "touch " + file}, "", "not allowed"},
		{"both", interpreter, args{"command": "touch " + file, "program": "echo"}, "", "not both"},
		{"approved", interpreter, args{"command": "echo a | tr a b"}, perdure.Approve, "Output: b"},
		{"rejected", interpreter, args{"command": "touch " + file}, perdure.Reject, "forbidden"},
		{"nobody decides", supervisor.ShellOptions{}, args{"program": "touch", "args": []any{file}}, "",
			"nobody has allowed"},
		{"always", supervisor.ShellOptions{Allow: [][]string{{"touch", file}}, Approve: supervisor.ApproveAlways},
			args{"program": "touch", "args": []any{file}}, perdure.Reject, "forbidden"},
		{"no program", listed, args{}, "", "there is no program"},
		{"missing", supervisor.ShellOptions{Allow: [][]string{{"no-such-program"}}},
			args{"program": "no-such-program"}, "", "error: exec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc := shelling(t, c.opt, c.in).scenario("go")
			if c.decide != "" {
				sc.Script = func(s *agenttest.Trial) { s.Decide(perdure.Decision{Decision: c.decide}) }
			}
			end := sc.Run(t)
			checkThread(t, end, "user: go", c.want)
			if strings.Contains(texts(end)[1], "hush") {
				t.Error("the program has the environment of this process")
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("the program was executed, want that it was refused")
			}
		})
	}
}

// A message in the chat is the answer to a question, which is in the thread. The approval is withdrawn.
func TestChatMessageAnswersAQuestion(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{calls("paint", call("ask_human", args{"question": "Which colour?"})),
		says("tool", "", "Told: {{last}}")}}
	sc := w.scenario("paint")
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(30 * time.Second)
		write(t, s, "blue")
		s.Sleep(30 * time.Second)
		page, err := s.Client().Approvals(s.Context(), client.ApprovalFilter{State: "all"})
		if err != nil || len(page.Approvals) != 1 || page.Approvals[0].State == perdure.ApprovalOpen {
			t.Errorf("approvals = %+v (%v), want one that is closed", page, err)
			return
		}
		if _, err := s.Client().Decide(s.Context(), page.Approvals[0].ID,
			api.Decide{Decision: perdure.Approve, Answer: client.JSON(args{"answer": "red"})}); err == nil {
			t.Error("the question was answered a second time, want an error")
		}
	}
	checkThread(t, sc.Run(t), "user: paint", "assistant: Which colour?", "user: blue", "assistant: Told: blue")
}

func TestAskHuman(t *testing.T) {
	for _, c := range []struct {
		name     string
		decision *perdure.Decision
		want     string
	}{
		{"answered", &perdure.Decision{Decision: perdure.Approve, Answer: client.JSON(args{"answer": "blue"})},
			"Told: blue"},
		{"declined", &perdure.Decision{Decision: perdure.Reject, Comment: "no time"}, "declined to answer. no time"},
		{"nobody answers", nil, "Nobody has answered within 20m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{opt: supervisor.Options{SuspendTimeout: 20 * time.Minute},
				rules: []mockmodel.Rule{calls("paint", call("ask_human", args{"question": "Which colour?"})),
					says("tool", "", "Told: {{last}}")}}
			sc := w.scenario("paint")
			if c.decision != nil {
				sc.Script = func(s *agenttest.Trial) { s.Decide(*c.decision) }
			}
			want := []string{"user: paint", "assistant: Which colour?"}
			if c.name == "answered" { // elsewhere, and shown as what the person has said
				want = append(want, "user: blue")
			}
			checkThread(t, sc.Run(t), append(want, c.want)...)
		})
	}
}
