package agentcases

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// calls are calls that have a place among the others, by what they are.
var calls = []struct {
	what     string
	call     func(ctx *agent.Context) error
	onThread bool
}{
	{"a step", func(ctx *agent.Context) error { _, err := agent.Step(ctx, "inner", one); return err }, false},
	{"`Sleep`", func(ctx *agent.Context) error { return agent.Sleep(ctx, time.Second) }, false},
	{"`SleepUntil`", func(ctx *agent.Context) error {
		return agent.SleepUntil(ctx, time.Now().Add(time.Hour))
	}, false},
	{"`Signal`", func(ctx *agent.Context) error {
		_, err := agent.Signal[int](ctx, "n", time.Second)
		return err
	}, false},
	{"`OnSignal`", func(ctx *agent.Context) error {
		_, err := agent.OnSignal[int](ctx, "n").Join(ctx)
		return err
	}, false},
	{"`OnMessage`", func(ctx *agent.Context) error {
		_, err := agent.OnMessage[int](ctx).Join(ctx)
		return err
	}, true},
	{"`After`", func(ctx *agent.Context) error {
		_, err := agent.After(ctx, time.Second).Join(ctx)
		return err
	}, false},
	{"`Approve`", func(ctx *agent.Context) error {
		_, err := agent.Approve(ctx, agent.Approval{Title: "?", Action: 1})
		return err
	}, false},
	{"`OnApproval`", func(ctx *agent.Context) error {
		_, err := agent.OnApproval(ctx, agent.Approval{Title: "?", Action: 1}).Join(ctx)
		return err
	}, false},
	{"`Callback`", func(ctx *agent.Context) error {
		_, err := agent.Callback[int](ctx, "door", time.Second).Join(ctx)
		return err
	}, false},
	{"`Spawn`", func(ctx *agent.Context) error {
		_, err := agent.Spawn[int](ctx, "one", 1).Join(ctx)
		return err
	}, false},
	{"`Map`", func(ctx *agent.Context) error { _, err := agent.Map[int](ctx, "one", []int{1}); return err }, false},
	{"`Parallel`", func(ctx *agent.Context) error {
		_, err := agent.Parallel(ctx, "p", []int{1}, func(context.Context, int) (int, error) { return 1, nil })
		return err
	}, false},
	{"`Saga`", func(ctx *agent.Context) error { return agent.Saga(ctx, "s", func() error { return nil }) }, false},
	{"`Go`", func(ctx *agent.Context) error {
		return agent.Go(ctx, "b", func(*agent.Context) error { return nil }).Join(ctx)
	}, false},
	{"`Version`", func(ctx *agent.Context) error { agent.Version(ctx, "v", 1); return nil }, false},
	{"`Removed`", func(ctx *agent.Context) error { agent.Removed(ctx, "old"); return nil }, false},
	{"`Now`", func(ctx *agent.Context) error { agent.Now(ctx, "n"); return nil }, false},
	{"`UUID`", func(ctx *agent.Context) error { agent.UUID(ctx, "u"); return nil }, false},
	{"`Message`", func(ctx *agent.Context) error { return agent.Message(ctx, "user", 1) }, true},
	{"`History`", func(ctx *agent.Context) error { _, err := ctx.History(); return err }, true},
	{"`NewestMessages`", func(ctx *agent.Context) (err error) {
		for _, err = range ctx.NewestMessages(0) {
		}
		return err
	}, true},
	{"`Continue`", func(ctx *agent.Context) error { _, err := agent.Continue[int, int](ctx, 1); return err }, true},
}

// callMisuses are calls inside of steps.
var callMisuses = func() []MisuseArea {
	area := MisuseArea{Name: "Calls inside of a step",
		Instead: "A step that is recorded is not executed again, and neither is what is in it. Make the call " +
			"between " +
			"steps. In a step use the context that its function is given."}
	for _, c := range calls {
		area.Rows = append(area.Rows, Misuse{Name: c.what + " inside of a step", Do: inStep(c.call),
			Held:     agent.CodeMisuse,
			OnThread: c.onThread})
	}
	area.Rows = append(area.Rows,
		Misuse{Name: "`IdempotencyKey` with the agent's context, in a step", Held: agent.CodeMisuse,
			Do:   inStep(func(ctx *agent.Context) error { agent.IdempotencyKey(ctx); return nil }),
			Says: says("step's function")},
		Misuse{Name: "`IdempotencyKey` outside of a step", Held: agent.CodeMisuse,
			Do:   only(func(ctx *agent.Context) error { agent.IdempotencyKey(ctx); return nil }),
			Says: says("step's function")},
		Misuse{Name: "`Cancel` of a future inside of a step", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				f := agent.Spawn[int](ctx, "never", 1)
				_, err := agent.Step(ctx, "outer", func(context.Context) (int, error) { return 1, f.Cancel(ctx) })
				return err
			}), Says: says("cancel between steps")},
		Misuse{Name: "`Join` of a branch inside of a step", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				b := agent.Go(ctx, "b", func(*agent.Context) error { return nil })
				_, err := agent.Step(ctx, "outer", func(context.Context) (int, error) { return 1, b.Join(ctx) })
				return err
			}), Says: says("join between steps")},
		Misuse{Name: "a step inside of a `Parallel`'s function", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Parallel(ctx, "p", []int{1, 2}, func(context.Context, int) (int, error) {
					return agent.Step(ctx, "inner", one)
				})
				return err
			})},
		Misuse{Name: "a wait inside of an `Undo`", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				return agent.Saga(ctx, "s", func() error {
					undo := agent.Undo(func(context.Context, int) error { return agent.Sleep(ctx, time.Second) })
					if _, err := agent.Step(ctx, "a", one, undo); err != nil {
						return err
					}
					return perdure.Permanent(errOops)
				})
			})},
		Misuse{Name: "a step inside of a step, in a helper", Held: agent.CodeMisuse,
			Do: inStep(func(ctx *agent.Context) error { return helper(ctx) })},
		Misuse{Name: "`Delta` and `Emit` with the agent's context inside of a step", Right: "done",
			Note: "the text does not name its step", Vet: "agentcontext",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				_, err := agent.Step(ctx, "outer", func(context.Context) (int, error) {
					return 1, agent.Delta(ctx, "x")
				})
				return "done", err
			}},
	)
	return []MisuseArea{area}
}()

