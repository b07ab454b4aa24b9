package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// This file is the worker's program of releases_test.go, in three releases. Its agents have a wait each, and
// an edit each that the bad release makes.

// releaseVar names the release that a process of the test binary is to be, with its address, key and
// ledger.
const releaseVar = "PERDURE_RELEASE"

// The releases.
const (
	oldRelease  = "old"
	badRelease  = "bad"
	goodRelease = "good"
)

// The edits that the bad release makes without announcing them.
const (
	renamed  = "renamed" // of the step before the wait
	removed  = "removed" // a step before the wait
	rereads  = "rereads" // another field of the input
	anyPause = time.Hour // of waits that something ends
	booking  = "charge"  // the step before the wait
	card     = "charge card"
)

var releaseEdits = []string{renamed, removed, rereads}

// A release is a build of the program.
type release struct {
	name   string
	ledger string
}

// The input of a run has its order twice. Releases differ in which of them they read.
type (
	orderName struct {
		Order string `json:"order"`
	}
	orderID struct {
		Order string `json:"order_id"`
	}
	orderBoth struct {
		Order string `json:"order"`
		ID    string `json:"order_id"`
	}
)

// runRelease is the program: a worker of the release that the environment names.
func runRelease(spec string) error {
	part := strings.SplitN(spec, " ", 4)
	r := &release{name: part[0], ledger: part[3]}
	w := worker.New(client.New(part[1], part[2], client.Options{}), worker.Options{Build: r.name, AgentSlots: 20,
		HeartbeatEvery: 250 * time.Millisecond,
		Logger:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))})
	worker.Agent(w, "kid", func(ctx *agent.Context, _ int) (string, error) {
		_, err := agent.Signal[string](ctx, "go", anyPause)
		return "", err
	})
	for wait, f := range releaseWaits {
		for _, edit := range releaseEdits {
			kind := wait + "-" + edit
			run := func(ctx *agent.Context, order string) (string, error) {
				t := &passage{release: r, edit: edit}
				if err := f(ctx, t); err != nil {
					return "", err
				}
				ship, err := t.do(ctx, "ship")
				return fmt.Sprint(order, " ", t.charge, " ", ship), err
			}
			switch {
			case edit == rereads && r.name == badRelease:
				worker.Agent(w, kind, func(ctx *agent.Context, in orderID) (string, error) {
					return run(ctx, in.Order)
				})
			case edit == rereads && r.name == goodRelease:
				worker.Agent(w, kind, func(ctx *agent.Context, in orderBoth) (string, error) {
					return run(ctx, in.ID)
				})
			default:
				worker.Agent(w, kind, func(ctx *agent.Context, in orderName) (string, error) {
					return run(ctx, in.Order)
				})
			}
		}
	}
	return w.Run(context.Background())
}

// A passage is one execution of an agent.
type passage struct {
	*release
	edit   string
	charge string // the result of the step before the wait
}

// do executes a step. Its effect is a line of the ledger: its idempotency key, and a random id, which is
// its result.
func (t *passage) do(ctx *agent.Context, name string, opts ...agent.StepOption) (string, error) {
	return agent.Step(ctx, name, func(ctx context.Context) (string, error) {
		id := strconv.FormatUint(rand.Uint64(), 36)
		return id, t.write(agent.IdempotencyKey(ctx), id)
	}, opts...)
}

