package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/adaptor"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/process/runner"
)

// execFlags are the flags of perdure exec.
type execFlags struct {
	conn      *connFlags
	sub       perdure.Submission
	spec      runner.Spec
	name      string
	engines   string
	workspace string
	from      string
	again     string
	keep      textList
	wait      time.Duration
	grace     time.Duration
	maxOutput int64
	giveUp    time.Duration
	detach    bool
	json      bool
	// stdin passes on the standard input.
	stdin bool

	// space is the workspace, and watched tells that a server looks after it.
	space   string
	watched bool
	// input is what the command reads, and staged where it is until the run exists.
	input  []byte
	staged *jobdir.Staged
}

// A textList is a flag that can be given several times.
type textList []string

func (l *textList) String() string { return strings.Join(*l, ",") }

// Set adds a text, or several with commas.
func (l *textList) Set(text string) error {
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			return errors.New("is empty")
		}
		*l = append(*l, one)
	}
	return nil
}

func execCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	x, err := parseExec(args, stderr)
	if err != nil {
		return err
	}
	s := newExecScreen(x.json, x.detach, stdout, stderr)
	ctx, stop := detachable(ctx)
	defer stop()
	if x.input, err = x.readInput(ctx, s); err != nil {
		return err
	}
	// The runner starts while the run is submitted.
	starting := startRunner()
	c, job, r, err := x.submit(ctx, s)
	p := <-starting
	if err != nil {
		p.close()
		return err
	}
	err = s.started(execStart{RunID: r.RunID, Workspace: x.space, Watched: x.watched})
	if err == nil {
		err = x.handOver(p, job, r)
	}
	if err != nil {
		p.close()
		_, _ = c.Cancel(context.WithoutCancel(ctx), r.RunID, "its runner could not be started", 0)
		return s.ended(ctx, c, r.RunID, err)
	}
	defer p.Close()
	r.Input = x.sub.Input // the answer is without it
	x.conn.attached(r)
	if err = x.stay(ctx, c, p.Process, r, s); x.detach && err == nil {
		return nil
	}
	return s.ended(ctx, c, r.RunID, err)
}

// handOver gives the runner its job. The command's standard input is in the folder of the job by then.
func (x *execFlags) handOver(p startedRunner, job *runner.Job, r *api.Run) error {
	if x.staged != nil {
		if err := x.staged.MoveTo(string(r.RunID)); err != nil {
			x.staged.Remove()
			return err
		}
	}
	if p.err != nil {
		return p.err
	}
	job.RunID = r.RunID
	return p.Give(job)
}

// A startedRunner is a process-runner, or the reason why there is none.
type startedRunner struct {
	*runner.Process
	err error
}

// close lets a runner go that gets no job.
func (s startedRunner) close() {
	if s.Process != nil {
		s.Close()
		s.Wait()
	}
}

// startRunner starts a process-runner.
func startRunner() <-chan startedRunner {
	out := make(chan startedRunner, 1)
	go func() {
		p, err := runner.Start()
		out <- startedRunner{p, err}
	}()
	return out
}

