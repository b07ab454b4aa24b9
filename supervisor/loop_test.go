package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
)

func TestQuestionWithoutTools(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{says("user", "capital", "Lima.")}}
	end := w.scenario("What is the capital of Peru?").Run(t)
	checkThread(t, end, "user: What is the capital of Peru?", "assistant: Lima.")
	if out := result(t, end); out.Answer != "Lima." || out.Ended != supervisor.EndedAnswered || out.Turns != 1 ||
		out.Usage.Total() == 0 {
		t.Errorf("result = %+v, want the answer Lima. in one turn, with its usage", out)
	}
}

// What the model thinks is in the log before its answer, on a channel of its own.
func TestReasoningIsInTheLog(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{{Match: mockmodel.Match{Last: "capital"},
		Answer: mockmodel.Answer{Text: "Lima.", Reasoning: "It is in Peru"}}}}
	var text client.Text
	told := ""
	end := w.scenario("What is the capital of Peru?").Run(t)
	for i := range end.Events {
		e := &end.Events[i]
		text.Add(e)
		if e.Type == perdure.LineDelta {
			var d struct{ Channel, Text string }
			if err := json.Unmarshal(e.Data, &d); err != nil {
				t.Fatal(err)
			}
			told += "[" + d.Channel + "]" + d.Text
		}
	}
	if got := strings.ReplaceAll(told, "Peru[reasoning]", "Peru"); !strings.HasPrefix(got, "[reasoning]It") ||
		!strings.HasSuffix(got, "[]Lima.") || text.String() != "Lima." {
		t.Errorf("lines %q with the text %q, want the reasoning, and then Lima. alone as the text", told, text.String())
	}
}

func TestToolResultIsAnswered(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{
		calls("count", call("count", args{"to": 3})),
		{Match: mockmodel.Match{Tool: "count"}, Answer: mockmodel.Answer{Text: "I counted {{last}}"}},
	}, tools: func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, true)} }}
	end := w.scenario("Please count to three").Run(t)
	checkThread(t, end, "user: ", "assistant: I counted 1 1 1")
	if end.Notes["counted"] != 1 {
		t.Errorf("the tool was called %d times, want once", end.Notes["counted"])
	}
}

// The worker or the server crashes at every point. A tool with a recorded result is not called again.
// One without is called again only if that is safe: otherwise the model is told.
func TestCrashRepeatsNoTool(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{
		calls("go", call("count", args{"to": 3}), call("pay", args{})),
		{Match: mockmodel.Match{Tool: "pay", Last: "outcome unknown"}, Answer: mockmodel.Answer{Text: "unsure"}},
		{Match: mockmodel.Match{Tool: "pay"}, Answer: mockmodel.Answer{Text: "done"}},
	}, tools: func(s *agenttest.Trial) []supervisor.Tool {
		return []supervisor.Tool{counter(s, true), supervisor.Func(supervisor.Spec{Name: "pay"},
			func(ctx context.Context, _ struct{}) (string, error) { s.Note(ctx, "paid"); return "ok", nil })}
	}}
	sc := w.scenario("go")
	sc.Scrub = func(string, string) string { return "" } // an unknown outcome leads to another answer
	unsure := 0
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		lost := func(tool string) bool { // the crash has lost its result
			return strings.HasPrefix(end.Crash, "the worker dies before") &&
				strings.Contains(end.Crash, "records tool "+tool)
		}
		if n := end.Notes["counted"]; n != 1 && !(n == 2 && lost("count")) {
			t.Errorf("%s: the safe tool was called %d times, want once", end.Crash, n)
		}
		answer := result(t, end).Answer
		switch died := strings.HasPrefix(end.Crash, "the worker dies"); {
		case end.Notes["paid"] > 1:
			t.Errorf("%s: the unsafe tool was called %d times, want once at most", end.Crash, end.Notes["paid"])
		case answer == "unsure" && died:
			unsure++
		case answer != "done" || end.Notes["paid"] != 1 || lost("pay"):
			t.Errorf("%s: answer = %q after %d calls, want done after one, or unsure", end.Crash, answer,
				end.Notes["paid"])
		}
	})
	if unsure == 0 {
		t.Error("no crash left the outcome unknown, want the one before the record of the result")
	}
}

func TestMalformedCallsAreAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		call mockmodel.Call
		want string
	}{
		"no JSON":       {call("count", `{"to": 3`), "malformed"},
		"wrong type":    {call("count", args{"to": "three"}), "do not fit"},
		"unknown field": {call("count", args{"until": 3}), "do not fit"},
		"unknown tool":  {call("launch", args{}), "there is no tool"},
		"no worker":     {call("cancel_worker", args{"worker": "worker#7"}), "there is no worker"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{rules: []mockmodel.Rule{calls("go", c.call),
				{Match: mockmodel.Match{Role: "tool"}, Answer: mockmodel.Answer{Text: "told: {{last}}"}},
			}, tools: func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, true)} }}
			end := w.scenario("go").Run(t)
			checkThread(t, end, "user: go", c.want)
			if len(end.Notes) > 0 {
				t.Errorf("notes = %v, want that no tool was called", end.Notes)
			}
		})
	}
}

