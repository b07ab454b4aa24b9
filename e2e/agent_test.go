package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/worker"
)

// agents is a worker process. Its steps write their effects to a ledger before they are recorded.
func agents(url, key, ledger string) error {
	w := worker.New(client.New(url, key, client.Options{}),
		worker.Options{HeartbeatEvery: 500 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	worker.Handle(w, "slow", func(ctx context.Context, n int) (int, error) {
		select {
		case <-time.After(time.Minute):
			return n, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	worker.Handle(w, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
	worker.Handle(w, "fails", func(context.Context, int) (int, error) { return 0, perdure.Permanent(errors.New("no")) })
	worker.Agent(w, "timeouts", timeouts)
	worker.Agent(w, "settles", settles)
	worker.Agent(w, "selects", selects)
	worker.Agent(w, "return", func(ctx *agent.Context, steps int) (string, error) {
		return "", returns(ctx, steps, ledger)
	})
	worker.Agent(w, "trip", func(ctx *agent.Context, steps int) (string, error) { return travel(ctx, steps, ledger) })
	return w.Run(context.Background())
}

// timeouts is also known as test_server_side_task_timeout: three tasks have a timeout of a second,
// and their worker takes a minute.
func timeouts(ctx *agent.Context, _ struct{}) (string, error) {
	var fs []*agent.Future[int]
	for n := range 3 {
		fs = append(fs, agent.Spawn[int](ctx, "slow", n, agent.Timeout(time.Second)))
	}
	set, err := agent.JoinAllSettled(ctx, fs...)
	if err != nil {
		return "", err
	}
	for n, err := range set.Errors {
		var late agent.ErrTaskTimedOut
		if !errors.As(err, &late) || late.TaskID != fs[n].ID() || late.Deadline == 0 {
			return "", perdure.Permanent(fmt.Errorf("task %d: %w", n, err))
		}
	}
	return fmt.Sprintf("%d completed, %d timed out", set.Completed, set.TimedOut), nil
}

// settles is also known as test_agent_join_all_settled_partial_completion: all complete in time.
func settles(ctx *agent.Context, _ struct{}) (string, error) {
	var fs []*agent.Future[int]
	for n := range 3 {
		fs = append(fs, agent.Spawn[int](ctx, "double", n+1, agent.Timeout(time.Minute)))
	}
	set, err := agent.JoinAllSettled(ctx, fs...)
	return fmt.Sprint(set.Completed, " completed ", set.Results), err
}

// selects is also known as test_agent_select_ok_skips_failures: two fail, the third succeeds, and
// one remains.
func selects(ctx *agent.Context, _ struct{}) (string, error) {
	fs := []*agent.Future[int]{agent.Spawn[int](ctx, "fails", 1), agent.Spawn[int](ctx, "fails", 2)}
	if _, err := agent.JoinAllSettled(ctx, fs...); err != nil {
		return "", err
	}
	fs = append(fs, agent.Spawn[int](ctx, "double", 3), agent.Spawn[int](ctx, "slow", 4, agent.Timeout(time.Minute)))
	first, err := agent.SelectOK(ctx, fs...)
	return fmt.Sprintf("%d from %d, %d remain", first.Value, first.Index, len(first.Remaining)), err
}

// writeTo returns a function that writes an effect and its idempotency key to a ledger.
func writeTo(ledger string) func(ctx context.Context, what string) error {
	return func(ctx context.Context, what string) error {
		f, err := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = fmt.Fprintln(f, what, agent.IdempotencyKey(ctx))
		return err
	}
}

// returns is a saga that waits to be cancelled. The undo of its step 1 has its effect, and is not
// done before the ledger's gate is open.
func returns(ctx *agent.Context, steps int, ledger string) error {
	write := writeTo(ledger)
	return agent.Saga(ctx, "trip", func() error {
		for n := range steps {
			name := fmt.Sprint("book ", n)
			undo := agent.Undo(func(ctx context.Context, what string) error {
				if err := write(ctx, "un"+what); err != nil || n != 1 {
					return err
				}
				for ctx.Err() == nil {
					if _, err := os.Stat(ledger + ".gate"); err == nil {
						return nil
					}
					time.Sleep(5 * time.Millisecond)
				}
				return ctx.Err()
			})
			if _, err := agent.Step(ctx, name, func(ctx context.Context) (string, error) {
				return name, write(ctx, name)
			}, undo); err != nil {
				return err
			}
		}
		_, err := agent.Signal[string](ctx, "never", time.Hour)
		return err
	})
}

// travel is a saga with steps, a child, a signal and a timer. It fails at the end and is undone.
func travel(ctx *agent.Context, steps int, ledger string) (string, error) {
	write := writeTo(ledger)
	err := agent.Saga(ctx, "trip", func() error {
		for n := range steps {
			name := fmt.Sprint("book ", n)
			if _, err := agent.Step(ctx, name, func(ctx context.Context) (string, error) {
				time.Sleep(20 * time.Millisecond)
				return name, write(ctx, name)
			}, agent.Undo(func(ctx context.Context, what string) error { return write(ctx, "un"+what) })); err != nil {
				return err
			}
			if v, err := agent.Spawn[int](ctx, "double", n).Join(ctx); err != nil || v != 2*n {
				return fmt.Errorf("a child gave %d: %w", v, err)
			}
		}
		if _, err := agent.Signal[string](ctx, "pay", time.Minute); err != nil {
			return err
		}
		if err := agent.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		return errors.New("the card is empty")
	})
	return fmt.Sprint(err), nil
}

// startWorker starts a worker process.
func startWorker(t *testing.T, n *node, ledger string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PERDURE_AGENTS=http://"+n.addr, "PERDURE_AGENTS_KEY="+n.key,
		"PERDURE_AGENTS_LEDGER="+ledger)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killWorker(cmd) })
	return cmd
}

// killWorker kills a worker process.
func killWorker(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

func TestAgentsInRealProcesses(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", pgtest.New(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, append(store(t), brief...)...)
			ledger := filepath.Join(t.TempDir(), "ledger")
			workers := []*exec.Cmd{startWorker(t, n, ledger), startWorker(t, n, ledger)}
			c := client.New("http://"+n.addr, n.key, client.Options{})
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
			defer cancel()
			start := func(kind string, input any) perdure.RunID {
				t.Helper()
				run, err := c.Start(ctx,
					perdure.Submission{Kind: kind, Class: perdure.Agent, Input: client.JSON(input), MaxAttempts: 10})
				if err != nil {
					t.Fatal(err)
				}
				return run.RunID
			}
			want := map[perdure.RunID]string{}
			want[start("timeouts", struct{}{})] = `"0 completed, 3 timed out"`
			want[start("settles", struct{}{})] = `"3 completed [2 4 6]"`
			want[start("selects", struct{}{})] = `"6 from 2, 1 remain"`
			for id, result := range want {
				ended(t, ctx, c, id, result)
			}

			// Workers and the server are killed while agents work. Nothing is recorded twice, and
			// nothing is lost.
			const trips, steps = 4, 4
			var ids []perdure.RunID
			for range trips {
				ids = append(ids, start("trip", steps))
			}
			written(t, ledger, trips) // until all have begun
			killWorker(workers[0])
			n.kill(syscall.SIGKILL)
			n.start()
			workers[0] = startWorker(t, n, ledger)
			written(t, ledger, 2*trips)
			killWorker(workers[1])
			startWorker(t, n, ledger)
			for _, id := range ids {
				if _, err := c.Signal(ctx, id, "pay", nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range ids {
				ended(t, ctx, c, id, `"the card is empty"`)
			}
			booked(t, ledger, ids, steps)
			n.sound()
		})
	}
}

// A worker is killed while it undoes a cancelled saga. The run is granted again within
// cleanup_grace, the undo that was not recorded is executed once more with the same key, and those
// that were recorded are not.
func TestSagaWhoseWorkerIsKilledDuringACancelIsUndone(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", pgtest.New(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, append(store(t), "--policy", "lease=1s", "--policy", "gap_after=2s", "--policy",
				"gap_spare=1s", "--policy", "backoff_base=50ms")...)
			ledger := filepath.Join(t.TempDir(), "ledger")
			first := startWorker(t, n, ledger)
			c := client.New("http://"+n.addr, n.key, client.Options{})
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
			defer cancel()
			run, err := c.Start(ctx, perdure.Submission{Kind: "return", Class: perdure.Agent, Input: client.JSON(3),
				MaxAttempts: 1})
			if err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "all is booked", func() bool {
				got, err := c.Get(ctx, run.RunID)
				return err == nil && got.State == perdure.Suspended
			})
			if _, err := c.Cancel(ctx, run.RunID, "changed my mind", 0); err != nil {
				t.Fatal(err)
			}
			written(t, ledger, 5) // three steps, and two undos have had their effects
			killWorker(first)
			if err := os.WriteFile(ledger+".gate", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			startWorker(t, n, ledger)
			got, deferred, err := c.Join(ctx, run.RunID, 30*time.Second)
			if err != nil || deferred || got.State != perdure.Cancelled || got.Attempt != 1 {
				t.Fatalf("run %+v (deferred %t): %v; want it cancelled in its first attempt", got, deferred, err)
			}
			var want []string
			for _, line := range []string{"book 0", "book 1", "book 2", "unbook 2", "unbook 1", "unbook 1",
				"unbook 0"} {
				key := line
				if step, ok := strings.CutPrefix(line, "un"); ok {
					key = "_undone:" + step
				}
				want = append(want, fmt.Sprintf("%s %s/%s#1", line, run.RunID, key))
			}
			b, err := os.ReadFile(ledger)
			if got := strings.Split(strings.TrimSpace(string(b)), "\n"); err != nil || !slices.Equal(got, want) {
				t.Errorf("ledger (%v):\n%s\nwant\n%s", err, b, strings.Join(want, "\n"))
			}
			d, err := c.Deliverable(ctx, run.RunID)
			if err != nil || strings.Contains(string(d.Content), "not_undone") {
				t.Errorf("deliverable %+v: %v; want nothing that is not undone", d, err)
			}
			n.sound()
		})
	}
}

