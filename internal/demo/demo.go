// Package demo is what "perdure demo" runs. It shows that a run survives the end of its caller's
// wait, the death of its server and the death of its worker.
//
// # How it works
//
// Run starts a server and a worker as processes, the program itself with other arguments. The
// worker reports each step on its standard output. Run reads these reports, kills the server in one
// step and the worker in another with SIGKILL, and starts both again. At the end it reads the run's
// log, checks the store's invariants, draws a picture and compares what happened with what is
// promised.
//
// # What it is not
//
// It is not a test framework: e2e and the simulator kill processes at random points. The worker
// here calls the API directly, so that it shows what a worker in any language does.
//
// # Where to start reading
//
//   - demo.go: what happens, in play. What is promised, in verify.
//   - worker.go: the worker.
//   - picture.go: the picture, drawn from instants alone.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/child"
	"github.com/perdure/perdure/internal/paint"
)

const (
	limit      = 60 * time.Second       // of the whole demo, for a very busy machine
	stepTakes  = 350 * time.Millisecond // duration of a step
	callerWait = 500 * time.Millisecond // how long the caller waits
	downtime   = 900 * time.Millisecond // how long the server, and later the worker, is away
	serverDies = 3                      // the step in which the server is killed
	workerDies = 5                      // the step in which the worker is killed
)

// policy is the default policy with a lease and a backoff that are short enough to watch. gap_after
// is shorter than the lease, so that the absence of the server costs no attempt.
var policy = []string{"--policy", "lease=4s", "--policy", "backoff_base=300ms", "--policy", "gap_after=2s"}

// An observation is everything that the demo has seen.
type observation struct {
	begin perdure.Instant // of the demo
	// tell prints an event.
	tell func(at perdure.Instant, who, text string)

	Servers [2]processLife
	Workers [2]processLife
	// Run is the ended run, and Events its log.
	Run    *api.Run
	Events []api.Event
	// Back is the run after the restart of the server.
	Back *api.Run
	// Acked has the steps that were acknowledged before the server was killed.
	Acked []int
	// Began has the starts of steps, by worker.
	Began [2][]stepStart
	// Ended has when each step was recorded.
	Ended map[int]perdure.Instant
	// Effects counts the executions of each step.
	Effects map[string]int
	// Checked counts the invariants, and Broken the rows that violate one.
	Checked int
	Broken  int
}

// A processLife is the time from the start of a process to its end.
type processLife struct {
	PID      int
	Up, Down perdure.Instant
}

// A stepStart is when a worker began a step.
type stepStart struct {
	Step int
	At   perdure.Instant
}

// Run runs the demo. It prints what happens as it happens or, with a printJSON, everything at the
// end.
func Run(ctx context.Context, stdout io.Writer, printJSON func(any) error) error {
	asJSON := printJSON != nil
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "perdure-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	p := paint.Painter{On: !asJSON && paint.Colourful(stdout)}
	s := &observation{begin: now(), Ended: make(map[int]perdure.Instant),
		tell: func(perdure.Instant, string, string) {}}
	if !asJSON {
		s.tell = func(at perdure.Instant, by, text string) {
			fmt.Fprintf(stdout, "  %s  %s %s\n", p.Dim(fmt.Sprintf("%5.2f s", at.Sub(s.begin).Seconds())),
				who(p, by), text)
		}
		fmt.Fprintf(stdout,
			"\n%s\n\n  An agent is asked for %d steps. Its caller has %s of patience, in step %d the server is "+
				"killed,\n  and in step %d the worker.\n\n",
			p.Bold("Timeouts stop waiting, not working"), len(steps), seconds(callerWait), serverDies, workerDies)
	}
	if err := s.play(ctx, dir); err != nil {
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fmt.Errorf("it was not done after %s: %w", limit, err)
		case ctx.Err() != nil:
			return errors.New("stopped before its end")
		}
		return err
	}
	if asJSON {
		err = printJSON(s.facts())
	} else {
		fmt.Fprintf(stdout, "\n%s\n%s", s.picture(p), s.verdict(p))
	}
	return errors.Join(err, s.verify())
}

func now() perdure.Instant { return perdure.At(time.Now()) }

