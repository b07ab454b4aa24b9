package supervisor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/worker"
)

// limited is a scenario whose tenant has a limit before the run begins.
func limited(sc agenttest.Scenario, name string, in api.PutLimit) agenttest.Scenario {
	setup := sc.Setup
	sc.Setup = func(s *agenttest.Trial) func(*worker.Worker) {
		if _, err := s.Client().PutLimit(s.Context(), name, in); err != nil {
			panic(err)
		}
		return setup(s)
	}
	return sc
}

// Each call of the model takes of the limit. One that is refused until a time closes the limit until
// then, and the run goes on afterwards with its attempt.
func TestModelKeepsToItsLimit(t *testing.T) {
	t.Run("rate", func(t *testing.T) {
		w := &world{opt: supervisor.Options{ModelLimit: supervisor.Limit{Name: "model"}}, rules: []mockmodel.Rule{
			calls("count", call("count", args{"to": 3})), says("tool", "1 1 1", "Three.")},
			tools: func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, false)} }}
		end := limited(w.scenario("count"), "model", api.PutLimit{Rate: &perdure.LimitRate{Count: 1,
			Per: perdure.Duration(10 * time.Minute)}}).Run(t)
		checkThread(t, end, "user: count", "assistant: Three.")
		if took := end.Run.FinishedAt.Sub(end.Run.CreatedAt); took < 10*time.Minute || took > 11*time.Minute ||
			end.Run.Attempt != 1 {
			t.Errorf("two calls of the model took %s and %d attempts, want 10 minutes and one", took, end.Run.Attempt)
		}
	})
	t.Run("refused", func(t *testing.T) {
		w := &world{opt: supervisor.Options{ModelLimit: supervisor.Limit{Name: "model"}}, rules: []mockmodel.Rule{
			{Times: 1, Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{Status: 429, RetryAfter: "1800"}},
			says("user", "hello", "Hi.")}}
		var shut perdure.Instant
		sc := limited(w.scenario("hello"), "model", api.PutLimit{Concurrency: new(9)})
		sc.Script = func(s *agenttest.Trial) {
			s.Await(perdure.LineWaitOpened)
			l, err := s.Client().Limit(s.Context(), "model")
			if err != nil || l.ClosedUntil == nil {
				t.Errorf("the limit = %+v, %v, want it closed", l, err)
				return
			}
			shut = *l.ClosedUntil
		}
		end := sc.Run(t)
		checkThread(t, end, "user: hello", "assistant: Hi.")
		if for_ := shut.Sub(end.Run.CreatedAt); for_ < 29*time.Minute || for_ > 31*time.Minute {
			t.Errorf("the limit was closed for %s, want half an hour", for_)
		}
	})
}

// Calls of MCP servers are runs. Under a limit of their kind with a key for each server, a server gets no
// more of them at once than the limit allows.
func TestMCPCallsKeepToLimitOfTheirServer(t *testing.T) {
	for _, slots := range []int{1, 2} {
		var mu sync.Mutex
		var now, most int
		slowly := func(context.Context) (string, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Minute)
			mu.Lock()
			now--
			mu.Unlock()
			return "booked", nil
		}
		w := serving(&world{opt: supervisor.Options{WorkerWait: time.Hour}, rules: []mockmodel.Rule{
			{Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
				call("box_book", args{}), call("box_book", args{}), call("box_book", args{})},
				FirstToken: perdure.Duration(10 * time.Second)}}, // the kind has its limit by then
			says("tool", "booked", "Done."),
		}}, nil, map[string]func(context.Context) (string, error){"book": slowly})
		sc := limited(w.scenario("book"), "mcp", api.PutLimit{Concurrency: &slots, PerKey: true})
		sc.Script = func(s *agenttest.Trial) {
			if _, err := s.Client().ChangeKind(s.Context(), mcp.Kind, api.ChangeKind{KindDef: perdure.KindDef{
				Limits: []string{"mcp"}, LimitKeyFrom: "/server"}}); err != nil {
				t.Error(err)
			}
		}
		end := sc.Run(t)
		checkThread(t, end, "user: book", "assistant: Done.")
		if most != slots || end.Notes["book"] != 3 {
			t.Errorf("with %d slots the server had %d calls at once, of %d", slots, most, end.Notes["book"])
		}
	}
}
