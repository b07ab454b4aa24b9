package main

import (
	"bytes"
	"cmp"
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
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/worker"
)

const buildsUsage = `Usage:

  perdure builds check -- ./worker [args]               replay the live runs of its kinds, and say which it would hold
  perdure builds check --sample 500 -- ./worker         replay so many of each kind
  perdure builds check --file run.json -- ./worker      replay what perdure journal RUN --export run.json has written

It takes --json, and a key with runs:read. Nothing is executed and nothing is written; see docs/releases.md.
Exit codes: 0 all runs can be continued, 1 some would be held, 69 the check was not made.
`

// exitNoCheck is the exit code of a check that was not made. It differs from that of a check that found
// something, so that a pipeline can tell them apart.
const exitNoCheck = 69

// buildsCommand implements "perdure builds".
func buildsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &buildsCall{subcommandCall: subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	if n := slices.Index(args, "--"); n >= 0 {
		h.args, h.command = args[:n], args[n+1:]
	}
	return h.dispatch("builds", buildsUsage, "", []subcommand{
		{"check [COMMAND…]", "Starts a worker's program, which replays live runs instead of working, and says " +
			"which of them it would hold.\n\n  perdure builds check -- ./worker\n\n" +
			"Exit codes: 0 all runs can be continued, 1 some would be held, 69 the check was not made.", h.check},
	})
}

// A buildsCall is one call of "perdure builds".
type buildsCall struct {
	subcommandCall
	// command is the worker's program with its arguments.
	command []string
}

func (h *buildsCall) check() error {
	var ask session.CheckRequest
	f := h.flags
	f.IntVar(&ask.Sample, "sample", 0, "replay so many runs of each kind, chosen at random; 0 is all")
	f.IntVar(&ask.AtOnce, "at-once", 0, "replay so many at the same time (default: four for each processor)")
	addFile := func(name string) error {
		full, err := filepath.Abs(name)
		ask.Files = append(ask.Files, full)
		return err
	}
	f.Func("file", "replay an exported `file` in place of live runs; may be given several times", addFile)
	args, err := parseMixed(f, h.args)
	if err != nil {
		return err
	}
	if h.command = append(args, h.command...); len(h.command) == 0 {
		fmt.Fprintln(h.stderr, "perdure builds check: say which program to check: perdure builds check -- ./worker")
		return errUsage
	}
	if ask.Sample < 0 || ask.AtOnce < 0 {
		fmt.Fprintln(h.stderr, "perdure builds check: --sample and --at-once take a number from 1 on")
		return errUsage
	}
	report, err := h.made(&ask)
	if err != nil {
		fmt.Fprintf(h.stderr, "perdure builds check: %s\n", block(err.Error()))
		return exitError(exitNoCheck)
	}
	if err := h.print(report, func(w io.Writer) { printCheck(w, report) }); err != nil {
		return err
	}
	switch {
	case report.Held+report.Failed > 0:
		return exitError(exitFail)
	case report.Unknown > 0:
		return exitError(exitNoCheck)
	}
	return nil
}

