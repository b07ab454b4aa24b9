package agentcases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

var errOops = errors.New("oops")

// do executes a step with one effect.
func do(ctx *agent.Context, w *World, name string) error {
	_, err := agent.Step(ctx, name, func(context.Context) (int, error) { w.Did(ctx.RunID(), name); return 1, nil })
	return err
}

// executions counts the executions of a run, as a global variable would.
func (w *World) executions(run perdure.RunID) int {
	w.Did("executions of "+run, "")
	return len(w.Effects("executions of " + run))
}

// stateMisuses are agents that decide by something else than their input and the journal.
var stateMisuses = []MisuseArea{{
	Name: "Clocks, dice, the environment and variables",
	Instead: "Between two calls of the package decide by the input and by what such calls returned. `agent.Now` " +
		"and " +
		"`agent.UUID` are recorded; everything else is asked in a step, or read before the worker starts. A step's " +
		"function returns what it found.",
	Rows: []Misuse{
		{Name: "a step's function adds to a variable of the agent", Vet: "agentassign", Kit: true,
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				total := 0
				if _, err := agent.Step(ctx, "pay", func(context.Context) (int, error) {
					total += 10
					return 1, nil
				}); err != nil {
					return "", err
				}
				return fmt.Sprint(total), agent.Sleep(ctx, time.Second)
			}},
		{Name: "a step's function appends to a slice of the agent", Vet: "agentassign",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				var found []string
				if _, err := agent.Step(ctx, "find", func(context.Context) (int, error) {
					found = append(found, "x")
					return 1, nil
				}); err != nil {
					return "", err
				}
				return fmt.Sprint(found), agent.Sleep(ctx, time.Second)
			}},
		{Name: "a step's function decodes into a variable of the agent", Vet: "agentassign",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				var order priced
				if _, err := agent.Step(ctx, "read", func(context.Context) (int, error) {
					return 1, json.Unmarshal([]byte(`{"Amount":7}`), &order)
				}); err != nil {
					return "", err
				}
				return fmt.Sprint(order), agent.Sleep(ctx, time.Second)
			}},
		{Name: "`time.Now` as a start, and `time.Since` behind a wait", Vet: "agentclock", Kit: true,
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				began := time.Now()
				err := agent.Sleep(ctx, time.Hour)
				return fmt.Sprint(time.Since(began).Round(time.Hour)), err
			}},
		{Name: "the time in the name of a step", Vet: "agentclock", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("does not have this step", "the step at"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				if err := do(ctx, w, fmt.Sprint("at ", time.Now().UnixNano())); err != nil {
					return "", err
				}
				return "done", goOn(ctx)
			}},
		{Name: "dice in the name of a step", Vet: "agentclock", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("does not have this step", "the step at"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				if err := do(ctx, w, fmt.Sprint("at ", rand.Int64())); err != nil {
					return "", err
				}
				return "done", goOn(ctx)
			}},
		{Name: "dice in the result", Vet: "agentclock", Kit: true,
			Do: func(ctx *agent.Context, w *World) (string, error) {
				return fmt.Sprint("ticket ", rand.Int64()), do(ctx, w, "a")
			}},
		{Name: "dice in the input of a child", Vet: "agentclock", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("never#1", "another input"),
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				agent.Spawn[string](ctx, "never", rand.Int64())
				return "done", goOn(ctx)
			}},
		{Name: "an environment variable decides", Vet: "agentclock",
			Do: func(ctx *agent.Context, w *World) (string, error) {
				if os.Getenv("PERDURE_NO_SUCH_THING") != "" {
					return "other", do(ctx, w, "b")
				}
				return "done", do(ctx, w, "a")
			}},
		{Name: "the name of the machine decides", Vet: "agentclock",
			Do: func(ctx *agent.Context, w *World) (string, error) {
				host, err := os.Hostname()
				if err != nil || host == "no such host" {
					return "", err
				}
				return "done", do(ctx, w, "a")
			}},
		{Name: "`range` over a map around steps", Vet: "agentmaporder",
			Do: func(ctx *agent.Context, w *World) (string, error) {
				for name := range map[string]int{"a": 1, "b": 2} {
					if err := do(ctx, w, name); err != nil {
						return "", err
					}
				}
				return "done", nil
			}},
		{Name: "the items of a `Parallel` come from the order of a map", Vet: "agentmaporder",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				call := func(context.Context, string) (int, error) { return 1, nil }
				_, err := agent.Parallel(ctx, "p", slices.Collect(maps.Keys(map[string]int{"a": 1, "b": 2})), call)
				return "done", err
			}},
		{Name: "items in another order in each execution", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("p#1/0", "the order of a map"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				items := []string{"a", "b"}
				if w.executions(ctx.RunID()) > 1 {
					slices.Reverse(items)
				}
				_, err := agent.Parallel(ctx, "p", items, func(context.Context, string) (int, error) { return 1, nil })
				return "done", first(err, goOn(ctx))
			}},
		{Name: "a global counter decides which step comes", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("b#1", "the step a#1"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				name := "a"
				if w.executions(ctx.RunID()) > 1 {
					name = "b"
				}
				return "done", first(do(ctx, w, name), goOn(ctx))
			}},
		{Name: "a global counter is in the result", Kit: true,
			Do: func(ctx *agent.Context, w *World) (string, error) {
				n := w.executions(ctx.RunID())
				return fmt.Sprint(n), agent.Sleep(ctx, time.Second)
			}},
		{Name: "a global cache leaves a step out", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("a#1", "announce"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				if w.executions(ctx.RunID()) == 1 {
					if err := do(ctx, w, "a"); err != nil {
						return "", err
					}
				}
				return "done", goOn(ctx)
			}},
		{Name: "a `sync.Once` around a step", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("a#1", "announce"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				var err error
				once(ctx.RunID()).Do(func() { err = do(ctx, w, "a") })
				return "done", first(err, goOn(ctx))
			}},
		{Name: "a wait that is there in some executions alone", Held: perdure.CodeNondeterminism, Wakes: true,
			Says: says("the wait signal:go on#1"),
			Do: func(ctx *agent.Context, w *World) (string, error) {
				if w.executions(ctx.RunID()) == 1 {
					return "done", goOn(ctx)
				}
				return "done", do(ctx, w, "a")
			}},
		{Name: "the agent's context in a global variable", Vet: "agentkept",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				keeping.Lock() // two runs at once write it
				defer keeping.Unlock()
				kept = ctx
				return "done", kept.Err()
			}},
		{Name: "the error of a step is dropped", Vet: "agenterror",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				_, _ = agent.Step(ctx, "a", one)
				return "done", nil
			}},
		{Name: "a file is written outside of a step", Vet: "agenteffect",
			Do: func(ctx *agent.Context, w *World) (string, error) {
				if err := os.WriteFile(os.DevNull, []byte("paid"), 0o600); err != nil {
					return "", err
				}
				return "done", do(ctx, w, "a")
			}},
		{Name: "`time.Sleep` instead of `agent.Sleep`", Right: "done",
			Note: "but the run occupies its worker meanwhile",
			Do: func(ctx *agent.Context, w *World) (string, error) {
				time.Sleep(time.Millisecond)
				return "done", do(ctx, w, "a")
			}},
	},
}}

