package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/cmd/internal/child"
	"github.com/perdure/perdure/worker"
)

// This file compares the workers of the SDKs. Each is a process of its own beside the same server, and one of them
// works at a time, in turns whose order changes: so what else the machine does meanwhile falls on all of them. A
// ratio is the median of those of the turns.

// WorkCommand is the first argument with which the bench starts this program as the worker in Go.
const WorkCommand = "bench-work"

// sdkRuns are the most runs of a turn, and sdkTurn is the part of the duration for which there is a turn.
const (
	sdkRuns = 1000
	sdkTurn = 2 * time.Second
)

// sdks are the workers that are compared. The first is the one beside which the others are.
var sdks = []struct {
	name string
	// start starts a worker of the SDK in a folder.
	start func(ctx context.Context, folder string, env []string) (*child.Process, error)
}{
	{"Go", func(ctx context.Context, _ string, env []string) (*child.Process, error) {
		return child.Start(ctx, "worker in Go", env, WorkCommand)
	}},
	{"Python", func(ctx context.Context, folder string, env []string) (*child.Process, error) {
		env = append(env, "PYTHONPATH="+filepath.Join(folder, "python"))
		return child.StartProgram(ctx, "python3", "worker in Python", env, "-m", "tests.bench_worker")
	}},
	{"TypeScript", func(ctx context.Context, folder string, env []string) (*child.Process, error) {
		folder = filepath.Join(folder, "typescript")
		node := filepath.Join(folder, "runtime", "node_modules", "node-22", "bin", "node")
		file := filepath.Join(folder, "dist", "test", "bench-worker.js")
		for _, f := range []string{node, file} {
			if _, err := os.Stat(f); err != nil {
				return nil, fmt.Errorf("\"make typescript\" makes it: %w", err)
			}
		}
		return child.StartProgram(ctx, node, "worker in TypeScript", env, file)
	}},
}

// beside names the figure of an SDK beside the worker in Go.
func beside(sdk string) string { return sdk + " beside Go" }

// Work executes runs that do nothing. It is the worker in Go.
func Work(ctx context.Context, args []string, _, _ io.Writer) error {
	if len(args) != 0 {
		return errors.New("this is for the bench alone")
	}
	c := client.New(os.Getenv("PERDURE_URL"), os.Getenv("PERDURE_KEY"), client.Options{})
	w := worker.New(c, worker.Options{Slots: agentsAtOnce})
	worker.Handle(w, kind, func(context.Context, json.RawMessage) (int, error) { return 1, nil })
	return w.Run(ctx)
}

// measureSDKs measures 64 callers who start runs and wait for their results, with the worker of each SDK in turn.
func measureSDKs(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	folder, err := filepath.Abs(b.SDKs)
	if err != nil {
		return nil, err
	}
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	c := client.New(t.url, t.key, client.Options{})
	defer c.Close()
	turns, runs := max(1, int(b.Duration/sdkTurn)), min(sdkRuns, b.Backlog)
	rates, all := make([][]float64, len(sdks)), make([]samples, len(sdks))
	for turn := range turns {
		for n := range sdks {
			i := (turn + n) % len(sdks)
			b.phase("%s, turn %d", sdks[i].name, turn+1)
			w, err := sdks[i].start(ctx, folder, []string{"PERDURE_URL=" + t.url, "PERDURE_KEY=" + t.key})
			if err != nil {
				return nil, err
			}
			took, err := b.sdkTurn(ctx, c, runs, &all[i])
			w.Kill()
			if err != nil {
				return nil, fmt.Errorf("%w %s", err, w.Errors.String())
			}
			rates[i] = append(rates[i], float64(runs)/took.Seconds())
		}
	}
	for i, s := range sdks {
		f = append(f, Figure{What: s.name, Loop: closedLoops, Count: runs * turns, Value: middle(rates[i]),
			Unit: unitRate, Latency: all[i].spread()})
		ratios := make([]float64, turns)
		for turn := range ratios {
			ratios[turn] = rates[i][turn] / rates[0][turn]
		}
		if i > 0 {
			f = append(f, Figure{What: beside(s.name), Count: turns, Value: middle(ratios), Unit: unitTimes})
		}
	}
	return f, nil
}

// sdkTurn starts runs and waits for their results, after some that don't count, and returns how long it took.
func (b *Bench) sdkTurn(ctx context.Context, c *client.Client, runs int, s *samples) (time.Duration, error) {
	once := func() error {
		run, deferred, err := c.Run(ctx, benchRun, lastRuns)
		if err != nil {
			return err
		}
		if deferred || run.State != perdure.Completed || string(run.Result) != "1" {
			return fmt.Errorf("run %s is %s with %s, want completed with 1", run.RunID, run.State, run.Result)
		}
		return nil
	}
	if err := parallel(agentsAtOnce, func(int) error { return once() }); err != nil {
		return 0, err
	}
	var started atomic.Int64
	begin := time.Now()
	err := parallel(agentsAtOnce, func(int) error {
		for started.Add(1) <= int64(runs) {
			at := time.Now()
			if err := once(); err != nil {
				return err
			}
			s.add(time.Since(at))
			b.did(1)
		}
		return nil
	})
	return time.Since(begin), err
}

// middle returns the median.
func middle(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	return sorted[len(sorted)/2]
}
