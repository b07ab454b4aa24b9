package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

const demoAbout = `Starts a server with a store on disk, has it work on a run, kills it with SIGKILL in the middle and
starts it again. The run's caller stops waiting, the run goes on; it is taken over when its lease has
run out and finishes from its journal. Everything happens in a temporary folder that is removed.`

// demoLimit bounds the demo on a machine that is very busy.
const demoLimit = 60 * time.Second

// A story is what the demo has seen, and what is told of it.
type story struct {
	begin perdure.Instant // of the demo
	tell  func(at perdure.Instant, who, text string)

	Run      perdure.RunID
	Lives    [2]life
	Accepted perdure.Instant
	Recorded map[int]perdure.Instant // steps whose record was acknowledged
	AckedIn  [2][]int                // those steps, by life
	Began    [2][]mark               // steps that were begun, by life
	Found    *stock                  // what the second server found
	Left     *stock                  // what there was at the end
	Effects  map[string]int          // how often each step was executed
}

// A life of the server: from its start to its end.
type life struct {
	PID      int
	Up, Down perdure.Instant
}

type mark struct {
	Step int
	At   perdure.Instant
}

func demo(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("demo", demoAbout, stderr)
	asJSON := f.Bool("json", false, "print what happened as JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "perdure-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	p := painter{on: !*asJSON && colourful(stdout)}
	s := &story{begin: perdure.At(time.Now()), Recorded: make(map[int]perdure.Instant), tell: func(perdure.Instant, string, string) {}}
	if !*asJSON {
		s.tell = func(at perdure.Instant, who, text string) {
			fmt.Fprintf(stdout, "  %s  %s %s\n", p.dim(fmt.Sprintf("%5.2f s", at.Sub(s.begin).Seconds())), p.who(who), text)
		}
		fmt.Fprintf(stdout, "\n%s\n\n  An agent is asked for %d steps. Its caller has %s of patience, and in step %d the\n  server is killed.\n\n",
			p.bold("Timeouts stop waiting, not working"), len(demoSteps), seconds(demoPatient), demoFatal)
	}
	if err := s.play(ctx, dir); err != nil {
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return fmt.Errorf("it was not done after %s: %w", demoLimit, err)
		case ctx.Err() != nil:
			return errors.New("stopped before its end")
		}
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(s.facts())
	} else {
		fmt.Fprintf(stdout, "\n%s\n%s", s.picture(p), s.verdict(p))
	}
	return errors.Join(err, s.verify())
}

