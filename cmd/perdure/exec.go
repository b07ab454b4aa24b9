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
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/adaptor"
	"github.com/perdure/perdure/internal/jobdir"
	"github.com/perdure/perdure/internal/runner"
	"github.com/perdure/perdure/internal/settings"
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
	detach    bool
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
	ctx, stop := detachable(ctx)
	defer stop()
	// The runner starts while the run is submitted.
	starting := startRunner()
	c, job, r, err := x.submit(ctx)
	p := <-starting
	if err != nil {
		p.close()
		return err
	}
	if p.err != nil {
		_, _ = c.Cancel(context.WithoutCancel(ctx), r.RunID, "its runner could not be started", 0)
		return p.err
	}
	defer p.Close()
	job.RunID = r.RunID
	if err := p.Give(job); err != nil {
		_, _ = c.Cancel(context.WithoutCancel(ctx), r.RunID, "its runner could not be started", 0)
		return err
	}
	r.Input = x.sub.Input // the answer is without it
	x.conn.attached(r)
	return x.stay(ctx, c, p.Process, r, stdout, stderr)
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

// submit submits the run, and makes the runner's job.
func (x *execFlags) submit(ctx context.Context) (*client.Client, *runner.Job, *api.Run, error) {
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
			"server ends: Ctrl-C and Ctrl-Z detach. Its standard input is empty. The exit code is the command's, and\n"+
			"128 and the signal's number if a signal has ended it; 3 if the run goes on without us.\n\n"+
			"  perdure exec -- make test\n"+
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
	f.TextVar(&x.sub.Timeout, "timeout", perdure.Duration(0), "when it ends at the latest")
	f.DurationVar(&x.grace, "grace", 10*time.Second, "how long the command has to end when it is asked to")
	f.Int64Var(&x.maxOutput, "max-output", 1<<30, "`bytes` of each output stream that the disk may have")
	f.DurationVar(&x.wait, "wait", 24*time.Hour, "stay with it for so long")
	f.BoolVar(&x.detach, "detach", false, "don't stay: print its id")
	f.BoolVar(&x.detach, "d", false, "the same as --detach")
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
	x.spec.Session = p.SessionID
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
		Env: env, Grace: x.grace, SentinelEvery: every, MaxOutput: x.maxOutput}
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

// runnerSettings returns the settings of runners: the server, the workspace, and the time between two
// sentinels.
func runnerSettings(conn *connFlags, workspace string) (s runner.Server, path string, every time.Duration, err error) {
	if t := conn.tenantName(); t != "" {
		return s, "", 0, fmt.Errorf("runners work for the tenant of their key: --tenant and PERDURE_TENANT are not "+
			"for them (%s)", visible(t))
	}
	key, err := conn.findKey()
	if err != nil {
		return s, "", 0, err
	}
	s = runner.Server{URL: conn.address(), Key: key, CA: first(*conn.ca, os.Getenv("PERDURE_CA"))}
	if s.CA != "" {
		if s.CA, err = filepath.Abs(s.CA); err != nil {
			return s, "", 0, err
		}
	}
	if path = first(workspace, os.Getenv("PERDURE_WORKSPACE"), conn.ownWorkspace()); path == "" {
		if path, err = stateFolder(); err != nil {
			return s, "", 0, err
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return s, "", 0, err
	}
	if text := os.Getenv("PERDURE_SENTINEL_EVERY"); text != "" {
		if every, err = time.ParseDuration(text); err != nil || every <= 0 {
			return s, "", 0, fmt.Errorf("PERDURE_SENTINEL_EVERY: %q is no time such as 30s", text)
		}
	}
	return s, path, every, nil
}

// ownWorkspace returns the workspace of perdure dev, if its data folder is the one that the key is
// from. The server then watches the processes.
func (c *connFlags) ownWorkspace() string {
	if first(*c.key, os.Getenv("PERDURE_KEY")) != "" {
		return ""
	}
	path := filepath.Join(first(*c.data, os.Getenv("PERDURE_DATA"), settings.DefaultData), "workspace")
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return ""
	}
	return path
}

// Variables that a command gets in any case, and those of Perdure that are no secrets.
var (
	alwaysKept = []string{"PATH", "HOME"}
	harmless   = []string{"PERDURE_URL", "PERDURE_CA", "PERDURE_WORKSPACE", "PERDURE_ENGINES"}
)

// environ returns the environment of a command: all but the keys of Perdure, or the variables that are
// kept.
func environ(keep []string) (out []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case slices.Contains(keep, name), slices.Contains(alwaysKept, name):
		case len(keep) > 0:
			continue
		case strings.HasPrefix(name, "PERDURE_") && !slices.Contains(harmless, name):
			continue
		}
		out = append(out, v)
	}
	return out
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

// Times of exec.
const (
	// startPatience is how long exec -d waits for the start of the command.
	startPatience = 5 * time.Second
	// endPatience is how long exec waits, after the command's end, until the server takes the next part of
	// the output, or the end.
	endPatience = 3 * time.Second
)

