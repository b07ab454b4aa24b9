package supervisor_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/worker"
)

// executing is a world whose model executes one command. The runner is a function, which notes commands.
func executing(t *testing.T, opt supervisor.ExecOptions, in args, took time.Duration, result string) *world {
	t.Helper()
	tool, err := supervisor.Exec(opt)
	if err != nil {
		t.Fatal(err)
	}
	return &world{tools: func(*agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{tool} },
		rules: []mockmodel.Rule{calls("go", call("code", in)),
			says("tool", "works on in the background", "It takes a while."),
			says("tool", "", "Output: {{last}}"), says("user", "has ended in the background", "Later: {{last}}")},
		register: func(s *agenttest.Trial, w *worker.Worker) {
			worker.Handle(w, supervisor.ExecKind, func(ctx context.Context, in struct {
				Command []string
				Dir     string
			}) (json.RawMessage, error) {
				s.Note(ctx, strings.Join(in.Command, "|")+" in "+in.Dir)
				if result == "" {
					return nil, perdure.Permanent(worker.Fail("exit_status", "exit code 3: no licence"))
				}
				select {
				case <-time.After(took):
				case <-ctx.Done():
				}
				return json.RawMessage(result), nil
			})
		}}
}

func TestExec(t *testing.T) {
	opt := supervisor.ExecOptions{Name: "code", Command: []string{"claude", "-p", "{prompt}", "--model={model}"},
		Dir: "/srv", Approve: supervisor.ApproveNever}
	asks := opt
	asks.Approve = ""
	in := args{"prompt": "fix it; rm -rf $HOME", "model": "big"}
	const done = `{"engine":"generic","exit_code":0,"text":"","output_tail":"all green"}`
	const ran = "claude|-p|fix it; rm -rf $HOME|--model=big in /srv"
	for _, c := range []struct {
		name   string
		opt    supervisor.ExecOptions
		in     args
		decide perdure.DecisionKind
		result string
		want   string
		ran    string
	}{
		{"tail", opt, in, "", done, "Output: all green", ran},
		{"text", opt, in, "", `{"engine":"claude-code","exit_code":0,"text":"fixed","output_tail":"x"}`,
			"Output: fixed", ran},
		{"silent", opt, in, "", `{"engine":"generic","exit_code":0}`, "no output, exit code 0", ran},
		{"fails", opt, in, "", "", "exit code 3: no licence", ran},
		{"option", opt, args{"prompt": "--dangerous", "model": "big"}, "", done, "begins with a hyphen", ""},
		{"missing", opt, args{"prompt": "x"}, "", done, "model is missing", ""},
		{"unknown", opt, args{"prompt": "x", "model": "y", "command": "z"}, "", done, "there is no", ""},
		{"wrong type", opt, args{"prompt": 7, "model": "y"}, "", done, "do not fit", ""},
		{"approved", asks, in, perdure.Approve, done, "Output: all green", ran},
		{"rejected", asks, in, perdure.Reject, done, "forbidden", ""},
		{"nobody decides", asks, in, "", done, "nobody has allowed", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc := executing(t, c.opt, c.in, time.Second, c.result).scenario("go")
			if c.decide != "" {
				sc.Script = func(s *agenttest.Trial) { s.Decide(perdure.Decision{Decision: c.decide}) }
			}
			end := sc.Run(t)
			checkThread(t, end, "user: go", c.want)
			if n := end.Notes[c.ran]; c.ran != "" && n != 1 || c.ran == "" && len(end.Notes) > 0 {
				t.Errorf("commands = %v, want %q once", end.Notes, c.ran)
			}
		})
	}
}

// A command that takes longer than the wait continues the conversation.
func TestSlowExecContinues(t *testing.T) {
	w := executing(t, supervisor.ExecOptions{Name: "code", Command: []string{"make"}, Approve: supervisor.ApproveNever},
		args{}, 20*time.Minute, `{"engine":"generic","exit_code":0,"output_tail":"all green"}`)
	end := w.scenario("go").Run(t)
	checkThread(t, end, "user: go", "assistant: It takes a while.", "tool: ", "all green")
	if run := end.Tree["supervisor/exec#1"]; run.Class != perdure.Process || run.State != perdure.Completed {
		t.Errorf("the command is %s of class %s, want a completed process", run.State, run.Class)
	}
}