func helper(ctx *agent.Context) error {
	_, err := agent.Step(ctx, "deep", one)
	return err
}

// goroutineMisuses are calls in goroutines, and misuses of branches.
var goroutineMisuses = func() []MisuseArea {
	area := MisuseArea{Name: "Goroutines",
		Instead: "A replay needs the place of a call among the others, which differs between goroutines. Begin the " +
			"goroutine with `agent.Go`, join it where it was begun, and share nothing but results."}
	for _, c := range calls {
		area.Rows = append(area.Rows, Misuse{Name: c.what + " in a bare goroutine", Do: inGoroutine(c.call),
			Held: agent.CodeMisuse, OnThread: c.onThread, Says: says("agent.Go")})
	}
	nothing := func(*agent.Context) error { return nil }
	area.Rows = append(area.Rows,
		Misuse{Name: "a step in a goroutine of a `sync.WaitGroup`", Held: agent.CodeMisuse, Says: says("agent.Go"),
			Do: only(func(ctx *agent.Context) (err error) {
				var all sync.WaitGroup
				all.Go(func() { err = helper(ctx) })
				all.Wait()
				return err
			})},
		Misuse{Name: "a branch that is not joined", Held: agent.CodeMisuse, AtEnd: true,
			Says: says("has not joined branch side#1", "Join"),
			Do:   only(func(ctx *agent.Context) error { agent.Go(ctx, "side", nothing); return nil })},
		Misuse{Name: "a branch whose name is in use", Held: agent.CodeMisuse, Says: says("a name of its own"),
			Do: only(func(ctx *agent.Context) error {
				a, b := agent.Go(ctx, "side", nothing), agent.Go(ctx, "side", nothing)
				return first(a.Join(ctx), b.Join(ctx))
			})},
		Misuse{Name: "a branch that joins itself", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				var b *agent.Branch
				begun := make(chan int)
				b = agent.Go(ctx, "side", func(ctx *agent.Context) error { <-begun; return b.Join(ctx) })
				close(begun)
				return b.Join(ctx)
			}), Says: says("another branch than the one that began it")},
		Misuse{Name: "a branch that is joined in another one", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				a := agent.Go(ctx, "a", nothing)
				b := agent.Go(ctx, "b", func(ctx *agent.Context) error { return a.Join(ctx) })
				return first(b.Join(ctx), a.Join(ctx))
			}), Says: says("another branch than the one that began it")},
		Misuse{Name: "a branch that uses the context of the agent", Right: "done",
			Note: "the branch knows its goroutine",
			Do: only(func(ctx *agent.Context) error {
				return agent.Go(ctx, "side", func(*agent.Context) error { return helper(ctx) }).Join(ctx)
			})},
		Misuse{Name: "a branch that is joined twice", Right: "done",
			Do: only(func(ctx *agent.Context) error {
				b := agent.Go(ctx, "side", nothing)
				return first(b.Join(ctx), b.Join(ctx))
			})},
		Misuse{Name: "a goroutine that computes something, and calls nothing of the package", Right: "done",
			Do: only(func(ctx *agent.Context) error {
				sum := make(chan int)
				go func() { sum <- 1 + 1 }()
				<-sum
				return helper(ctx)
			})},
		Misuse{Name: "a step in a deferred function, after a wait", Right: "done", Wakes: true,
			Note: "a wait ends the goroutine: the deferred step is executed at the end alone",
			Do: func(ctx *agent.Context, w *World) (out string, err error) {
				defer func() {
					if stepped := helper(ctx); err == nil {
						err = stepped
					}
				}()
				return "done", goOn(ctx)
			}},
		Misuse{Name: "a `recover` around a wait", Right: "done", Wakes: true,
			Do: func(ctx *agent.Context, w *World) (out string, err error) {
				defer func() {
					if p := recover(); p != nil {
						err = errOops
					}
				}()
				return "done", goOn(ctx)
			}},
	)
	return []MisuseArea{area}
}()

// goOn is the wait at which a run is woken.
func goOn(ctx *agent.Context) error {
	_, err := agent.Signal[any](ctx, "go on", time.Hour)
	return err
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
