package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/model"
)

// An endpoint fails in one way or another, and the run goes on.
func TestFailuresOfTheEndpointPass(t *testing.T) {
	count := []mockmodel.Call{call("count", args{"to": 3})}
	for _, c := range []struct {
		name   string
		answer mockmodel.Answer
		times  int
		// least and most limit the time that the run takes.
		least, most time.Duration
	}{
		{"unavailable", mockmodel.Answer{Status: 503}, 10, 0, 5 * time.Minute},
		{"hangs", mockmodel.Answer{Fault: mockmodel.FaultHang}, 2, 0, 5 * time.Minute},
		{"falls silent", mockmodel.Answer{Text: "Well so", Fault: mockmodel.FaultSilence, FaultAfter: 1}, 2,
			0, 5 * time.Minute},
		{"cuts text", mockmodel.Answer{Text: "I think that", Fault: mockmodel.FaultCut, FaultAfter: 2}, 3, 0,
			time.Minute},
		{"cuts a call", mockmodel.Answer{ToolCalls: count, Fault: mockmodel.FaultCut, FaultAfter: 2}, 3, 0,
			time.Minute},
		{"closes", mockmodel.Answer{Text: "I think", Fault: mockmodel.FaultClose, FaultAfter: 1}, 1, 0, time.Minute},
		{"garbage", mockmodel.Answer{Body: `{"hello":"world"}`}, 2, 0, time.Minute},
		{"rate limit", mockmodel.Answer{Status: 429, RetryAfter: "30"}, 2, time.Minute, 2 * time.Minute},
		{"long rate limit", mockmodel.Answer{Status: 429, RetryAfter: "1800"}, 1, 30 * time.Minute, 31 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{rules: []mockmodel.Rule{{Times: c.times, Match: mockmodel.Match{Role: "user"},
				Answer: c.answer},
				calls("count", count...), says("tool", "1 1 1", "Three.")},
				tools: func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, false)} }}
			end := w.scenario("count").Run(t)
			checkThread(t, end, "user: count", "assistant: Three.")
			if end.Notes["counted"] != 1 {
				t.Errorf("the tool was called %d times, want once", end.Notes["counted"])
			}
			if took := end.Run.FinishedAt.Sub(end.Run.CreatedAt); took < c.least || took > c.most {
				t.Errorf("the run took %s, want %s to %s", took, c.least, c.most)
			}
			if strings.Contains(fmt.Sprint(end.Steps, end.Events), "sk-secret-key") {
				t.Error("the key of the endpoint is in the journal or the log")
			}
		})
	}
}

// An endpoint that stays away, or refuses, ends in a message of the thread.
func TestDeadEndpointEndsInAMessage(t *testing.T) {
	for name, c := range map[string]struct {
		answer mockmodel.Answer
		code   perdure.Code
	}{
		"away":    {mockmodel.Answer{Status: 503}, model.CodeUnavailable},
		"refuses": {mockmodel.Answer{Status: 403}, model.CodeRefused},
		"page":    {mockmodel.Answer{Body: "<html>Please log in</html>"}, model.CodeGarbage},
		"later":   {mockmodel.Answer{Status: 429, RetryAfter: "86400"}, model.CodeRateLimited},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{rules: []mockmodel.Rule{{Answer: c.answer}}}
			end := w.scenario("hello").Run(t)
			checkThread(t, end, "user: hello", "system: This run failed: the model gave no answer")
			if last := texts(end)[1]; name == "later" && !strings.Contains(last, "Ask again in 24h0m0s, after 2") {
				t.Errorf("the thread says %q, want when to ask again", last)
			}
			if end.Run.Error == nil || end.Run.Error.Code != c.code {
				t.Errorf("error = %v, want the code %s", end.Run.Error, c.code)
			}
		})
	}
}