// made starts the worker's program and returns the report of its check.
func (h *buildsCall) made(ask *session.CheckRequest) (*worker.CheckReport, error) {
	if len(ask.Files) == 0 {
		c, err := h.conn.connect(h.ctx)
		if err != nil {
			return nil, err
		}
		c.Close()
		if ask.Key, err = h.conn.findKey(); err != nil {
			return nil, err
		}
		ask.URL, ask.Tenant = h.conn.address(), perdure.TenantID(h.conn.tenantName())
		if ca := first(*h.conn.ca, os.Getenv("PERDURE_CA")); ca != "" {
			if ask.CA, err = filepath.Abs(ca); err != nil {
				return nil, err
			}
		}
	}
	dir, err := os.MkdirTemp("", "perdure-check-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ask.Report = filepath.Join(dir, "report")
	if err := os.WriteFile(ask.Report, nil, 0o600); err != nil {
		return nil, err
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(h.command[0], h.command[1:]...)
	cmd.Env = append(os.Environ(), session.CheckVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = h.stderr, h.stderr
	// The program may start others, as go run does. They are one group, which ends as a whole.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = checkSettle
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	how := awaitCheck(h.ctx, ask.Report, ended)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // nothing is left of it, as a rule
	if h.ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	lines, err := readCheck(ask.Report)
	if err != nil {
		return nil, err
	}
	return mergeChecks(lines, how)
}

// checkPoll is how often the file of results is looked at.
const checkPoll = 100 * time.Millisecond

// checkSettle is how long the program has to end when all its workers have made their checks. It may have
// a server of its own beside them.
var checkSettle = 3 * time.Second

// awaitCheck waits until the program has ended, or until all its workers have made their checks and it
// goes on nevertheless. It returns how the program ended.
func awaitCheck(ctx context.Context, file string, ended <-chan error) error {
	tick := time.NewTicker(checkPoll)
	defer tick.Stop()
	var size int64
	var done time.Time
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if at, err := os.Stat(file); err == nil && at.Size() != size {
			size, done = at.Size(), time.Time{}
			if lines, err := readCheck(file); err == nil && allEnded(lines) {
				done = time.Now()
			}
		}
		if !done.IsZero() && time.Since(done) > checkSettle {
			return nil
		}
	}
}

// readCheck reads the lines of the file of results. A line that is being written is left out.
func readCheck(file string) (lines []session.CheckLine, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return lines, nil
		}
		var l session.CheckLine
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("the program has written something else than a check: %w", err)
		}
		lines, text = append(lines, l), rest
	}
}

// allEnded tells whether every worker that has begun a check has ended it.
func allEnded(lines []session.CheckLine) bool {
	open := 0
	for _, l := range lines {
		if l.Began {
			open++
		}
		if l.Ended {
			open--
		}
	}
	return len(lines) > 0 && open == 0
}

// mergeChecks returns the reports of the program's workers as one. how is how the program ended.
func mergeChecks(lines []session.CheckLine, how error) (*worker.CheckReport, error) {
	if len(lines) == 0 {
		ended := "exit status 0"
		if how != nil {
			ended = how.Error()
		}
		return nil, fmt.Errorf("the program has made no check (%s): it has to call Run of a worker of this SDK", ended)
	}
	var all worker.CheckReport
	for _, l := range lines {
		if l.Error != "" {
			return nil, errors.New(l.Error)
		}
		if !l.Ended {
			continue
		}
		var one worker.CheckReport
		if err := json.Unmarshal(l.Report, &one); err != nil {
			return nil, fmt.Errorf("read the report: %w", err)
		}
		all.Build = cmp.Or(all.Build, one.Build)
		all.Kinds = append(all.Kinds, one.Kinds...)
		all.Runs, all.Held = all.Runs+one.Runs, all.Held+one.Held
		all.Failed, all.Unknown = all.Failed+one.Failed, all.Unknown+one.Unknown
		all.Causes, all.MS = append(all.Causes, one.Causes...), max(all.MS, one.MS)
	}
	if !allEnded(lines) {
		return nil, fmt.Errorf("the program has ended before its check had (%v)", how)
	}
	if all.Causes == nil {
		all.Causes = []worker.CheckCause{}
	}
	return &all, nil
}

// printCheck prints a report for people: a table of the causes, and then each of them in full.
func printCheck(w io.Writer, r *worker.CheckReport) {
	took := time.Duration(r.MS) * time.Millisecond
	if r.OK() {
		fmt.Fprintf(w, "%d runs of %s replayed in %s: this build continues all of them.\n", r.Runs,
			visible(strings.Join(r.Kinds, ", ")), took)
		return
	}
	fmt.Fprintln(w, "RUNS\tVERDICT\tKIND\tAT\tCODE\tFOR EXAMPLE")
	for i := range r.Causes {
		c := &r.Causes[i]
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", c.Count, c.Verdict, visible(c.Kind), or(visible(c.Where)), c.Code,
			c.Runs[0])
	}
	for i := range r.Causes {
		c := &r.Causes[i]
		fmt.Fprintf(w, "\n%s\n", visible(first(c.Where, c.Kind)+": "+shortened(c.Message, maxCauseText)))
	}
	fmt.Fprintf(w, "\n%d runs replayed in %s: %d would be held, %d would fail, %d could not be checked.\n", r.Runs,
		took, r.Held, r.Failed, r.Unknown)
}

// maxCauseText bounds the text of a cause, which may have a stack in it, in characters.
const maxCauseText = 1000