// ended waits until a run has ended, and checks its result.
func ended(t *testing.T, ctx context.Context, c *client.Client, id perdure.RunID, want string) {
	t.Helper()
	var run *api.Run
	for deferred := true; deferred; {
		var err error
		if run, deferred, err = c.Join(ctx, id, 20*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if run.State != perdure.Completed || string(run.Result) != want {
		t.Errorf("run %s of kind %s: %s with result %s (error %+v), want completed with %s",
			run.RunID, run.Kind, run.State, run.Result, run.Error, want)
	}
}

// written waits until the ledger has a number of lines.
func written(t *testing.T, ledger string, lines int) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("%d lines in the ledger", lines), func() bool {
		b, err := os.ReadFile(ledger)
		return err == nil && strings.Count(string(b), "\n") >= lines
	})
}

// booked checks the ledger. Every step of every run was done and undone, in order, with one
// idempotency key each. A step that was done twice, because a worker was killed before it was
// recorded, has the same key.
func booked(t *testing.T, ledger string, ids []perdure.RunID, steps int) {
	t.Helper()
	b, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, id := range ids {
		var got, want []string
		for _, line := range lines {
			if strings.Contains(line, string(id)) && !slices.Contains(got, line) {
				got = append(got, line)
			}
		}
		for n := range steps {
			want = append(want, fmt.Sprintf("book %d %s/book %d#1", n, id, n))
		}
		for n := steps - 1; n >= 0; n-- {
			want = append(want, fmt.Sprintf("unbook %d %s/_undone:book %d#1", n, id, n))
		}
		if !slices.Equal(got, want) {
			t.Errorf("ledger of run %s:\n%s\nwant\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if twice := len(lines) - 2*steps*len(ids); twice > 2*len(ids) {
		t.Errorf("%d steps were done twice, want at most %d: one for each run and kill", twice, 2*len(ids))
	}
}