// submit submits the run, and makes the runner's job. The command's standard input is on the disk before.
func (x *execFlags) submit(ctx context.Context, s *execScreen) (
	_ *client.Client, _ *runner.Job, _ *api.Run, err error,
) {
	c, err := x.conn.connect(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := x.continueSession(ctx, c); err != nil {
		return nil, nil, nil, err
	}
	if err := x.startAgain(ctx, c); err != nil {
		return nil, nil, nil, err
	}
	job, err := x.job()
	if err != nil {
		return nil, nil, nil, err
	}
	x.watched = s.watched(x.space)
	if len(x.input) > 0 {
		if x.staged, err = jobdir.StageStdin(x.space, x.input); err != nil {
			return nil, nil, nil, fmt.Errorf("keep the standard input: %w", err)
		}
		defer func() {
			if err != nil {
				x.staged.Remove()
			}
		}()
	}
	if x.again != "" {
		r, err := c.Retry(ctx, perdure.RunID(x.again), api.Retry{Local: true})
		return c, job, r, err
	}
	r, err := c.Start(ctx, x.sub)
	return c, job, r, err
}

// parseExec reads the command line.
func parseExec(args []string, stderr io.Writer) (*execFlags, error) {
	f := flags("exec [--] COMMAND…",
		"Runs a command as a durable run, and shows its output. The command goes on when this program, the shell "+
			"or the\n"+
			"server ends: Ctrl-C and Ctrl-Z detach. Its standard input is what comes from a pipe or a file, up to\n"+
			"16 MiB, and empty otherwise. The exit code is the command's, and 128 and the signal's number if a\n"+
			"signal has ended it. "+exitCodes+"\n\n"+
			"  perdure exec -- make test\n"+
			"  perdure exec -- ./import.sh < rows.csv\n"+
			"  perdure exec --engine claude-code -- claude -p PROMPT --output-format stream-json --verbose\n"+
			"  perdure exec -d --name nightly -- ./report.sh", stderr)
	x := &execFlags{conn: addConnFlags(f)}
	f.StringVar(&x.spec.Engine, "engine", "", "what the command's output means: the `name` of an engine, "+
		"such as claude-code (default: generic)")
	f.StringVar(&x.engines, "engines", "", "`folder` of engines of your own (default: PERDURE_ENGINES)")
	f.StringVar(&x.name, "name", "", "a `name` for lists and for %name")
	f.StringVar(&x.workspace, "workspace", "", "`folder` of the job's files (default: PERDURE_WORKSPACE, or that of "+
		"perdure dev, or perdure in the folder for state)")
	f.StringVar(&x.from, "continue", "", "continue the agent's session of this `run`")
	f.StringVar(&x.again, "again", "", "start the command of this ended `run` of perdure exec once more, in its folder")
	f.Var(&x.keep, "env", "pass on only this `variable`, PATH and HOME; can be given several times "+
		"(default: all but the keys of Perdure)")
	f.BoolVar(&x.spec.PTY, "pty", false, "give the command a terminal")
	f.BoolVar(&x.stdin, "stdin", true, "pass on the standard input, if it is a pipe or a file, up to 16 MiB of it")
	f.TextVar(&x.sub.Timeout, "timeout", perdure.Duration(0), "when it ends at the latest")
	f.DurationVar(&x.grace, "grace", 10*time.Second, "how long the command has to end when it is asked to")
	f.Int64Var(&x.maxOutput, "max-output", 1<<30, "`bytes` of each output stream that the disk may have")
	f.DurationVar(&x.wait, "wait", 24*time.Hour, "stay with it for so long")
	f.BoolVar(&x.detach, "detach", false, "don't stay: print its id")
	f.BoolVar(&x.detach, "d", false, "the same as --detach")
	f.BoolVar(&x.json, "json", false, "print JSON, a line for each piece of output and one for the end")
	giveUp := addGiveUpFlag(f)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage
	}
	x.spec.Command = f.Args()
	complain := func(format string, args ...any) (*execFlags, error) {
		fmt.Fprintf(stderr, "perdure exec: "+format+"\n", args...)
		return nil, errUsage
	}
	switch {
	case x.again != "" && (len(x.spec.Command) > 0 || f.given("engine", "name", "continue", "pty", "timeout")):
		return complain("--again takes command, engine, name and timeout from the run")
	case x.again != "":
	case len(x.spec.Command) == 0:
		return complain("COMMAND is missing\n\n%s", strings.TrimSpace(f.line()))
	case x.sub.Timeout == 0 && f.given("timeout"):
		return complain("--timeout has to be positive; leave it out for the default")
	case x.grace <= 0 || x.wait <= 0 || x.maxOutput <= 0:
		return complain("--grace, --wait and --max-output have to be positive")
	}
	if x.again == "" {
		if err := x.spec.Validate(); err != nil {
			return complain("%s", visible(err.Error()))
		}
	}
	var err error
	if x.giveUp, err = giveUp(); err != nil {
		return complain("%s", visible(err.Error()))
	}
	for _, run := range []*string{&x.from, &x.again} {
		if *run != "" {
			id, err := x.conn.runID(*run)
			if err != nil {
				return nil, err
			}
			*run = string(id)
		}
	}
	return x, nil
}