func TestLimitsEndInAMessage(t *testing.T) {
	again := []mockmodel.Rule{{Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call("count", args{"to": 1})}}}}
	tools := func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, true)} }
	for name, c := range map[string]struct {
		opt   supervisor.Options
		ended string
	}{
		"turns":  {supervisor.Options{MaxTurns: 3}, supervisor.EndedTurnLimit},
		"tokens": {supervisor.Options{Budget: supervisor.Budget{Tokens: 200}}, supervisor.EndedBudget},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{rules: again, tools: tools, opt: c.opt}
			end := w.scenario("go").Run(t)
			checkThread(t, end, "user: go", "assistant: I stop here")
			if out := result(t, end); out.Ended != c.ended || end.Run.State != perdure.Completed ||
				out.Turns > 3 {
				t.Errorf("run is %s with %+v, want completed and %s after 3 turns at most", end.Run.State, out, c.ended)
			}
		})
	}
}

// A run that is cancelled while it waits for a worker ends in a message, and so does the worker.
func TestCancelEndsInAMessage(t *testing.T) {
	w := &world{rules: delegate(args{"task": "look"}), workerTools: sleepers(time.Hour)}
	sc := w.scenario("How full is the disk?")
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(20 * time.Second)
		s.Cancel("enough")
	}
	end := sc.Run(t)
	checkThread(t, end, "user: ", "system: This run was cancelled")
	for name, r := range end.Tree {
		if r.State != perdure.Cancelled {
			t.Errorf("%s is %s, want cancelled", name, r.State)
		}
	}
}

func TestCallsOfToolsAreInTheLog(t *testing.T) {
	long := strings.Repeat("\"x", 5000)
	w := &world{rules: []mockmodel.Rule{calls("go", call("count", args{"to": 1}),
		call("count", args{"to": 1, "why": long}), call("launch", args{})),
		says("tool", "", "done")},
		tools: func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, true)} }}
	var got []string
	for _, e := range w.scenario("go").Run(t).Events {
		if e.Type == perdure.LineToolStarted {
			var line struct{ Input string }
			var sent struct{ Why string }
			bad := json.Unmarshal(e.Data, &line) != nil || json.Unmarshal([]byte(line.Input), &sent) != nil
			if bad || len(got) > 0 && sent.Why != long {
				t.Errorf("the arguments are not whole in the line: %.300s", e.Data)
			}
		}
		if strings.HasPrefix(string(e.Type), "worker:tool_") {
			got = append(got, string(e.Type))
		}
	}
	if want := "worker:tool_started worker:tool_started worker:tool_completed worker:tool_failed " +
		"worker:tool_failed"; strings.Join(got, " ") != want {
		t.Errorf("lines = %v, want %s", got, want)
	}
}

// A tool that fails in whatever way is answered, and the conversation goes on.
func TestFailingToolsAreAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(ctx context.Context) (string, error)
		want string
	}{
		"error":   {func(context.Context) (string, error) { return "", errors.New("no paper") }, "error: no paper"},
		"panic":   {func(context.Context) (string, error) { panic("on fire") }, "the tool panicked: on fire"},
		"nothing": {func(context.Context) (string, error) { return "", nil }, "(no output)"},
		"bytes":   {func(context.Context) (string, error) { return "a\x00b\xffc", nil }, "a\ufffdb\ufffdc"},
		"timeout": {func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }, "within 2m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			tool := supervisor.Func(supervisor.Spec{Name: "print", Timeout: 2 * time.Minute},
				func(ctx context.Context, _ struct{}) (string, error) { return c.f(ctx) })
			w := &world{rules: []mockmodel.Rule{calls("print", call("print", args{})),
				says("tool", "", "Told: {{last}}")},
				tools: func(*agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{tool} }}
			checkThread(t, w.scenario("print").Run(t), "user: print", c.want)
		})
	}
}

// A message that comes while the model thinks is answered too.
func TestMessageDuringTheAnswerIsAnswered(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{says("user", "second", "Second answer."),
		{Match: mockmodel.Match{Last: "first"}, Answer: mockmodel.Answer{Text: "First answer.",
			FirstToken: perdure.Duration(20 * time.Second)}}}}
	sc := w.scenario("first")
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(10 * time.Second)
		write(t, s, "second")
	}
	checkThread(t, sc.Run(t), "user: first", "user: second", "assistant: First answer.", "assistant: Second answer.")
}

// write appends a message of the user to the thread.
func write(t *testing.T, s *agenttest.Trial, text string) {
	t.Helper()
	run, err := s.Client().Get(s.Context(), s.RunID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().AppendMessage(s.Context(), run.ThreadID,
		perdure.Message{Role: perdure.RoleUser, Content: client.JSON(text)}); err != nil {
		t.Fatal(err)
	}
}

// A run goes on under a new configuration with the limits with which it began.
func TestNewConfigurationFitsTheJournal(t *testing.T) {
	w := &world{tools: reader(8000), rules: []mockmodel.Rule{calls("paint", call("read", args{})),
		{Match: mockmodel.Match{Tool: "read"}, Answer: mockmodel.Answer{
			ToolCalls: []mockmodel.Call{call("ask_human", args{"question": "Which colour?"})}}},
		says("tool", "", "Told: {{last}}")}}
	sc := w.scenario("paint " + strings.Repeat("it well ", 15_000))
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(time.Minute)
		w.sup.Change(func(o *supervisor.Options) {
			o.MaxTurns, o.Window, o.SuspendTimeout, o.System = 1, 2000, time.Hour, strings.Repeat("Be kind. ", 50_000)
		})
		s.Decide(perdure.Decision{Decision: perdure.Approve, Answer: client.JSON(args{"answer": "blue"})})
	}
	checkThread(t, sc.Run(t), "user: paint", "assistant: Which colour?", "user: blue", "Told: blue")
}