func TestLongAnswerIsKept(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{{Answer: mockmodel.Answer{Text: "and then ", Repeat: 50_000}}}}
	end := w.scenario("a long story").Run(t)
	checkThread(t, end, "user: ", "the artifact answer-1.txt has the whole")
}

func TestEmptyAnswerIsNotSilence(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{{Answer: mockmodel.Answer{Finish: "content_filter"}}}}
	checkThread(t, w.scenario("hello").Run(t), "user: hello", "content_filter")
}

// reader is a tool with long results.
func reader(bytes int) func(*agenttest.Trial) []supervisor.Tool {
	return func(*agenttest.Trial) []supervisor.Tool {
		return []supervisor.Tool{supervisor.Func(supervisor.Spec{Name: "read", Repeatable: true},
			func(context.Context, struct{}) (string, error) { return strings.Repeat("lorem ip", bytes/8), nil })}
	}
}

func TestLongResultIsCut(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{calls("read", call("read", args{})), says("tool", "has the whole", "Read.")},
		tools: reader(100_000), opt: supervisor.Options{MaxResult: 1000}}
	end := w.scenario("read").Run(t)
	checkThread(t, end, "user: read", "assistant: Read.")
	var text string
	if err := json.Unmarshal(end.Steps["supervisor"]["tool read#1"], &text); err != nil || len(text) > 1000 {
		t.Errorf("recorded result has %d bytes (error %v), want 1000 at most", len(text), err)
	}
}

// readsMany is a world whose model calls a tool with a long result many times. A model with a small
// context refuses longer requests.
func readsMany(calls int, opt supervisor.Options, context int) *world {
	opt.MaxTurns = 2 * calls
	return &world{context: context, opt: opt, tools: reader(8000), rules: []mockmodel.Rule{
		{Match: mockmodel.Match{System: "Summarize"}, Answer: mockmodel.Answer{Text: "Read much."}},
		{Times: calls, Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call("read", args{})}}},
		{Answer: mockmodel.Answer{Text: "Read all."}},
	}}
}

// A conversation of 200,000 tokens with 100 calls ends, in a window of 32,000 tokens, and its storage
// grows with the number of calls.
func TestLongConversationIsSummarized(t *testing.T) {
	stored := func(calls int) (bytes, requests int) {
		w := readsMany(calls, supervisor.Options{Window: 32_000}, 32_000)
		end := w.scenario("Read it all.").Run(t)
		checkThread(t, end, "user: ", "assistant: Read all.")
		for key, value := range end.Steps["supervisor"] {
			bytes += len(key) + len(value)
		}
		if w.sent("Summary of the conversation") == 0 || w.sent("Read it all.") != len(w.handler.Requests()) {
			t.Errorf("of %d requests, %d have a summary and %d the question; want some, and all",
				len(w.handler.Requests()), w.sent("Summary of the conversation"), w.sent("Read it all."))
		}
		return bytes, len(w.handler.Requests())
	}
	half, _ := stored(50)
	whole, requests := stored(100)
	if whole > half*22/10 || whole > 100*10_000 {
		t.Errorf("the journal has %d bytes after 100 calls and %d after 50, want twice as many", whole, half)
	}
	if requests > 125 {
		t.Errorf("the model was called %d times, want 101 and some summaries", requests)
	}
}

// The window is larger than the model's context, so the model itself says that it is too long.
func TestRefusedContextIsSummarized(t *testing.T) {
	w := readsMany(20, supervisor.Options{Window: 1_000_000}, 16_000)
	checkThread(t, w.scenario("Read it all.").Run(t), "user: ", "assistant: Read all.")
	if w.sent("Summary of the conversation") == 0 {
		t.Error("no request has a summary")
	}
}

func TestQuestionThatIsTooLongIsCut(t *testing.T) {
	w := &world{context: 4000, rules: []mockmodel.Rule{says("user", "lorem", "Short.")}}
	end := w.scenario(strings.Repeat("lorem ip", 20_000)).Run(t)
	checkThread(t, end, "user: ", "assistant: Short.")
}