// play makes everything happen that the demo shows.
func (s *observation) play(ctx context.Context, dir string) error {
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	server, err := s.startServer(ctx, 0, addr, data)
	if err != nil {
		return err
	}
	defer func() { server.Kill() }()
	key, err := os.ReadFile(filepath.Join(data, embedded.KeyFile))
	if err != nil {
		return err
	}
	env := []string{"PERDURE_URL=http://" + addr, "PERDURE_KEY=" + strings.TrimSpace(string(key))}
	c := client.New("http://"+addr, strings.TrimSpace(string(key)), client.Options{})
	defer c.Close()

	w, err := s.startWorker(ctx, 0, dir, env)
	if err != nil {
		return err
	}
	defer func() { w.Kill() }()

	// The caller waits for a short time only.
	s.tell(now(), "caller", "submits a run, and waits "+seconds(callerWait)+" at most")
	waited := make(chan error, 1)
	var first *api.Run
	go func() {
		run, deferred, err := c.Run(ctx,
			perdure.Submission{Kind: kind, Input: client.JSON(map[string]string{"host": "cube"})}, callerWait)
		first = run
		if err == nil && !deferred {
			err = errors.New("the caller did not have to wait long enough")
		}
		s.tell(now(), "caller", "202, deferred: stops waiting, and the work goes on")
		waited <- err
	}()

	if err := s.until(ctx, 0, w, reportBegan, serverDies); err != nil {
		return err
	}
	if err := <-waited; err != nil {
		return err
	}
	child.Pause(ctx, stepTakes/2)
	s.Servers[0].Down = now()
	server.Kill()
	s.tell(s.Servers[0].Down, "demo",
		fmt.Sprintf("kill -9 %d: the server is gone, in the middle of step %d", s.Servers[0].PID, serverDies))
	if err := s.until(ctx, 0, w, reportDone, serverDies); err != nil {
		return err
	}
	s.tell(now(), "worker", fmt.Sprintf("step %d is done, nobody answers: keeps it, and tries again", serverDies))
	child.Pause(ctx, downtime)
	if server, err = s.startServer(ctx, 1, addr, data); err != nil {
		return err
	}
	if s.Back, err = c.Get(ctx, first.RunID); err != nil {
		return err
	}
	s.tell(now(), "store",
		fmt.Sprintf("has the run: %s, attempt %d, %d lines of log", s.Back.State, s.Back.Attempt, s.Back.LastSeq))

	if err := s.until(ctx, 0, w, reportBegan, workerDies); err != nil {
		return err
	}
	child.Pause(ctx, stepTakes/2)
	s.Workers[0].Down = now()
	w.Kill()
	s.tell(s.Workers[0].Down, "demo",
		fmt.Sprintf("kill -9 %d: the worker is gone, in the middle of step %d", s.Workers[0].PID, workerDies))
	child.Pause(ctx, downtime)
	second, err := s.startWorker(ctx, 1, dir, env)
	if err != nil {
		return err
	}
	defer func() { second.Kill() }()
	s.tell(now(), "caller", "comes back, and waits again")
	joined := make(chan error, 1)
	go func() {
		run, deferred, err := c.Join(ctx, first.RunID, limit)
		if err == nil && deferred {
			err = errors.New("the run did not end")
		}
		s.Run = run
		joined <- err
	}()
	if err := s.until(ctx, 1, second, reportRecorded, len(steps)); err != nil {
		return err
	}
	if err := <-joined; err != nil {
		return err
	}
	s.tell(now(), "caller", "has the result: "+string(s.Run.Result))
	s.Servers[1].Down, s.Workers[1].Down = now(), now()
	return s.collect(ctx, c, dir)
}

// collect reads the log, the invariants and the effects at the end.
func (s *observation) collect(ctx context.Context, c *client.Client, dir string) error {
	for e, err := range c.Events(ctx, s.Run.RunID, 0) {
		if err != nil {
			return err
		}
		s.Events = append(s.Events, e)
	}
	check, err := c.Invariants(ctx)
	if err != nil {
		return err
	}
	s.Checked, s.Broken = check.Checked, len(check.Violations)
	text, err := os.ReadFile(filepath.Join(dir, "effects.txt"))
	s.Effects = make(map[string]int)
	for line := range strings.Lines(string(text)) {
		s.Effects[strings.TrimSpace(line)]++
	}
	return err
}