// write adds a line to the ledger.
func (r *release) write(key, what string) error {
	f, err := os.OpenFile(r.ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s|%s\n", key, what)
	return err
}

// before executes the steps before the wait, as the release has them.
func (t *passage) before(ctx *agent.Context, opts ...agent.StepOption) (err error) {
	name := booking
	switch {
	case t.edit == removed && t.name == oldRelease:
		if _, err := t.do(ctx, "check"); err != nil {
			return err
		}
	case t.edit == removed && t.name == goodRelease:
		agent.Removed(ctx, "check")
	case t.edit == renamed && t.name == badRelease,
		t.edit == renamed && t.name == goodRelease && agent.Version(ctx, "card", 1) >= 1:
		name = card
	}
	t.charge, err = t.do(ctx, name, opts...)
	return err
}

// releaseWaits has the agents, by what they wait for between their steps.
var releaseWaits = map[string]func(ctx *agent.Context, t *passage) error{
	"sleep": func(ctx *agent.Context, t *passage) error {
		if err := t.before(ctx); err != nil {
			return err
		}
		return agent.Sleep(ctx, 2*time.Second)
	},
	"signal": func(ctx *agent.Context, t *passage) error {
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := agent.Signal[string](ctx, "go", anyPause)
		return err
	},
	"approval": func(ctx *agent.Context, t *passage) error {
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := agent.Approve(ctx, agent.Approval{Title: "May I?", Action: 1})
		return err
	},
	"callback": func(ctx *agent.Context, t *passage) error {
		f := agent.Callback[string](ctx, "paid", anyPause)
		token := f.Token()
		if _, err := agent.Step(ctx, "post", func(context.Context) (int, error) {
			return 0, t.write("token", string(ctx.RunID())+" "+token)
		}); err != nil {
			return err
		}
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := f.Join(ctx)
		return err
	},
	"message": func(ctx *agent.Context, t *passage) error {
		if err := t.before(ctx); err != nil {
			return err
		}
		if _, err := agent.OnMessage[string](ctx).Join(ctx); err != nil {
			return err
		}
		return agent.Message(ctx, "assistant", "Bye.")
	},
	"child": func(ctx *agent.Context, t *passage) error {
		f := agent.Spawn[string](ctx, "kid", 1)
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := f.Join(ctx)
		return err
	},
	"join": func(ctx *agent.Context, t *passage) error {
		fs := []*agent.Future[string]{agent.Spawn[string](ctx, "kid", 1), agent.Spawn[string](ctx, "kid", 2)}
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := agent.JoinAll(ctx, fs...)
		return err
	},
	"map": func(ctx *agent.Context, t *passage) error {
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := agent.Map[string](ctx, "kid", []int{1, 2, 3}, agent.MapOptions{Limit: 2})
		return err
	},
	"select": func(ctx *agent.Context, t *passage) error {
		if err := t.before(ctx); err != nil {
			return err
		}
		_, err := agent.Select(ctx, agent.After(ctx, anyPause), agent.OnSignal[string](ctx, "go"))
		return err
	},
	"branches": func(ctx *agent.Context, t *passage) error {
		left := agent.Go(ctx, "left", func(ctx *agent.Context) error {
			if err := t.before(ctx); err != nil {
				return err
			}
			_, err := agent.Signal[string](ctx, "go", anyPause)
			return err
		})
		right := agent.Go(ctx, "right", func(ctx *agent.Context) error {
			_, err := agent.Signal[string](ctx, "come", anyPause)
			return err
		})
		if err := left.Join(ctx); err != nil {
			return err
		}
		return right.Join(ctx)
	},
	"saga": func(ctx *agent.Context, t *passage) error {
		return agent.Saga(ctx, "trip", func() error {
			if err := t.before(ctx, t.undo()); err != nil {
				return err
			}
			_, err := agent.Signal[string](ctx, "go", anyPause)
			return err
		})
	},
	"undone": func(ctx *agent.Context, t *passage) error {
		err := agent.Saga(ctx, "trip", func() error {
			if err := t.before(ctx, t.undo()); err != nil {
				return err
			}
			if _, err := agent.Signal[string](ctx, "go", anyPause); err != nil {
				return err
			}
			return errors.New("too far")
		})
		if err == nil || !strings.Contains(err.Error(), "too far") {
			return fmt.Errorf("the saga ended with: %w", err)
		}
		return nil
	},
}

func (t *passage) undo() agent.StepOption {
	return agent.Undo(func(ctx context.Context, id string) error { return t.write(agent.IdempotencyKey(ctx), id) })
}
