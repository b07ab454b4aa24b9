// Package assign has steps that change variables of their agents.
package assign

import (
	"context"
	"encoding/json"

	"github.com/perdure/perdure/agent"
)

type order struct {
	Total int
	Lines []string
}

func sum(ctx *agent.Context, in []int) (int, error) {
	total := 0
	for _, n := range in {
		if _, err := agent.Step(ctx, "add", func(context.Context) (int, error) {
			total += n // want `total is changed inside of a step`
			return n, nil
		}); err != nil {
			return 0, err
		}
	}
	return total, nil
}

func betweenSteps(ctx *agent.Context, user string) (string, error) {
	var token string
	if _, err := agent.Step(ctx, "login", func(context.Context) (bool, error) {
		token = "for " + user // want `token is changed`
		return true, nil
	}); err != nil {
		return "", err
	}
	return agent.Step(ctx, "use", func(context.Context) (string, error) { return token, nil })
}

func decoded(ctx *agent.Context, text []byte) (order, error) {
	var o order
	_, err := agent.Step(ctx, "decode", func(context.Context) (bool, error) {
		return true, json.Unmarshal(text, &o) // want `o is changed`
	})
	return o, err
}

func parts(ctx *agent.Context, o *order) (int, error) {
	results := make([]int, 2)
	seen := map[string]bool{}
	n := 0
	_, err := agent.Parallel(ctx, "line", o.Lines, func(_ context.Context, line string) (int, error) {
		results[0] = len(line) // want `results\[0\] is changed`
		o.Total++              // want `o\.Total is changed`
		delete(seen, line)     // want `seen is changed`
		n++                    // want `n is changed`
		return 1, nil
	})
	return results[0] + o.Total + len(seen) + n, err
}

func undone(ctx *agent.Context, in string) (failed bool, err error) {
	err = agent.Saga(ctx, "pay", func() error {
		_, err := agent.Step(ctx, "charge", func(context.Context) (string, error) { return in, nil },
			agent.Undo(func(context.Context, string) error {
				failed = true // want `failed is changed`
				return nil
			}))
		return err
	})
	return failed, err
}

func inVariable(ctx *agent.Context, in string) (string, error) {
	var got string
	ask := func(context.Context) (int, error) {
		got = in // want `got is changed`
		return 0, nil
	}
	_, err := agent.Step(ctx, "ask", ask)
	return got, err
}

var calls int

func global(ctx *agent.Context, in string) (int, error) {
	_, err := agent.Step(ctx, "ask", func(context.Context) (int, error) {
		calls++ // want `calls is changed`
		return 0, nil
	})
	return calls, err
}

// A talk is made anew in each execution, and its methods read what it has.
type talk struct {
	ctx  *agent.Context
	said []string
}

func (t *talk) ask() error {
	_, err := agent.Step(t.ctx, "ask", func(context.Context) (string, error) {
		t.said = append(t.said, "hello") // want `t\.said is changed`
		return "hello", nil
	})
	return err
}

// Below are right ones.

type shop struct{ asked int }

// The agent never looks at what its steps count.
func (s *shop) counts(ctx *agent.Context, in string) (string, error) {
	return agent.Step(ctx, "ask", func(context.Context) (string, error) {
		s.asked++
		return in, nil
	})
}

// A number of tries is that of this execution.
func tries(ctx *agent.Context, in string) (string, error) {
	n := 0
	return agent.Step(ctx, "ask", func(context.Context) (string, error) {
		if n++; n < 3 {
			return "", context.DeadlineExceeded
		}
		return in, nil
	}, agent.Retry{Attempts: 6})
}

// The result of the step replaces the value that its function assigned.
func replaced(ctx *agent.Context, in string) (string, error) {
	var out string
	var err error
	out, err = agent.Step(ctx, "ask", func(context.Context) (string, error) {
		out, err = in, nil
		return out, err
	})
	return out, err
}

var seen = map[string]int{}

// The agent reads another entry than its step changes.
func entries(ctx *agent.Context, in string) (int, error) {
	seen["agent"]++
	_, err := agent.Step(ctx, "ask", func(context.Context) (int, error) {
		seen["step"]++
		return 0, nil
	})
	return seen["agent"], err
}

// Variables of the step's function are its own.
func own(ctx *agent.Context, in []int) (int, error) {
	return agent.Step(ctx, "sum", func(context.Context) (int, error) {
		total := 0
		for _, n := range in {
			total += n
		}
		func() { total++ }()
		return total, nil
	})
}

// A saga's body is no step: it is executed in each execution.
func body(ctx *agent.Context, in string) (out string, err error) {
	err = agent.Saga(ctx, "pay", func() error {
		out, err = agent.Step(ctx, "charge", func(context.Context) (string, error) { return in, nil })
		return err
	})
	return out, err
}