// play lets it happen.
func (s *story) play(ctx context.Context, dir string) error {
	first, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	defer first.end()
	s.Lives[0].PID = first.pid()
	for s.Lives[0].Down == 0 {
		n, err := first.next(ctx)
		if err != nil {
			return err
		}
		s.hear(0, n)
		if n.What == newsBegan && n.Step == demoFatal {
			pause(ctx, demoStep)
			s.Lives[0].Down = perdure.At(time.Now())
			if err := first.kill(); err != nil {
				return err
			}
			s.tell(s.Lives[0].Down, "demo", fmt.Sprintf("kill -9 %d, in the middle of step %d", first.pid(), demoFatal))
		}
	}
	pause(ctx, demoAway)

	second, err := startServer(ctx, dir)
	if err != nil {
		return err
	}
	defer second.end()
	s.Lives[1].PID = second.pid()
	for s.Left == nil {
		n, err := second.next(ctx)
		if err != nil {
			return err
		}
		s.hear(1, n)
	}
	if err := second.end(); err != nil {
		return fmt.Errorf("the second server did not end well: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "effects.txt"))
	s.Effects = make(map[string]int)
	for line := range strings.Lines(string(text)) {
		s.Effects[strings.TrimSpace(line)]++
	}
	return err
}

// hear takes in, and tells, what a server said.
func (s *story) hear(life int, n news) {
	switch n.What {
	case newsUp:
		s.Lives[life].Up = n.At
		what := fmt.Sprintf("is up: process %d, a new SQLite file", s.Lives[life].PID)
		if life > 0 {
			what = fmt.Sprintf("is up again: process %d, the same file", s.Lives[life].PID)
		}
		s.tell(n.At, "server", what)
	case newsAccepted:
		s.Run, s.Accepted = n.RunID, n.At
		s.tell(n.At, "caller", "submits a run, and waits "+seconds(demoPatient)+" at most")
		s.tell(n.At, "server", "accepted, and on disk: "+string(n.RunID))
	case newsBegan:
		s.Began[life] = append(s.Began[life], mark{n.Step, n.At})
		if life == 0 && n.Step == demoFatal {
			s.tell(n.At, "worker", fmt.Sprintf("step %d, %s …", n.Step, demoSteps[n.Step-1]))
		}
	case newsRecorded:
		s.Recorded[n.Step] = n.At
		s.AckedIn[life] = append(s.AckedIn[life], n.Step)
		s.tell(n.At, "worker", fmt.Sprintf("step %d, %s: recorded", n.Step, demoSteps[n.Step-1]))
	case newsTook:
		if life > 0 {
			s.tell(n.At, "worker", fmt.Sprintf("takes over, epoch %d: steps 1 to %d come from the journal", n.Epoch, n.Step))
		}
	case newsFound:
		s.Found = n.Stock
		s.tell(n.At, "store", fmt.Sprintf("has the run, %d recorded steps and %d lines of log", len(n.Stock.Steps), len(n.Stock.Lines)))
	case newsLine:
		s.hearLine(n)
	case newsEnd:
		s.Left = n.Stock
		s.Lives[life].Down = n.At
	}
}

func (s *story) hearLine(n news) {
	switch n.Line.Type {
	case perdure.LineDeferred:
		s.tell(n.Line.At, "caller", "stops waiting: the run is deferred, the work goes on")
	case perdure.LineReattached:
		s.tell(n.Line.At, "caller", "is back, and waits again")
	case perdure.LineReclaimed:
		s.tell(n.Line.At, "watchdog", "the lease has run out and nobody renewed it (rule W6)")
	case perdure.LineRetrying:
		s.tell(n.Line.At, "watchdog", fmt.Sprintf("queues the run again: attempt %d", n.Line.Attempt))
	case perdure.LineCompleted:
		s.tell(n.Line.At, "caller", "has the result: the run is completed")
	}
}

// verify says what did not go as promised.
func (s *story) verify() error {
	var errs []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	wrong(s.Left.State == perdure.Completed, "the run ended %s", s.Left.State)
	wrong(s.Left.Attempt == 2, "the run took %d attempts, not 2", s.Left.Attempt)
	wrong(s.Left.Broken == 0, "%d rows of the store break an invariant", s.Left.Broken)
	for _, step := range s.AckedIn[0] {
		name := demoSteps[step-1]
		wrong(slices.Contains(s.Found.Steps, name), "step %q was acknowledged and is gone", name)
		wrong(s.Effects[name] == 1, "step %q was recorded and executed %d times", name, s.Effects[name])
	}
	for _, name := range demoSteps {
		wrong(slices.Contains(s.Left.Steps, name), "step %q is not in the journal", name)
	}
	return errors.Join(errs...)
}

// facts is the demo for programs.
func (s *story) facts() map[string]any {
	acked := []string{}
	for _, step := range s.AckedIn[0] {
		acked = append(acked, demoSteps[step-1])
	}
	return map[string]any{
		"run_id": s.Run, "state": s.Left.State, "attempts": s.Left.Attempt, "epoch": s.Left.Epoch, "result": s.Left.Result,
		"acknowledged_before_kill": map[string]any{"run_id": s.Run, "steps": acked},
		"killed":                   map[string]any{"at": s.Lives[0].Down, "signal": "SIGKILL", "in_step": demoSteps[demoFatal-1]},
		"found_after_restart":      map[string]any{"state": s.Found.State, "steps": s.Found.Steps, "lines": len(s.Found.Lines)},
		"executions":               s.Effects,
		"invariants":               map[string]int{"checked": len(store.Invariants), "broken_rows": s.Left.Broken},
		"events":                   s.Left.Lines,
		"took_ms":                  s.Lives[1].Down.Sub(s.begin).Milliseconds(),
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A process is a running server.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  *bufio.Scanner
	done  bool
	grief strings.Builder
}

// startServer starts this program once more, as the server.
func startServer(ctx context.Context, dir string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, "demo-server", dir)}
	p.cmd.Stderr = &p.grief
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.said = bufio.NewScanner(out)
	p.said.Buffer(nil, 1<<20)
	return p, p.cmd.Start()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// next gives the next news, or says why there is none.
func (p *process) next(ctx context.Context) (n news, err error) {
	if !p.said.Scan() {
		err = errors.Join(p.end(), ctx.Err())
		return n, fmt.Errorf("the server went away: %w %s", err, strings.TrimSpace(p.grief.String()))
	}
	return n, json.Unmarshal(p.said.Bytes(), &n)
}

// kill is kill -9.
func (p *process) kill() error {
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	p.done = true
	var gone *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &gone) {
		return fmt.Errorf("the server was killed and ended with: %v", err)
	}
	return nil
}

// end lets the server end by itself. It may be called again.
func (p *process) end() error {
	if p.done {
		return nil
	}
	p.done = true
	p.stdin.Close()
	return p.cmd.Wait()
}
