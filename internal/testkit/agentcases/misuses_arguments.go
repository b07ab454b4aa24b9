package agentcases

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// step returns an agent with a step of a name and options.
func step(name string, opts ...agent.StepOption) Agent {
	return only(func(ctx *agent.Context) error { _, err := agent.Step(ctx, name, one, opts...); return err })
}

// saga returns an agent with a saga that has a step with options.
func saga(opts ...agent.StepOption) Agent {
	return only(func(ctx *agent.Context) error {
		return agent.Saga(ctx, "s", func() error { _, err := agent.Step(ctx, "a", one, opts...); return err })
	})
}

// limit returns an agent with a Parallel of a limit.
func limit(n int) Agent {
	return only(func(ctx *agent.Context) error {
		_, err := agent.Parallel(ctx, "p", []int{1}, func(context.Context, int) (int, error) { return 1, nil },
			agent.MapOptions{Limit: n})
		return err
	})
}

// argumentMisuses are nil, odd names and odd numbers.
var argumentMisuses = []MisuseArea{{
	Name:    "Nil",
	Instead: "Pass functions, futures and the context that the agent was given.",
	Rows: []Misuse{
		{Name: "a step without a function", Held: agent.CodeMisuse, Says: says("a function is nil"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.Step[int](ctx, "a", nil); return err })},
		{Name: "a `Parallel` without a function", Held: agent.CodeMisuse, Says: says("the function is nil"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Parallel[int, int](ctx, "p", []int{1}, nil)
				return err
			})},
		{Name: "a saga without a function", Held: agent.CodeMisuse, Says: says("the function is nil"),
			Do: only(func(ctx *agent.Context) error { return agent.Saga(ctx, "s", nil) })},
		{Name: "a branch without a function", Held: agent.CodeMisuse, Says: says("the function is nil"),
			Do: only(func(ctx *agent.Context) error { return agent.Go(ctx, "b", nil).Join(ctx) })},
		{Name: "an `Undo` without a function", Held: agent.CodeMisuse, Do: saga(agent.Undo[int](nil))},
		{Name: "a join of a nil future", Held: agent.CodeMisuse, Says: says("future 1 of 1 is nil"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.JoinAll[int](ctx, nil); return err })},
		{Name: "a `Select` of nil", Held: agent.CodeMisuse, Says: says("is nil"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.Select(ctx, nil); return err })},
		{Name: "a nil option", Right: "done", Do: step("a", nil)},
		{Name: "a step with a nil context", Held: agent.CodeMisuse, Says: says("the context is nil", "was given"),
			Do: only(func(*agent.Context) error { _, err := agent.Step(nil, "a", one); return err })},
		{Name: "a wait with a nil context", Held: agent.CodeMisuse, Says: says("the context is nil", "was given"),
			Do: only(func(*agent.Context) error { return agent.Sleep(nil, time.Second) })},
		{Name: "a child with a nil context", Held: agent.CodeMisuse, Says: says("the context is nil", "was given"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Spawn[int](nil, "one", kid{}).Join(ctx)
				return err
			})},
		{Name: "a wait with a nil context inside of a step", Held: agent.CodeMisuse, Says: says("the context is nil"),
			Do: inStep(func(*agent.Context) error { return agent.Sleep(nil, time.Second) })},
		{Name: "a wait with a nil context in a branch", Held: agent.CodeMisuse, Says: says("the context is nil"),
			Do: only(func(ctx *agent.Context) error {
				return agent.Go(ctx, "b", func(*agent.Context) error { return agent.Sleep(nil, time.Second) }).Join(ctx)
			})},
		{Name: "an `Emit` with a nil context", Held: agent.CodeMisuse, Says: says("the context is nil", "was given"),
			Do: only(func(*agent.Context) error { var none context.Context; return agent.Emit(none, "x:y", 1) })},
		{Name: "a context that the agent has made", Held: agent.CodeMisuse, Says: says("made by the agent itself"),
			Do: only(func(*agent.Context) error { return agent.Sleep(new(agent.Context), time.Second) })},
		{Name: "a join of a future that no call returned", Held: agent.CodeMisuse,
			Says: says("future 1 of 1", "returned by no call"),
			Do:   only(func(ctx *agent.Context) error { _, err := new(agent.Future[int]).Join(ctx); return err })},
		{Name: "the `Result` of a future that no call returned", Held: agent.CodeMisuse,
			Says: says("returned by no call", "Spawn"),
			Do:   only(func(*agent.Context) error { _, err := new(agent.Future[int]).Result(); return err })},
		{Name: "the `Cancel` of a nil future", Held: agent.CodeMisuse, Says: says("returned by no call"),
			Do: only(func(ctx *agent.Context) error { var f *agent.Future[int]; return f.Cancel(ctx) })},
		{Name: "a branch that no call returned", Held: agent.CodeMisuse, Says: says("returned by no call", "agent.Go"),
			Do: only(func(ctx *agent.Context) error { return new(agent.Branch).Join(ctx) })},
		{Name: "a nil error of its own type from a step", Held: "panic", Says: says("nil pointer"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "a", func(context.Context) (int, error) { var e *ownError; return 1, e })
				return err
			})},
	},
}, {
	Name: "Names and arguments",
	Instead: "The name of a step, wait, saga or branch is code: up to 170 bytes, not beginning with `_`. A kind " +
		"and an " +
		"input may come from a model, and a malformed one is an ordinary error.",
	Rows: []Misuse{
		{Name: "a step without a name", Held: agent.CodeMisuse, Says: says("a step needs a name"), Do: step("")},
		{Name: "a name that begins with _", Held: agent.CodeMisuse, Says: says("does not begin with _"),
			Do: step("_own")},
		{Name: "a name of 171 bytes", Held: agent.CodeMisuse, Says: says("170 bytes"),
			Do: step(strings.Repeat("x", 171))},
		{Name: "a name with a line break", Held: agent.CodeMisuse, Do: step("a\nb")},
		{Name: "a name that begins with a space", Held: agent.CodeMisuse, Do: step(" a")},
		{Name: "a name with the key of a branch in it", Held: agent.CodeMisuse, Says: says("in no name"),
			Do: step("left#1//a")},
		{Name: "a name with umlauts and a number", Right: "done", Do: step("mit Umlauten: äöü #1")},
		{Name: "a saga without a name", Held: agent.CodeMisuse, Says: says("a saga needs a name"),
			Do: only(func(ctx *agent.Context) error { return agent.Saga(ctx, "", func() error { return nil }) })},
		{Name: "a branch without a name", Held: agent.CodeMisuse, Says: says("a branch needs a name"),
			Do: only(func(ctx *agent.Context) error {
				return agent.Go(ctx, "", func(*agent.Context) error { return nil }).Join(ctx)
			})},
		{Name: "a `UUID` without a name", Held: agent.CodeMisuse, Says: says("a UUID needs a name"),
			Do: only(func(ctx *agent.Context) error { agent.UUID(ctx, ""); return nil })},
		{Name: "a `Now` without a name", Held: agent.CodeMisuse, Says: says("a time needs a name"),
			Do: only(func(ctx *agent.Context) error { agent.Now(ctx, ""); return nil })},
		{Name: "a `Version` without a name", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error { agent.Version(ctx, "", 1); return nil })},
		{Name: "a signal without a name", Held: agent.CodeMisuse, Says: says("a signal needs a name"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.Signal[int](ctx, "", time.Second); return err })},
		{Name: "a child without a kind", Error: perdure.CodeInvalid, Says: says("a child needs a kind"),
			Do: child("", 1)},
		{Name: "a kind with a quote", Error: perdure.CodeInvalid, Do: child(`wea"ther`, 1)},
		{Name: "a kind that begins with _", Error: perdure.CodeInvalid, Do: child("_frame", 1)},
		{Name: "a kind of 500 bytes", Error: perdure.CodeInvalid, Do: child(strings.Repeat("x", 500), 1)},
		{Name: "a child with a priority of 1000", Error: perdure.CodeInvalid,
			Do: child("one", kid{}, agent.Options{Priority: 1000})},
		{Name: "a child whose time has passed", Error: "task_timed_out", Do: child("never", kid{}, agent.Timeout(-1))},
		{Name: "`FirstOK` of the first 3 of 2", Held: agent.CodeMisuse, Says: says("the first 3 of 2"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.FirstOK(ctx, 3, agent.OnSignal[int](ctx, "a"), agent.OnSignal[int](ctx, "b"))
				return err
			})},
		{Name: "`FirstOK` of the first 0", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.FirstOK(ctx, 0, agent.OnSignal[int](ctx, "a"))
				return err
			})},
		{Name: "a `Select` of nothing", Held: agent.CodeMisuse, Says: says("of none"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.Select(ctx); return err })},
		{Name: "a `Race` of nothing", Held: agent.CodeMisuse, Says: says("of none"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.Race[int](ctx, time.Second); return err })},
		{Name: "a `JoinAll` of nothing", Right: "done",
			Do: only(func(ctx *agent.Context) error { _, err := agent.JoinAll[int](ctx); return err })},
		{Name: "one signal twice in a `Select`", Held: agent.CodeMisuse, Says: says("given twice"),
			Do: only(func(ctx *agent.Context) error {
				f := agent.OnSignal[int](ctx, "a")
				_, err := agent.Select(ctx, f, f)
				return err
			})},
		{Name: "the `Result` of a future that has not ended", Held: agent.CodeMisuse,
			Says: says("Select or join it first"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.OnSignal[int](ctx, "a").Result()
				return err
			})},
		{Name: "a `Peek` at a signal", Held: agent.CodeMisuse, Says: says("is no child"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.OnSignal[int](ctx, "a").Peek(ctx); return err })},
		{Name: "a `Limit` of -1", Error: perdure.CodeInvalid, Says: says("not between 1 and 1000"), Do: limit(-1)},
		{Name: "a `Limit` of 1001", Error: perdure.CodeInvalid, Says: says("not between 1 and 1000"),
			Do: limit(1001)},
		{Name: "a `Retry` of -1 attempts", Held: agent.CodeMisuse, Says: says("negative"),
			Do: step("a", agent.Retry{Attempts: -1})},
		{Name: "a `Retry` with a negative pause", Held: agent.CodeMisuse, Says: says("negative"),
			Do: step("a", agent.Retry{Attempts: 2, First: -1})},
		{Name: "`For` with a value that is no JSON", Held: agent.CodeMisuse, Says: says("can't be written as JSON"),
			Do: step("a", agent.For(make(chan int)))},
		{Name: "`For` on a `Parallel`", Held: agent.CodeMisuse, Says: says("For is for a step by itself"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Parallel(ctx, "p", []int{1}, func(context.Context, int) (int, error) { return 1, nil },
					agent.MapOptions{Step: agent.For(1)})
				return err
			})},
		{Name: "an `Undo` outside of a saga", Held: agent.CodeMisuse, Says: says("Saga"),
			Do: step("a", agent.Undo(func(context.Context, int) error { return nil }))},
		{Name: "an `Undo` of another type", Held: agent.CodeMisuse, Says: says("its Undo takes"),
			Do: saga(agent.Undo(func(context.Context, string) error { return nil }))},
		{Name: "a `Sleep` of a time that has passed", Right: "done",
			Do: only(func(ctx *agent.Context) error { return agent.Sleep(ctx, -time.Hour) })},
		{Name: "a `Sleep` of 400 days", Error: perdure.CodeInvalid,
			Do: only(func(ctx *agent.Context) error { return agent.Sleep(ctx, 400*24*time.Hour) })},
		{Name: "a `Message` of a run without a thread", Held: agent.CodeMisuse, Says: says("on no thread"),
			Do: only(func(ctx *agent.Context) error { return agent.Message(ctx, "user", 1) })},
		{Name: "a `History` of a run without a thread", Held: agent.CodeMisuse, Says: says("on no thread"),
			Do: only(func(ctx *agent.Context) error { _, err := ctx.History(); return err })},
		{Name: "an `OnMessage` of a run without a thread", Held: agent.CodeMisuse, Says: says("on no thread"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.OnMessage[int](ctx).Join(ctx); return err })},
		{Name: "a `Continue` of a run without a thread", Held: agent.CodeMisuse, Says: says("on no thread"),
			Do: only(func(ctx *agent.Context) error { _, err := agent.Continue[int, int](ctx, 1); return err })},
		{Name: "a `Continue` that waits for a signal", Held: agent.CodeMisuse, OnThread: true,
			Says: says("waits for children"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Continue(ctx, 1, agent.OnSignal[int](ctx, "a"))
				return err
			})},
		{Name: "an `Emit` of a type that is the server's", Held: agent.CodeMisuse, Says: says("is not for agents"),
			Do: only(func(ctx *agent.Context) error { return agent.Emit(ctx, "run:completed", 1) })},
		{Name: "a `Publish` under a name that is none", Held: agent.CodeMisuse,
			Do: only(func(ctx *agent.Context) error { return agent.Publish(ctx, "a/b c", 1) })},
		{Name: "an `Approve` with a default that is none", Error: perdure.CodeInvalid,
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Approve(ctx, agent.Approval{Title: "?", Action: 1, Default: "maybe"})
				return err
			})},
		{Name: "a `Progress` with a context that is no agent's", Error: "failed", Says: says("not an agent's"),
			Do: only(func(*agent.Context) error { return agent.Progress(context.Background(), 1) })},
		{Name: "an agent that returns `ErrCancelled` and was not asked to stop", Fails: "cancelled",
			Do: only(func(*agent.Context) error { return agent.ErrCancelled })},
		{Name: "an agent that returns `context.Canceled`", Fails: "failed",
			Do: only(func(*agent.Context) error { return perdure.Permanent(context.Canceled) })},
	},
}}

type ownError struct{ text string }

func (e *ownError) Error() string { return errors.New(e.text).Error() }
