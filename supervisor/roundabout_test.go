package supervisor_test

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/worker"
)

// delegate are rules for a supervisor that has one task done by a worker. The worker calls the tool
// sleep.
func delegate(spawn args, more ...mockmodel.Rule) []mockmodel.Rule {
	return append([]mockmodel.Rule{
		{Match: mockmodel.Match{System: "You are a worker", Role: "user"},
			Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call("sleep", args{})},
				Usage: &mockmodel.Usage{Prompt: 9000}}},
		{Match: mockmodel.Match{System: "You are a worker", Role: "tool"}, Answer: mockmodel.Answer{Text: "42% used"}},
		says("user", "has ended in the background", "Finally: {{last}}"),
		calls("disk", call("spawn_worker", spawn)),
	}, more...)
}

func sleepers(d time.Duration) func(s *agenttest.Trial) []supervisor.Tool {
	return func(*agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{sleeper(d)} }
}

func TestWorkerIsJoined(t *testing.T) {
	w := &world{rules: delegate(args{"task": "look"}, says("tool", "42%", "It is {{last}}.")),
		workerTools: sleepers(20 * time.Second)}
	end := w.scenario("How full is the disk?").Run(t)
	checkThread(t, end, "user: ", "assistant: It is 42% used.")
	if got := end.Tree["supervisor/supervisor.worker#1"]; got.State != perdure.Completed {
		t.Errorf("worker is %s, want completed", got.State)
	}
	if n := w.sent("You supervise a worker"); n != 0 {
		t.Errorf("the model was asked about a healthy worker %d times, want never", n)
	}
	if out := result(t, end); out.Usage.Total() <= 9000 {
		t.Errorf("usage = %+v, want that of the worker in it", out.Usage)
	}
}

func TestWorkerLeavesArtifacts(t *testing.T) {
	w := &world{rules: delegate(args{"task": "look"}, says("tool", "42%", "Fine.")), workerTools: sleepers(time.Second)}
	sc := w.scenario("How full is the disk?")
	found := map[string]string{}
	sc.Script = func(s *agenttest.Trial) {
		if _, _, err := s.Client().Join(s.Context(), s.RunID(), time.Hour); err != nil {
			t.Error(err)
		}
		tree, err := s.Client().Tree(s.Context(), s.RunID(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range tree.Runs {
			list, err := s.Client().Artifacts(s.Context(), r.RunID)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range list {
				body, _, err := s.Client().Artifact(s.Context(), r.RunID, a.Name)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(body)
				if err := errors.Join(err, body.Close()); err != nil {
					t.Error(err)
				}
				found[a.Name] = string(text)
			}
		}
	}
	sc.Run(t)
	for name, text := range map[string]string{
		"conversation.json": `"look"`, "tool-calls.json": `"slept"`, "result.txt": "42% used",
	} {
		if !strings.Contains(found[name], text) {
			t.Errorf("artifact %s = %q, want %s in it", name, found[name], text)
		}
	}
}

// A worker that is slower than the wait goes on in the background, and its result continues the
// conversation.
func TestSlowWorkerContinuesTheConversation(t *testing.T) {
	w := &world{rules: delegate(args{"task": "look", "wait": 30}, says("tool", "background", "Still looking.")),
		workerTools: sleepers(5 * time.Minute)}
	end := w.scenario("How full is the disk?").Run(t)
	checkThread(t, end, "user: ", "assistant: Still looking.", `tool: {`,
		"assistant: Finally: supervisor.worker#1 has ended")
	if !strings.Contains(texts(end)[3], "42% used") {
		t.Errorf("last message = %q, want the worker's result in it", texts(end)[3])
	}
	if took := end.Run.FinishedAt.Sub(end.Run.CreatedAt); took < 30*time.Second || took > time.Minute {
		t.Errorf("the first answer took %s, want about 30s", took)
	}
	if n := w.sent("You supervise a worker"); n != 0 {
		t.Errorf("the model was asked about a healthy worker %d times, want never", n)
	}
}

func TestCrashInAConversationWithAWorker(t *testing.T) {
	w := &world{rules: delegate(args{"task": "look", "wait": 2}, says("tool", "background", "Still looking.")),
		workerTools: func(s *agenttest.Trial) []supervisor.Tool {
			return []supervisor.Tool{sleeper(4 * time.Minute)}
		}}
	sc := w.scenario("How full is the disk?")
	sc.Scrub = func(field, text string) string {
		if strings.Contains(field, "look#") {
			return "" // what can be seen of a worker depends on the time, and so does the number of tokens
		}
		return regexp.MustCompile(`"input":\d+`).ReplaceAllString(text, "")
	}
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		checkThread(t, end, "user: ", "assistant: Still looking.", `tool: {`,
			"assistant: Finally: supervisor.worker#1 has ended")
	})
}

