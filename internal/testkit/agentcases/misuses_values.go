package agentcases

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// deep returns JSON that is nested.
func deep(n int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", n) + strings.Repeat("]", n))
}

type cyclic struct{ Self *cyclic }

type noWriter struct{}

func (noWriter) MarshalJSON() ([]byte, error) { return nil, errors.New("no writer") }

type noReader struct{}

func (*noReader) UnmarshalJSON([]byte) error { return errors.New("no reader") }

type hidden struct {
	Seen   string
	hidden string
}

// withError returns an agent whose step fails for good with an error of a text.
func withError(text string) Agent {
	return only(func(ctx *agent.Context) error {
		_, err := agent.Step(ctx, "s", func(context.Context) (int, error) {
			return 0, perdure.Permanent(errors.New(text))
		})
		return err
	})
}

// child returns an agent that spawns a child and joins it.
func child(kind string, input any, opts ...agent.ChildOption) Agent {
	return only(func(ctx *agent.Context) error {
		_, err := agent.Spawn[any](ctx, kind, input, opts...).Join(ctx)
		return err
	})
}

var big = strings.Repeat("x", perdure.MaxValue)

// valueMisuses are values that are too large, too deep or can't be kept.
var valueMisuses = []MisuseArea{{
	Name: "Huge, deep and odd values",
	Instead: "A value is what survives JSON, up to 1 MiB and 50 deep, without a NUL. Put larger things into an " +
		"artifact " +
		"and record which; `[]byte` keeps arbitrary bytes. A result that can't be recorded is a permanent error " +
		"of its " +
		"step, which the agent may handle.",
	Rows: []Misuse{
		{Name: "a result of a step of 1 MiB and more", Error: perdure.CodeTooLarge, Says: says("takes 1048576"),
			Do: gives(big)},
		{Name: "a result of 4 MiB", Error: perdure.CodeTooLarge, Do: gives(strings.Repeat(big, 4))},
		{Name: "a result that is nested 60 deep", Error: "invalid_result", Do: gives(deep(60))},
		{Name: "a result with a NUL in a text", Error: perdure.CodeInvalid, Says: says("NUL"), Do: gives("a\x00b")},
		{Name: "a channel as a result", Error: "invalid_result", Says: says("chan int"), Do: gives(make(chan int))},
		{Name: "a function as a result", Error: "invalid_result", Says: says("func()"), Do: gives(func() {})},
		{Name: "NaN as a result", Error: "invalid_result", Says: says("NaN"), Do: gives(math.NaN())},
		{Name: "infinity as a result", Error: "invalid_result", Says: says("Inf"), Do: gives(math.Inf(1))},
		{Name: "a complex number as a result", Error: "invalid_result", Do: gives(complex(1, 2))},
		{Name: "a value that has itself in it", Error: "invalid_result", Says: says("cycle"), Do: func() Agent {
			c := &cyclic{}
			c.Self = c
			return gives(c)
		}()},
		{Name: "half a JSON", Error: "invalid_result", Do: gives(json.RawMessage(`{"city":`))},
		{Name: "half of a surrogate pair", Right: "done", Note: "JSON replaces it in every execution",
			Do: gives(json.RawMessage(`"\ud800"`))},
		{Name: "a `MarshalJSON` that fails", Error: "invalid_result", Says: says("no writer"), Do: gives(noWriter{})},
		{Name: "an `UnmarshalJSON` that fails", Error: "invalid_result", Says: says("no reader"),
			Do: gives(noReader{})},
		{Name: "a map with keys that JSON can't write", Error: "invalid_result", Do: gives(map[hidden]int{{}: 1})},
		{Name: "nil as a result", Right: "done", Do: gives[*priced](nil)},
		{Name: "a result with unexported fields", Right: `{x }`,
			Note: "they are gone in every execution, the first too",
			Do: func(ctx *agent.Context, _ *World) (string, error) {
				v, err := agent.Step(ctx, "s", func(context.Context) (hidden, error) { return hidden{"x", "y"}, nil })
				return "{" + v.Seen + " " + v.hidden + "}", err
			}},
		{Name: "arbitrary bytes as `[]byte`", Right: "done", Do: gives([]byte{0, 255, 128})},
		{Name: "an error of a step with a text of 2 MiB", Fails: "failed", Do: withError(big + big),
			Note: "the text is cut"},
		{Name: "an error of a step with a NUL in its text", Fails: "failed", Do: withError("a\x00b")},
		{Name: "a result of the agent of 2 MiB", Fails: "result_refused", Says: says("an artifact"),
			Do: func(*agent.Context, *World) (string, error) { return big + big, nil }},
		{Name: "a result of the agent with a NUL", Fails: "result_refused", Says: says("NUL"),
			Do: func(*agent.Context, *World) (string, error) { return "a\x00b", nil }},
		{Name: "an input of a child of 1 MiB and more", Error: perdure.CodeTooLarge, Do: child("one", big)},
		{Name: "an input of a child that is nested 2000 deep", Error: perdure.CodeInvalid,
			Do: child("one", deep(2000))},
		{Name: "an input of a child with a NUL", Error: perdure.CodeInvalid, Do: child("one", "a\x00b")},
		{Name: "a channel as the input of a child", Error: perdure.CodeInvalid, Do: child("one", make(chan int))},
		{Name: "an item of a `Parallel` that is no JSON", Held: agent.CodeMisuse,
			Says: says("can't be written as JSON"),
			Do: only(func(ctx *agent.Context) error {
				call := func(context.Context, func()) (int, error) { return 1, nil }
				_, err := agent.Parallel(ctx, "p", []func(){nil}, call)
				return err
			})},
		{Name: "an item of a `Map` that is no JSON", Held: agent.CodeMisuse, Says: says("can't be written as JSON"),
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Map[int](ctx, "one", []func(){nil})
				return err
			})},
		{Name: "a message with a NUL", Error: perdure.CodeInvalid, OnThread: true,
			Do: only(func(ctx *agent.Context) error { return agent.Message(ctx, "assistant", "a\x00b") })},
		{Name: "a message of 1 MiB and more", Error: perdure.CodeTooLarge, OnThread: true,
			Do: only(func(ctx *agent.Context) error { return agent.Message(ctx, "assistant", big) })},
		{Name: "a `Delta` with a NUL", Error: perdure.CodeInvalid,
			Do: only(func(ctx *agent.Context) error { return agent.Delta(ctx, "a\x00b") })},
		{Name: "an `Emit` of a channel", Error: perdure.CodeInvalid,
			Do: only(func(ctx *agent.Context) error { return agent.Emit(ctx, "x:line", make(chan int)) })},
		{Name: "a `Progress` with a NUL", Error: perdure.CodeInvalid,
			Do: only(func(ctx *agent.Context) error { return agent.Progress(ctx, "a\x00b") })},
		{Name: "a `Publish` of 100 KiB", Error: perdure.CodeTooLarge, Says: says("a view takes 65536"),
			Do: only(func(ctx *agent.Context) error { return agent.Publish(ctx, "plan", big[:100<<10]) })},
		{Name: "an action to approve of 100 KiB", Error: perdure.CodeTooLarge,
			Do: only(func(ctx *agent.Context) error {
				_, err := agent.Approve(ctx, agent.Approval{Title: "?", Action: big[:100<<10]})
				return err
			})},
	},
}}
