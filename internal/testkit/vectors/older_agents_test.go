package vectors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// This file has the agents of testdata/journal/older. A release from before this format executed them up
// to a wait, and then each was woken. It had no names for Now and UUID, and no branches.

// An olderAgent tells what its agents know after their waits.
type olderAgent struct {
	// knows is called before the last step of a run, with what the agent got from its journal and its wait.
	knows func(run perdure.RunID, what string)
}

// run executes a step.
func (o *olderAgent) run(ctx *agent.Context, name string, opts ...agent.StepOption) error {
	_, err := agent.Step(ctx, name, func(context.Context) (string, error) { return name, nil }, opts...)
	return err
}

// ends returns a function that ends an agent, with what it knows and the error of its wait.
func (o *olderAgent) ends(ctx *agent.Context, err error, what ...any) (string, error) {
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(fmt.Sprintln(what...))
	o.knows(ctx.RunID(), text)
	return text, o.run(ctx, "after")
}

// book is a step with an undo.
func (o *olderAgent) book(ctx *agent.Context, name string) error {
	return o.run(ctx, name, agent.Undo(func(context.Context, string) error { return nil }))
}

func goes(ctx *agent.Context) (string, error) { return agent.Signal[string](ctx, "go", time.Hour) }

// olderPause is a time that passes between two releases.
const olderPause = 12 * time.Second

type parcel struct {
	Name string `json:"name"`
}