// A stuck is a kind that shows no progress until its context ends, or for a time.
func stuck(d time.Duration) func(*agenttest.Trial, *worker.Worker) {
	return func(_ *agenttest.Trial, w *worker.Worker) {
		worker.Handle(w, "dig", func(ctx context.Context, _ struct{}) (string, error) {
			_ = worker.Progress(ctx, args{"depth": 7})
			select {
			case <-time.After(d):
				return "gold", nil
			case <-ctx.Done():
				return "", errors.Join(ctx.Err(), context.Cause(ctx))
			}
		})
	}
}

// digging is a world in which the supervisor starts a run that looks stuck after a minute. Checks
// are decided as given, the last one again and again.
func digging(takes time.Duration, more []mockmodel.Rule, decisions ...string) (*world, agenttest.Scenario) {
	w := &world{register: stuck(takes), opt: supervisor.Options{WorkerWait: time.Hour},
		tools: func(*agenttest.Trial) []supervisor.Tool {
			return []supervisor.Tool{supervisor.Run(supervisor.Spec{Name: "dig", Timeout: 55 * time.Minute}, "dig",
				agent.Options{})}
		}}
	for i, d := range decisions {
		rule := mockmodel.Rule{Times: 1, Match: mockmodel.Match{System: "You supervise", Last: `depth`},
			Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call("decide", args{"action": d})}}}
		if i == len(decisions)-1 {
			rule.Times = 0
		}
		w.rules = append(w.rules, rule)
	}
	w.rules = append(w.rules, more...)
	w.rules = append(w.rules, says("user", "has ended in the background", "At last: {{last}}"),
		calls("dig", call("dig", args{})),
		mockmodel.Rule{Match: mockmodel.Match{Role: "tool"}, Answer: mockmodel.Answer{Text: "Result: {{last}}"}})
	sc := w.scenario("dig")
	policy := perdure.DefaultPolicy()
	policy.NoProgress = time.Minute
	sc.Server.Policy = &policy
	return w, sc
}

func TestRoundaboutDecisions(t *testing.T) {
	for _, c := range []struct {
		name      string
		decisions []string
		takes     time.Duration
		want      string
		state     perdure.State
		checks    int
	}{
		{"healthy", []string{"cancel"}, 30 * time.Second, "Result: gold", perdure.Completed, 0},
		{"wait", []string{"wait"}, 5*time.Minute + 30*time.Second, "Result: gold", perdure.Completed, 5},
		{"cancel", []string{"wait", "cancel"}, 50 * time.Minute, "was stopped", perdure.Cancelled, 2},
		{"take", []string{"peek", "take"}, 50 * time.Minute, "depth", perdure.Cancelled, 2},
		{"background", []string{"background"}, 50 * time.Minute, "works on in the background", perdure.Completed, 1},
		{"peeks without end", []string{"peek"}, 90 * time.Second, "Result: gold", perdure.Completed, 3},
		{"nonsense", []string{"explode"}, 90 * time.Second, "Result: gold", perdure.Completed, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, sc := digging(c.takes, nil, c.decisions...)
			end := sc.Run(t)
			want := []string{"user: dig", c.want}
			if c.name == "background" {
				want = append(want, "gold", "At last: dig#1")
			}
			checkThread(t, end, want...)
			if got := end.Tree["supervisor/dig#1"].State; got != c.state {
				t.Errorf("the child is %s, want %s", got, c.state)
			}
			if n := w.sent("You supervise a worker"); n != c.checks {
				t.Errorf("the model was asked %d times, want %d", n, c.checks)
			}
		})
	}
}

// A model that fails in a check decides nothing: the wait goes on.
func TestFailedCheckWaits(t *testing.T) {
	_, sc := digging(2*time.Minute, []mockmodel.Rule{
		{Match: mockmodel.Match{System: "You supervise"}, Answer: mockmodel.Answer{Status: 400}}})
	checkThread(t, sc.Run(t), "user: dig", "Result: gold")
}

// A check that gets no answer delays neither the end of a worker nor what the user writes.
func TestHangingCheckDelaysNothing(t *testing.T) {
	hang := mockmodel.Rule{Match: mockmodel.Match{System: "You supervise"},
		Answer: mockmodel.Answer{Fault: mockmodel.FaultHang}}
	away := mockmodel.Rule{Match: mockmodel.Match{System: "You supervise"}, Answer: mockmodel.Answer{Status: 503}}
	for name, rule := range map[string]mockmodel.Rule{"hangs": hang, "away": away} {
		t.Run(name, func(t *testing.T) {
			_, sc := digging(65*time.Second, []mockmodel.Rule{rule})
			end := sc.Run(t)
			checkThread(t, end, "user: dig", "Result: gold")
			if took := time.Duration(end.Run.ElapsedMS) * time.Millisecond; took > 75*time.Second {
				t.Errorf("the answer came after %s, want it soon after the worker's 65s", took)
			}
		})
	}
}