// until reads and prints the reports of a worker, up to a certain one.
func (s *observation) until(ctx context.Context, worker int, p *child.Process, what string, step int) error {
	for {
		n, err := next(ctx, p)
		if err != nil {
			return err
		}
		switch n.What {
		case reportBegan:
			s.Began[worker] = append(s.Began[worker], stepStart{n.Step, n.At})
		case reportRecorded:
			s.Ended[n.Step] = n.At
			if s.Servers[0].Down == 0 {
				s.Acked = append(s.Acked, n.Step)
			}
			s.tell(n.At, "worker", fmt.Sprintf("step %d, %s: recorded", n.Step, steps[n.Step-1]))
		case reportTook:
			if worker > 0 {
				s.tell(n.At, "watchdog",
					"the lease has run out and nobody renewed it (rule W6): the run is queued again")
				s.tell(n.At, "worker",
					fmt.Sprintf("another one takes over, epoch %d: steps 1 to %d come from the journal", n.Epoch,
						n.Step))
			}
		}
		if n.What == what && n.Step == step {
			return nil
		}
	}
}

// verify returns an error for everything that did not go as promised.
func (s *observation) verify() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(s.Run.State == perdure.Completed, "the run ended %s", s.Run.State)
	check(s.Back.Attempt == 1, "the server's death cost an attempt")
	check(s.Run.Attempt == 2, "the run took %d attempts, not 2", s.Run.Attempt)
	check(s.Broken == 0, "%d rows of the store break an invariant", s.Broken)
	for i, name := range steps {
		want := 1
		if i+1 == workerDies {
			want = 2
		}
		check(s.recorded(i+1) == 1, "step %q is recorded %d times", name, s.recorded(i+1))
		check(s.Effects[name] == want, "step %q was executed %d times, not %d", name, s.Effects[name], want)
	}
	return errors.Join(errs...)
}

// recorded counts a step's lines in the log.
func (s *observation) recorded(step int) (n int) {
	for _, e := range s.Events {
		var data struct {
			Step int `json:"step"`
		}
		if e.Type == line && json.Unmarshal(e.Data, &data) == nil && data.Step == step {
			n++
		}
	}
	return n
}

// facts returns the observation for programs.
func (s *observation) facts() map[string]any {
	return map[string]any{
		"run_id": s.Run.RunID, "state": s.Run.State, "attempts": s.Run.Attempt, "epoch": s.Run.Epoch,
		"result": s.Run.Result,
		"killed": []any{
			map[string]any{"what": "server", "signal": "SIGKILL", "at": s.Servers[0].Down, "in_step": serverDies,
				"acknowledged_steps": s.Acked, "attempt_afterwards": s.Back.Attempt},
			map[string]any{"what": "worker", "signal": "SIGKILL", "at": s.Workers[0].Down, "in_step": workerDies},
		},
		"executions": s.Effects,
		"invariants": map[string]int{"checked": s.Checked, "broken_rows": s.Broken},
		"events":     s.Events,
		"took_ms":    s.Servers[1].Down.Sub(s.begin).Milliseconds(),
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

// freeAddress finds a port that stays free while the server is away. It is below the range from
// which the system assigns ports.
func freeAddress() (string, error) {
	var err error
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}

// startServer starts "perdure serve" and returns when it serves.
func (s *observation) startServer(ctx context.Context, n int, addr, data string) (*child.Process, error) {
	p, err := child.Start(ctx, "server", nil,
		append([]string{"serve", "--listen", addr, "--data", data, "--log-level", "error"}, policy...)...)
	if err != nil {
		return nil, err
	}
	if !p.Out.Scan() { // the server prints its address
		return nil, p.Gone(ctx)
	}
	s.Servers[n] = processLife{PID: p.Cmd.Process.Pid, Up: now()}
	what := "is up: process %d, a new SQLite file"
	if n > 0 {
		what = "is up again: process %d, the same file"
	}
	s.tell(s.Servers[n].Up, "server", fmt.Sprintf(what, p.Cmd.Process.Pid))
	return p, nil
}

// startWorker starts a worker and returns when it polls.
func (s *observation) startWorker(ctx context.Context, n int, dir string, env []string) (*child.Process, error) {
	dies := 0
	if n == 0 {
		dies = workerDies
	}
	p, err := child.Start(ctx, "worker", env, "demo-worker", fmt.Sprint("worker-", n+1), dir, fmt.Sprint(dies))
	if err != nil {
		return nil, err
	}
	up, err := next(ctx, p)
	if err != nil {
		return nil, err
	}
	s.Workers[n] = processLife{PID: p.Cmd.Process.Pid, Up: up.At}
	s.tell(up.At, "worker", fmt.Sprintf("is up: process %d, asks for work", p.Cmd.Process.Pid))
	return p, nil
}

// next returns the next report of a worker, or the reason why there is none.
func next(ctx context.Context, p *child.Process) (n report, err error) {
	if !p.Out.Scan() {
		return n, p.Gone(ctx)
	}
	return n, json.Unmarshal(p.Out.Bytes(), &n)
}