// register adds an agent for each kind of wait.
func (o *olderAgent) register(w *worker.Worker) {
	waits := func(kind string, f func(ctx *agent.Context) (string, error)) {
		worker.Agent(w, kind, func(ctx *agent.Context, _ any) (string, error) {
			if err := o.run(ctx, "before"); err != nil {
				return "", err
			}
			return f(ctx)
		})
	}
	waiters := func(ctx *agent.Context, n int) (fs []*agent.Future[string]) {
		for i := range n {
			fs = append(fs, agent.Spawn[string](ctx, "waiter", i))
		}
		return fs
	}
	worker.Handle(w, "fails", func(context.Context, any) (string, error) {
		return "", perdure.Permanent(errors.New("no"))
	})
	worker.Handle(w, "echo", func(_ context.Context, v json.RawMessage) (json.RawMessage, error) { return v, nil })
	worker.Agent(w, "waiter", func(ctx *agent.Context, n int) (string, error) {
		data, err := agent.Signal[string](ctx, "go", time.Hour)
		return fmt.Sprint(n, data), err
	})
	waits("sleep", func(ctx *agent.Context) (string, error) {
		return o.ends(ctx, agent.Sleep(ctx, olderPause), "slept")
	})
	waits("sleep-twice", func(ctx *agent.Context) (string, error) {
		if err := agent.Sleep(ctx, 100*time.Millisecond); err != nil {
			return "", err
		}
		if err := agent.Sleep(ctx, 1500*time.Millisecond); err != nil {
			return "", err
		}
		return o.ends(ctx, agent.Sleep(ctx, olderPause), "slept")
	})
	waits("until", func(ctx *agent.Context) (string, error) {
		at, err := agent.Step(ctx, "at", func(context.Context) (int64, error) {
			return time.Now().Add(olderPause).Unix(), nil
		})
		if err != nil {
			return "", err
		}
		return o.ends(ctx, agent.SleepUntil(ctx, time.Unix(at, 0)), "slept")
	})
	waits("signal-late", func(ctx *agent.Context) (string, error) {
		data, err := goes(ctx)
		return o.ends(ctx, err, data)
	})
	waits("signal-early", func(ctx *agent.Context) (string, error) {
		first, err := agent.Signal[string](ctx, "first", time.Hour)
		if err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, first, data)
	})
	waits("signal-timeout", func(ctx *agent.Context) (string, error) {
		_, err := agent.Signal[string](ctx, "never", olderPause)
		if !errors.Is(err, agent.ErrSignalTimeout) {
			return "", perdure.Permanent(fmt.Errorf("%v, want a timeout", err))
		}
		return o.ends(ctx, nil, "timed out")
	})
	waits("signal-large", func(ctx *agent.Context) (string, error) {
		large, err := agent.Signal[string](ctx, "large", time.Hour)
		if err != nil {
			return "", err
		}
		if err := o.run(ctx, "between"); err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, len(large), data)
	})
	waits("child", func(ctx *agent.Context) (string, error) {
		data, err := waiters(ctx, 1)[0].Join(ctx)
		return o.ends(ctx, err, data)
	})
	waits("child-unusual", func(ctx *agent.Context) (string, error) {
		in := json.RawMessage("{\"y\":\"\\u2028\",\"x\":1.0,\"z\":1e3,\"a\":\"<\"}")
		f := agent.Spawn[json.RawMessage](ctx, "echo", in)
		data, err := f.Join(ctx)
		if err != nil {
			return "", err
		}
		mapped, err := agent.Map[json.RawMessage](ctx, "echo", []json.RawMessage{in, in})
		if err != nil {
			return "", err
		}
		_, err = goes(ctx)
		return o.ends(ctx, err, len(data), len(mapped.Results))
	})
	waits("approval", func(ctx *agent.Context) (string, error) {
		v, err := agent.Approve(ctx, agent.Approval{Name: "ok", Title: "May I?", Action: map[string]any{"pay": 1.50}})
		return o.ends(ctx, err, v.Approved)
	})
	waits("approval-timeout", func(ctx *agent.Context) (string, error) {
		v, err := agent.Approve(ctx, agent.Approval{Name: "ok", Title: "May I?", Action: 1, Timeout: olderPause})
		return o.ends(ctx, err, v.Approved, v.TimedOut)
	})
	waits("callback", func(ctx *agent.Context) (string, error) {
		f := agent.Callback[string](ctx, "paid", time.Hour)
		if _, err := agent.Step(ctx, "post", func(context.Context) (string, error) { return "", nil }); err != nil {
			return "", err
		}
		data, err := f.Join(ctx)
		return o.ends(ctx, err, data)
	})
	waits("message", func(ctx *agent.Context) (string, error) {
		if err := agent.Message(ctx, "assistant", "Yes?"); err != nil {
			return "", err
		}
		if err := agent.Emit(ctx, "x:asked", 1); err != nil {
			return "", err
		}
		data, err := agent.OnMessage[string](ctx).Join(ctx)
		if err == nil {
			err = agent.Message(ctx, "assistant", "Bye.")
		}
		return o.ends(ctx, err, data)
	})
	waits("history", func(ctx *agent.Context) (string, error) {
		all, err := ctx.History()
		if err != nil {
			return "", err
		}
		if err := agent.Delta(ctx, "I read."); err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, len(all), data)
	})
	waits("join-all", func(ctx *agent.Context) (string, error) {
		data, err := agent.JoinAll(ctx, waiters(ctx, 2)...)
		return o.ends(ctx, err, data)
	})
	waits("settled", func(ctx *agent.Context) (string, error) {
		set, err := agent.JoinAllSettled(ctx, append(waiters(ctx, 1), agent.Spawn[string](ctx, "fails", 1))...)
		return o.ends(ctx, err, set.Results, set.Completed, set.Failed)
	})
	waits("select", func(ctx *agent.Context) (string, error) {
		s := agent.OnSignal[string](ctx, "come")
		n, err := agent.Select(ctx, waiters(ctx, 1)[0], s, agent.After(ctx, time.Hour))
		if err != nil {
			return "", err
		}
		data, err := s.Result()
		return o.ends(ctx, err, n, data)
	})
	waits("select-again", func(ctx *agent.Context) (string, error) {
		a, b := agent.OnSignal[string](ctx, "a"), agent.OnSignal[string](ctx, "b")
		if n, err := agent.Select(ctx, a, b); err != nil || n != 0 {
			return "", fmt.Errorf("%d: %w", n, err)
		}
		n, err := agent.Select(ctx, b, agent.After(ctx, time.Hour))
		return o.ends(ctx, err, n)
	})
	waits("select-timer", func(ctx *agent.Context) (string, error) {
		n, err := agent.Select(ctx, agent.OnSignal[string](ctx, "never"), agent.After(ctx, olderPause))
		return o.ends(ctx, err, n)
	})
	waits("race", func(ctx *agent.Context) (string, error) {
		first, err := agent.Race(ctx, time.Hour, waiters(ctx, 2)...)
		return o.ends(ctx, err, first.Value)
	})
	waits("race-limit", func(ctx *agent.Context) (string, error) {
		_, err := agent.Race(ctx, olderPause, waiters(ctx, 1)...)
		if !errors.Is(err, agent.ErrTimeout) {
			return "", perdure.Permanent(fmt.Errorf("%v, want a timeout", err))
		}
		return o.ends(ctx, nil, "timed out")
	})
	waits("select-ok", func(ctx *agent.Context) (string, error) {
		first, err := agent.SelectOK(ctx, append(waiters(ctx, 1), agent.Spawn[string](ctx, "fails", 1))...)
		return o.ends(ctx, err, first.Value, first.Index)
	})
	waits("first-ok", func(ctx *agent.Context) (string, error) {
		first, err := agent.FirstOK(ctx, 2, waiters(ctx, 3)...)
		return o.ends(ctx, err, len(first.Values))
	})
	waits("map", func(ctx *agent.Context) (string, error) {
		set, err := agent.Map[string](ctx, "waiter", []int{1, 2, 3, 4}, agent.MapOptions{Limit: 2})
		return o.ends(ctx, err, set.Results)
	})
	waits("parallel", func(ctx *agent.Context) (string, error) {
		set, err := agent.Parallel(ctx, "square", []int{1, 2, 3}, func(_ context.Context, n int) (int, error) {
			return n * n, nil
		})
		if err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, set.Results, data)
	})
	waits("saga-kept", func(ctx *agent.Context) (string, error) {
		if err := agent.Saga(ctx, "trip", func() error { return o.book(ctx, "book") }); err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, data)
	})
	waits("saga-open", func(ctx *agent.Context) (string, error) {
		err := agent.Saga(ctx, "trip", func() error {
			if err := o.book(ctx, "book"); err != nil {
				return err
			}
			if _, err := goes(ctx); err != nil {
				return err
			}
			return o.book(ctx, "pay")
		})
		return o.ends(ctx, err, "booked")
	})
	waits("saga-fails", func(ctx *agent.Context) (string, error) {
		err := agent.Saga(ctx, "trip", func() error {
			if err := o.book(ctx, "book"); err != nil {
				return err
			}
			if _, err := goes(ctx); err != nil {
				return err
			}
			return errors.New("too far")
		})
		return o.ends(ctx, nil, err)
	})
	waits("saga-undone", func(ctx *agent.Context) (string, error) {
		failed := agent.Saga(ctx, "trip", func() error {
			if err := o.book(ctx, "book"); err != nil {
				return err
			}
			return errors.New("too far")
		})
		data, err := goes(ctx)
		return o.ends(ctx, err, failed, data)
	})
	waits("saga-cancelled", func(ctx *agent.Context) (string, error) {
		return "", agent.Saga(ctx, "trip", func() error {
			if err := o.book(ctx, "book"); err != nil {
				return err
			}
			_, err := goes(ctx)
			return err
		})
	})
	waits("now-and-uuid", func(ctx *agent.Context) (string, error) {
		began, one, two := agent.Now(ctx, "began"), agent.UUID(ctx, "one"), agent.UUID(ctx, "two")
		kept, err := agent.Step(ctx, "keep", func(context.Context) (string, error) {
			return fmt.Sprint(began.UnixMicro(), one, two), nil
		})
		if err != nil {
			return "", err
		}
		_, err = goes(ctx)
		return o.ends(ctx, err, kept == fmt.Sprint(began.UnixMicro(), one, two))
	})
	waits("version", func(ctx *agent.Context) (string, error) {
		before := agent.Version(ctx, "prompt", 2)
		_, err := goes(ctx)
		return o.ends(ctx, err, before, agent.Version(ctx, "prompt", 3))
	})
	waits("announced", func(ctx *agent.Context) (string, error) {
		agent.Removed(ctx, "gone") // a step of the older release
		if v := agent.Version(ctx, "checked", 1); v != 0 {
			return "", perdure.Permanent(fmt.Errorf("version %d, want that from before", v))
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, data)
	})
	waits("reports", func(ctx *agent.Context) (string, error) {
		if err := agent.Message(ctx, "assistant", "one"); err != nil {
			return "", err
		}
		if err := o.run(ctx, "between"); err != nil {
			return "", err
		}
		for _, text := range []string{"two", "three"} {
			if err := agent.Message(ctx, "assistant", text); err != nil {
				return "", err
			}
		}
		if err := agent.Emit(ctx, "x:line", 1); err != nil {
			return "", err
		}
		data, err := goes(ctx)
		if err == nil {
			err = agent.Message(ctx, "assistant", "four")
		}
		if err == nil {
			err = agent.Emit(ctx, "x:line", 2)
		}
		return o.ends(ctx, err, data)
	})
	waits("error-fact", func(ctx *agent.Context) (string, error) {
		_, failed := agent.Step(ctx, "try", func(context.Context) (int, error) { return 0, errors.New("not today") })
		data, err := goes(ctx)
		return o.ends(ctx, err, failed, data)
	})
	waits("values", func(ctx *agent.Context) (string, error) {
		b, err := agent.Step(ctx, "bytes", func(context.Context) ([]byte, error) { return []byte("Bern"), nil })
		if err != nil {
			return "", err
		}
		s, err := agent.Step(ctx, "struct", func(context.Context) (parcel, error) { return parcel{"QUJD"}, nil })
		if err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, string(b), s.Name, data)
	})
	chosen := func(kind string, choose func(ctx *agent.Context) (any, error)) {
		waits(kind, func(ctx *agent.Context) (string, error) {
			first, err := choose(ctx)
			if err != nil {
				return "", err
			}
			data, err := goes(ctx)
			return o.ends(ctx, err, first, data)
		})
	}
	chosen("chosen-select", func(ctx *agent.Context) (any, error) {
		return agent.Select(ctx, waiters(ctx, 1)[0], agent.OnSignal[string](ctx, "come"), agent.After(ctx, time.Hour))
	})
	chosen("chosen-timer", func(ctx *agent.Context) (any, error) {
		return agent.Select(ctx, agent.OnSignal[string](ctx, "never"), agent.After(ctx, time.Second))
	})
	chosen("chosen-race", func(ctx *agent.Context) (any, error) {
		first, err := agent.Race(ctx, time.Hour, waiters(ctx, 2)...)
		return first.Value, err
	})
	chosen("chosen-race-limit", func(ctx *agent.Context) (any, error) {
		_, err := agent.Race(ctx, time.Second, waiters(ctx, 1)...)
		return errors.Is(err, agent.ErrTimeout), nil
	})
	chosen("chosen-select-ok", func(ctx *agent.Context) (any, error) {
		first, err := agent.SelectOK(ctx, append(waiters(ctx, 1), agent.Spawn[string](ctx, "fails", 1))...)
		return first.Value, err
	})
	chosen("chosen-first-ok", func(ctx *agent.Context) (any, error) {
		first, err := agent.FirstOK(ctx, 2, waiters(ctx, 3)...)
		return len(first.Values), err
	})
	chosen("chosen-map", func(ctx *agent.Context) (any, error) {
		set, err := agent.Map[string](ctx, "waiter", []int{1, 2, 3}, agent.MapOptions{Limit: 2})
		return set.Results, err
	})
	chosen("chosen-join-all", func(ctx *agent.Context) (any, error) {
		return agent.JoinAll(ctx, waiters(ctx, 2)...)
	})
	worker.Agent(w, "input", func(ctx *agent.Context, in parcel) (string, error) {
		if err := o.run(ctx, "before"); err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, in.Name, data)
	})
	waits("retried", func(ctx *agent.Context) (string, error) {
		data, err := goes(ctx)
		if err != nil {
			return "", err
		}
		id := agent.UUID(ctx, "order")
		if _, err := agent.Step(ctx, "pay", func(context.Context) (string, error) {
			return id, nil // it failed for good under the older release
		}); err != nil {
			return "", err
		}
		return o.ends(ctx, nil, data)
	})
	waits("goroutine", func(ctx *agent.Context) (string, error) {
		done := make(chan error)
		go func() { done <- o.run(ctx, "aside") }() //perdurevet:ignore agentgo an older release allowed it
		if err := <-done; err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, data)
	})
	waits("goroutine-to-branch", func(ctx *agent.Context) (string, error) {
		branch := agent.Go(ctx, "aside", func(ctx *agent.Context) error { return o.run(ctx, "aside") })
		if err := branch.Join(ctx); err != nil {
			return "", err
		}
		data, err := goes(ctx)
		return o.ends(ctx, err, data)
	})
	waits("goroutine-removed", func(ctx *agent.Context) (string, error) {
		agent.Removed(ctx, "aside")
		data, err := goes(ctx)
		return o.ends(ctx, err, data)
	})
}