// While a call of the model is retried, the user is heard: what they write is part of the next try.
func TestRetryHearsTheUser(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{says("user", "forget it", "Forgotten."),
		{Answer: mockmodel.Answer{Status: 503}}}}
	sc := w.scenario("hello")
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(100 * time.Second) // the pauses are minutes by now
		write(t, s, "forget it")
	}
	end := sc.Run(t)
	checkThread(t, end, "user: hello", "user: forget it", "assistant: Forgotten.")
	if took := time.Duration(end.Run.ElapsedMS) * time.Millisecond; took > 2*time.Minute {
		t.Errorf("the answer came after %s, want it soon after the message at 100s", took)
	}
}

// A message of the user is taken up while the run waits for a child.
func TestUserWritesMeanwhile(t *testing.T) {
	_, sc := digging(10*time.Minute, []mockmodel.Rule{
		calls("stop it", call("cancel_worker", args{"worker": "dig#1"})),
		{Match: mockmodel.Match{Tool: "cancel_worker"}, Answer: mockmodel.Answer{Text: "Stopped."}},
	}, "wait")
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(30 * time.Second)
		write(t, s, "stop it")
	}
	end := sc.Run(t)
	checkThread(t, end, "user: dig", "user: stop it", "assistant: Stopped.")
	if got := end.Tree["supervisor/dig#1"].State; got != perdure.Cancelled {
		t.Errorf("the child is %s, want cancelled", got)
	}
}

// A model that always leaves a worker behind is called again five times, and then waits.
func TestContinuationsEnd(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{
		{Match: mockmodel.Match{System: "You are a worker"},
			Answer: mockmodel.Answer{Text: "worked", FirstToken: perdure.Duration(time.Second)}},
		{Match: mockmodel.Match{Role: "user"},
			Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call("spawn_worker",
				args{"task": "more", "wait": 0})}}},
		says("tool", "", "Told: {{last}}"),
	}}
	end := w.scenario("go").Run(t)
	runs := 0
	for _, r := range end.Tree {
		if r.Kind == supervisor.Kind {
			runs++
		}
	}
	if said := texts(end); runs != 6 || !strings.HasSuffix(said[len(said)-1], "Told: worked") {
		t.Errorf("there were %d runs, and the last message is %q; want 6, and an answer", runs, said[len(said)-1])
	}
}

// A worker has a thread of its own, and a person can write to it there.
func TestWorkerHasAThread(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{
		{Match: mockmodel.Match{System: "You are a worker", Last: "hurry"}, Answer: mockmodel.Answer{Text: "hurried"}},
		{Match: mockmodel.Match{System: "You are a worker", Role: "user"},
			Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call("sleep", args{})}}},
		calls("disk", call("spawn_worker", args{"task": "look"})), says("tool", "", "Told: {{last}}")},
		workerTools: sleepers(20 * time.Second)}
	sc := w.scenario("How full is the disk?")
	var thread perdure.ThreadID
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(10 * time.Second)
		tree, err := s.Client().Tree(s.Context(), s.RunID(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range tree.Runs {
			if r.Kind != supervisor.WorkerKind {
				continue
			}
			thread = r.ThreadID
			if _, err := s.Client().AppendMessage(s.Context(), thread,
				perdure.Message{Role: perdure.RoleUser, Content: client.JSON("hurry")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	end := sc.Run(t)
	checkThread(t, end, "user: ", "Told: hurried")
	if thread == "" || thread == end.Run.ThreadID {
		t.Errorf("thread of the worker = %q, want one of its own", thread)
	}
}

// A kind that is not safe to repeat is tried once, and its failure is shown to the model.
func TestUnsafeRunHasOneAttempt(t *testing.T) {
	w, sc := digging(time.Minute, nil)
	w.register = func(s *agenttest.Trial, w *worker.Worker) {
		worker.Handle(w, "dig", func(ctx context.Context, _ struct{}) (string, error) {
			s.Note(ctx, "dug")
			return "", errors.New("the shovel broke")
		})
	}
	end := sc.Run(t)
	checkThread(t, end, "user: dig", "error: failed: the shovel broke")
	if end.Notes["dug"] != 1 {
		t.Errorf("the run was tried %d times, want once", end.Notes["dug"])
	}
}

// A child that the server refuses is an error for the model, however short the wait is.
func TestRefusedChildIsAnswered(t *testing.T) {
	w, sc := digging(time.Minute, nil)
	w.opt.WorkerWait = time.Millisecond
	w.tools = func(*agenttest.Trial) []supervisor.Tool {
		return []supervisor.Tool{supervisor.Run(supervisor.Spec{Name: "dig"}, "dig",
			agent.Options{Timeout: 1000 * time.Hour})}
	}
	checkThread(t, sc.Run(t), "user: dig", "error: invalid: 1000h")
}