var kept *agent.Context

// keeping guards kept.
var keeping sync.Mutex

var onces sync.Map

func once(run perdure.RunID) *sync.Once {
	o, _ := onces.LoadOrStore(run, new(sync.Once))
	return o.(*sync.Once)
}

// panicMisuses are panics and other ends.
var panicMisuses = []MisuseArea{{
	Name: "Panics",
	Instead: "A panic in the agent's own code is a defect of the release: the next one goes on with the run. A " +
		"panic " +
		"in a step is a failure, as an error is, and is tried again. Return errors.",
	Rows: []Misuse{
		{Name: "a panic in the agent's code", Held: worker.CodePanic, Says: says("boom"),
			Do: only(func(*agent.Context) error { panic("boom") })},
		{Name: "a panic with an error", Held: worker.CodePanic, Says: says("oops"),
			Do: only(func(*agent.Context) error { panic(errOops) })},
		{Name: "`panic(nil)`", Held: worker.CodePanic, Do: only(func(*agent.Context) error { panic(nil) })},
		{Name: "a write into a nil map", Held: worker.CodePanic, Says: says("nil map"),
			Do: only(func(*agent.Context) error {
				var of struct{ m map[string]int }
				of.m["a"] = 1
				return nil
			})},
		{Name: "an index out of range", Held: worker.CodePanic, Says: says("index out of range"),
			Do: only(func(*agent.Context) error { var s []int; _ = s[len(s)]; return nil })},
		{Name: "a panic behind a wait", Held: worker.CodePanic, Wakes: true, Says: says("boom"),
			Do: only(func(ctx *agent.Context) error {
				if err := goOn(ctx); err != nil {
					return err
				}
				panic("boom")
			})},
		{Name: "a panic in the body of a saga", Held: worker.CodePanic, Says: says("boom"),
			Do: only(func(ctx *agent.Context) error { return agent.Saga(ctx, "s", func() error { panic("boom") }) })},
		{Name: "a panic in a branch", Held: worker.CodePanic, Says: says("boom", "branch side#1"),
			Do: only(func(ctx *agent.Context) error {
				return agent.Go(ctx, "side", func(*agent.Context) error { panic("boom") }).Join(ctx)
			})},
		{Name: "a panic in a step", Fails: worker.CodePanic, Says: says("boom", "step a#1"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "a", func(context.Context) (int, error) { panic("boom") })
				return err
			})},
		{Name: "a panic in an item of a `Parallel`", Fails: worker.CodePanic, Says: says("boom", "p#1/0"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Parallel(ctx, "p", []int{1}, func(context.Context, int) (int, error) { panic("boom") })
				return err
			})},
		{Name: "a panic in the `MarshalJSON` of a result", Held: worker.CodePanic, Says: says("boom"),
			Do: gives(panicsOnWrite{})},
		{Name: "a panic in the `Error` of an error that a step returns", Held: worker.CodePanic, Says: says("boom"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "a", func(context.Context) (int, error) { return 0, panicsOnError{} })
				return err
			})},
		{Name: "`runtime.Goexit` in the agent's code", Fails: "goexit",
			Do: only(func(*agent.Context) error { runtime.Goexit(); return nil })},
		{Name: "`runtime.Goexit` in a step", Fails: "goexit",
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "a", func(context.Context) (int, error) { runtime.Goexit(); return 1, nil })
				return err
			})},
		{Name: "`runtime.Goexit` in a branch", Fails: "goexit",
			Do: only(func(ctx *agent.Context) error {
				return agent.Go(ctx, "side", func(*agent.Context) error { runtime.Goexit(); return nil }).Join(ctx)
			})},
	},
}}

type panicsOnWrite struct{}

func (panicsOnWrite) MarshalJSON() ([]byte, error) { panic("boom") }

type panicsOnError struct{}

func (panicsOnError) Error() string { panic("boom") }