// stay shows the output of the command until its end.
func (x *execFlags) stay(ctx context.Context, c *client.Client, p *runner.Process, r *api.Run, stdout,
	stderr io.Writer) error {
	reports := make(chan runner.Report)
	go func() {
		defer close(reports)
		for {
			report, err := p.Next()
			if err != nil {
				return
			}
			reports <- report
		}
	}()
	// Reports that nobody takes must not hold the goroutine.
	defer func() {
		p.Close()
		for range reports {
		}
	}()
	dir, err := jobdir.Of(x.workspaceOf(), string(r.RunID))
	if err != nil {
		return err
	}
	t := &tail{dir: dir, printer: newOutputPrinter(c, r.RunID, shown{}, stdout, stderr)}
	defer t.close()
	wait := x.wait
	if x.detach {
		wait = min(wait, startPatience)
	}
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	pause := tailOften
	for {
		select {
		case <-limit.Done():
			if x.detach { // it waits, for a limit of its tenant
				_, err := fmt.Fprintln(stdout, r.RunID)
				return err
			}
			return x.leave(ctx, c, r, t, stdout, stderr)
		case <-time.After(pause):
		case report, ok := <-reports:
			switch {
			case !ok && x.detach:
				return errors.New("the runner has ended before it has started the command")
			case !ok:
				fmt.Fprintln(stderr, "[perdure: the runner of this command is gone]")
				return stayWithProcess(limit, x.conn, c, r, t.shown(), x.wait, stdout, stderr)
			case report.Event == runner.Started && x.detach:
				_, err := fmt.Fprintln(stdout, r.RunID)
				return err
			case report.Event == runner.Failed && report.Code != "":
				fmt.Fprintf(stderr, "perdure exec: %s: %s\n", literal(string(report.Code)), block(report.Message))
				x.awaitSent(ctx, reports)
				x.conn.ended(r.RunID)
				return exitWith(max(report.ExitCode, exitFail))
			case report.Event == runner.Failed: // it has no lease
				_, _ = c.Cancel(context.WithoutCancel(ctx), r.RunID, "its runner did not get it", 0)
				x.conn.ended(r.RunID)
				return errors.New(report.Message)
			case report.Event == runner.Lost:
				return x.lost(ctx, c, r, t, stderr)
			case report.Event == runner.Ended:
				if err := t.copy(); err != nil {
					return err
				}
				if !x.awaitSent(ctx, reports) {
					fmt.Fprintf(stderr, "[perdure: the server does not know of the end yet; the runner goes on "+
						"telling it: %s]\n",
						r.RunID)
				}
				x.conn.ended(r.RunID)
				return exitWith(report.ExitCode)
			}
		}
		if x.detach {
			continue
		}
		before := t.at
		if err := t.copy(); err != nil {
			return err
		}
		if pause = min(pause*2, tailSeldom); t.at != before {
			pause = tailOften
		}
	}
}

// workspaceOf returns the folder of the job's files.
func (x *execFlags) workspaceOf() string {
	_, path, _, _ := runnerSettings(x.conn, x.workspace) // it was checked before
	return path
}

// awaitSent waits until the server knows of the end, as long as there is progress.
func (x *execFlags) awaitSent(ctx context.Context, reports <-chan runner.Report) bool {
	for {
		select {
		case report, ok := <-reports:
			if !ok || report.Event == runner.Sent || report.Event == runner.Lost {
				return ok
			}
		case <-time.After(endPatience):
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// leave detaches.
func (x *execFlags) leave(ctx context.Context, c *client.Client, r *api.Run, t *tail, stdout, stderr io.Writer) error {
	x.conn.setShown(r.RunID, t.shown())
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	deferRun(last, c, r.RunID)
	return detached(r.RunID, stdout, stderr, false)
}

// lost shows the end of a run that the server has ended: its time was over, or it was cancelled.
func (x *execFlags) lost(ctx context.Context, c *client.Client, r *api.Run, t *tail, stderr io.Writer) error {
	if err := t.copy(); err != nil {
		return err
	}
	r, err := c.Get(ctx, r.RunID)
	if err != nil {
		return err
	}
	x.conn.ended(r.RunID)
	code, known := exitCode(ctx, c, r)
	if !known && r.Error != nil {
		fmt.Fprintf(stderr, "%s: %s %s\n", r.State, literal(string(r.Error.Code)), block(r.Error.Message))
	}
	return code
}

// Times between two looks at the files of a job.
const (
	tailOften  = 4 * time.Millisecond
	tailSeldom = 100 * time.Millisecond
)

// A tail shows the output of a command from its files, as it is written.
type tail struct {
	dir     jobdir.Dir
	printer *outputPrinter
	files   map[string]*os.File
	at      jobdir.Offsets
}

// shown returns what was shown.
func (t *tail) shown() shown { return shown{Offsets: t.at} }

// copy writes the output that was added since the last call.
func (t *tail) copy() error {
	if t.files == nil {
		files := make(map[string]*os.File)
		for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
			f, err := t.dir.OpenWritten(stream)
			if err != nil {
				for _, f := range files {
					f.Close()
				}
				return nil // not there yet
			}
			files[stream] = f
		}
		t.files = files
	}
	b := make([]byte, 64<<10)
	for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
		to, f, at := t.printer.stdout, t.files[stream], t.at.Of(stream)
		if stream == jobdir.Stderr {
			to = t.printer.stderr
		}
		for {
			n, err := f.ReadAt(b, *at)
			if n == 0 {
				if !errors.Is(err, io.EOF) {
					return err
				}
				break
			}
			if skip := hole(f, *at, b[:n]); skip > 0 {
				t.printer.note("%d bytes of %s are missing: they are no longer on the disk", skip, stream)
				*at += skip
				continue
			}
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
			*at += int64(n)
		}
	}
	return nil
}

// hole returns the size of the hole at an offset: bytes that the runner has given back to the disk.
func hole(f *os.File, at int64, b []byte) int64 {
	if b[0] != 0 {
		return 0
	}
	data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if err != nil || data <= at {
		return 0
	}
	return data - at
}

func (t *tail) close() {
	for _, f := range t.files {
		f.Close()
	}
}

// processRunner is the process that supervises a command.
func processRunner(context.Context, []string, io.Writer, io.Writer) error { return runner.Main() }