// startAgain finds the command of the run that is started once more.
func (x *execFlags) startAgain(ctx context.Context, c *client.Client) error {
	if x.again == "" {
		return nil
	}
	r, err := c.Get(ctx, perdure.RunID(x.again))
	switch {
	case err != nil:
		return err
	case !isCommand(r):
		return fmt.Errorf("run %s is no command", r.RunID)
	case r.Queue != perdure.LocalQueue:
		return fmt.Errorf("run %s is a pool's: perdure retry %s", r.RunID, r.RunID)
	case !r.State.Terminal():
		return fmt.Errorf("run %s is %s: wait for it, or end it first (perdure kill %s)", r.RunID, r.State, r.RunID)
	}
	if err := runner.DecodeSpec(r.Input, &x.spec); err != nil {
		return err
	}
	if x.spec.Dir == "" {
		return nil
	}
	if info, err := os.Stat(x.spec.Dir); err != nil || !info.IsDir() {
		return fmt.Errorf("the folder of run %s, %s, is not on this machine: start it again on its host", r.RunID,
			visible(x.spec.Dir))
	}
	return nil
}

// continueSession finds the session of the run that is continued.
func (x *execFlags) continueSession(ctx context.Context, c *client.Client) error {
	if x.from == "" {
		return nil
	}
	v, err := c.View(ctx, perdure.RunID(x.from), jobdir.ProcessView)
	if err != nil && client.CodeOf(err) != perdure.CodeNotFound {
		return err
	}
	var p jobdir.Process
	if err != nil || json.Unmarshal(v.Value, &p) != nil || p.SessionID == "" {
		return fmt.Errorf("run %s has no session that can be continued", x.from)
	}
	x.spec.Session, x.spec.SessionTokens = p.SessionID, p.Used()
	if x.spec.Engine == "" {
		x.spec.Engine = p.Engine
	}
	return nil
}

// job makes the runner's job and the submission.
func (x *execFlags) job() (*runner.Job, error) {
	engines := first(x.engines, os.Getenv("PERDURE_ENGINES"))
	if engines != "" {
		engines, _ = filepath.Abs(engines)
	}
	a, err := adaptor.Load(x.spec.Engine, engines)
	if err != nil {
		return nil, err
	}
	if x.spec.Session != "" {
		if _, err := a.Continue(x.spec.Command, x.spec.Session); err != nil {
			return nil, err
		}
	}
	server, workspace, every, err := runnerSettings(x.conn, x.workspace)
	if err != nil {
		return nil, err
	}
	if x.space = workspace; x.again != "" {
		if x.input, err = x.keptInput(workspace); err != nil {
			return nil, err
		}
	}
	x.spec.StdinBytes = int64(len(x.input))
	if x.spec.Dir == "" { // it is in the input, so that the command can be started again there
		if x.spec.Dir, err = os.Getwd(); err != nil {
			return nil, err
		}
	}
	env := environ(x.keep)
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); !utf8.ValidString(v) {
			return nil, fmt.Errorf("the variable %q is no UTF-8, and would be changed: unset it, or pass on others "+
				"with --env", name)
		}
	}
	if err := x.spec.Validate(); err != nil {
		return nil, err
	}
	job := &runner.Job{Server: server, Workspace: workspace, Spec: x.spec, Dir: x.spec.Dir, Engines: engines,
		Env: env, Grace: x.grace, SentinelEvery: every, MaxOutput: x.maxOutput, GiveUpAfter: x.giveUp}
	if x.spec.PTY {
		job.Rows, job.Cols = terminalSize()
	}
	x.sub.Kind, x.sub.Class, x.sub.Queue, x.sub.MaxAttempts = runner.Kind, perdure.Process, runner.LocalQueue, 1
	if x.sub.Input, err = perdure.Marshal(x.spec); err != nil {
		return nil, err
	}
	x.sub.Metadata = make(map[string]string)
	if x.name != "" {
		x.sub.Metadata["name"] = x.name
	}
	if x.from != "" {
		x.sub.Metadata["continues"] = x.from
	}
	return job, nil
}

// terminalSize returns the size of this program's terminal, or a usual one.
func terminalSize() (rows, cols uint16) {
	for fd := range 3 {
		if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil && ws.Row > 0 && ws.Col > 0 {
			return ws.Row, ws.Col
		}
	}
	return 24, 80
}

// processRunner is the process that supervises a command.
func processRunner(context.Context, []string, io.Writer, io.Writer) error { return runner.Main() }
