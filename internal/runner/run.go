package runner

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/adaptor"
	"github.com/perdure/perdure/internal/jobdir"
	"github.com/perdure/perdure/internal/timer"
)

// A flag is something that happens once, and can be waited for.
type flag struct {
	once sync.Once
	when chan struct{}
}

func newFlag() *flag { return &flag{when: make(chan struct{})} }

func (f *flag) set() { f.once.Do(func() { close(f.when) }) }

func (f *flag) is() bool {
	select {
	case <-f.when:
		return true
	default:
		return false
	}
}

// An outage tells the first of several failures in a row.
type outage struct{ away bool }

// note returns true for a failure after a success.
func (o *outage) note(err error) bool {
	began := err != nil && !o.away
	o.away = err != nil
	return began
}

// An execution is a leased run whose command is executed.
type execution struct {
	job     *Job
	spec    Spec
	link    link
	grant   *api.Grant
	lease   api.Lease
	dir     jobdir.Dir
	lock    *os.File
	lockID  string
	adaptor *adaptor.Adaptor
	log     *slog.Logger
	report  func(Report)
	command *command
	output  *output
	// terminal is that of a command that has one, and typescript the file that its output is copied to.
	terminal   *terminal
	typescript *os.File
	facts      facts
	away       outage

	// cancelled is set by a cancel request, terminated by a signal to this process, and lost when the run
	// is no longer this runner's.
	cancelled, terminated *flag
	lost                  context.CancelCauseFunc
	// ending is set when the end is about to be sent. A heartbeat that crosses it may find the run ended.
	ending *flag

	kickBeat, kickSentinel chan struct{}

	mu          sync.Mutex
	process     jobdir.Process
	viewChanged bool
}

// Bounds of this process.
const (
	maxJob      = 16 << 20
	memoryLimit = 10 << 20
)

// Main is the process-runner. It returns when its job is over.
func Main() error {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(memoryLimit)
	jobPipe, reports := os.NewFile(jobFD, "job"), os.NewFile(reportFD, "reports")
	keepFiles()
	var j Job
	dec := json.NewDecoder(io.LimitReader(jobPipe, maxJob))
	if err := dec.Decode(&j); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	j.fillIn()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
		syscall.SIGPIPE)
	if err := adoptOrphans(); err != nil {
		return err
	}
	encoder := json.NewEncoder(reports)
	report := func(r Report) { _ = encoder.Encode(r) } // the starter may be gone

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if j.RunID == "" {
		go func() {
			_, _ = io.Copy(io.Discard, jobPipe) // until the pool closes it
			cancel()
		}()
	}
	c, err := j.Server.connect()
	if err != nil {
		report(Report{Event: Failed, Message: err.Error()})
		return err
	}
	host, _ := os.Hostname()
	l := link{c: c, worker: workerName(host), log: slog.New(slog.DiscardHandler), denied: new(denial)}
	grant, err := l.lease(ctx, &j)
	if err != nil {
		report(Report{Event: Failed, Message: err.Error()})
		return err
	}
	return execute(&j, l, grant, report)
}

// workerName returns a name for this process, unlike that of any other.
func workerName(host string) string {
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, host)
	return "exec@" + host[:min(len(host), 60)] + "/" + rand.Text()[:10]
}

// A failure is a reason why the command can't be started.
type failure struct {
	code perdure.Code
	err  error
	// exit is the exit code that a shell has for it.
	exit  int
	retry bool
}

// execute executes a leased run.
func execute(j *Job, l link, g *api.Grant, report func(Report)) error {
	life, lose := context.WithCancelCause(context.Background())
	defer lose(nil)
	e := &execution{
		job: j, spec: j.Spec, link: l, grant: g, lease: api.Lease{RunID: g.RunID, Epoch: g.Epoch}, log: l.log,
		report: report, cancelled: newFlag(), terminated: newFlag(), ending: newFlag(), lost: lose,
		kickBeat: make(chan struct{}, 1), kickSentinel: make(chan struct{}, 1),
	}
	report(Report{Event: Leased, RunID: g.RunID})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		for range signals {
			e.terminated.set()
		}
	}()
	if g.Cancel {
		e.cancelled.set()
		_, err := l.commit(life, perdure.Commit{ID: fmt.Sprintf("end-%d", g.Epoch), RunID: g.RunID, Epoch: g.Epoch,
			CancelAck: true, Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
		report(Report{Event: Lost, RunID: g.RunID, Message: "the run was cancelled"})
		return err
	}
	if f := e.prepare(); f != nil {
		return e.fail(life, f)
	}
	defer e.lock.Close()
	loops, stop := context.WithCancel(life)
	var running sync.WaitGroup
	for _, loop := range []func(context.Context){e.sentinelLoop, e.beatLoop, e.newsLoop, e.boundLoop} {
		running.Go(func() { loop(loops) })
	}
	err := e.supervise(life)
	stop()
	running.Wait()
	return err
}

// lose records that the run is no longer this runner's.
func (e *execution) lose(why error) {
	e.log.Warn("run lost", "error", why)
	e.lost(why)
}

// askToStop records a cancel request.
func (e *execution) askToStop() { e.cancelled.set() }

// prepare makes the folder and starts the command.
func (e *execution) prepare() *failure {
	if e.job.RunID == "" {
		if err := decodeSpec(e.grant.Input, &e.spec); err != nil {
			return &failure{code: CodeSpec, err: err}
		}
	}
	var err error
	if e.adaptor, err = adaptor.Load(e.spec.Engine, e.job.Engines); err != nil {
		return &failure{code: CodeEngine, err: err}
	}
	if e.spec.Session != "" {
		if e.spec.Command, err = e.adaptor.Continue(e.spec.Command, e.spec.Session); err != nil {
			return &failure{code: CodeSpec, err: err}
		}
	}
	e.facts.adaptor, e.viewChanged = e.adaptor, e.adaptor.Reads()
	e.process = jobdir.Process{Engine: e.adaptor.Engine(), Status: jobdir.StatusRunning, SessionID: e.spec.Session}
	env, f := e.environment()
	if f != nil {
		return f
	}
	if err := e.openFolder(); err != nil {
		return &failure{code: CodeWorkspace, err: err, retry: true}
	}
	if f := e.start(env); f != nil {
		e.lock.Close()
		return f
	}
	e.report(Report{Event: Started, RunID: e.lease.RunID})
	e.log.Info("command started", "run", e.lease.RunID, "epoch", e.lease.Epoch)
	return nil
}

// decodeSpec reads the input of a run.
func decodeSpec(input []byte, s *Spec) error {
	dec := json.NewDecoder(strings.NewReader(string(input)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return fmt.Errorf("the input is no command: %w", err)
	}
	return s.Validate()
}

// environment returns the environment of the command.
func (e *execution) environment() ([]string, *failure) {
	env := append([]string(nil), e.job.Env...)
	set := func(name, value string) {
		for i, v := range env {
			if strings.HasPrefix(v, name+"=") {
				env[i] = name + "=" + value
				return
			}
		}
		env = append(env, name+"="+value)
	}
	for name, value := range e.spec.Env {
		set(name, value)
	}
	for name, ref := range e.spec.Secrets {
		value, ok := e.job.Secrets[ref]
		if !ok {
			return nil, &failure{code: CodeSecret, err: fmt.Errorf("the runner has no secret %.80q", ref)}
		}
		set(name, value)
	}
	set("PERDURE_RUN_ID", string(e.lease.RunID))
	return env, nil
}

// openFolder makes the job's folder, takes its lock, and opens runner.log.
func (e *execution) openFolder() (err error) {
	if e.dir, err = jobdir.Of(e.job.Workspace, string(e.lease.RunID)); err != nil {
		return err
	}
	if err := e.dir.Create(); err != nil {
		return err
	}
	if e.lock, err = e.dir.Lock(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.lock.Close()
		}
	}()
	if e.lockID, err = jobdir.LockID(e.lock); err != nil {
		return err
	}
	if err := e.dir.Clear(); err != nil {
		return err
	}
	path := filepath.Join(e.dir.Path, jobdir.LogFile)
	_ = os.Remove(path) // it may be a link that a command has left
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	e.log = slog.New(slog.NewTextHandler(&boundedWriter{f, maxLog}, nil))
	e.link.log = e.log
	return nil
}

// maxLog bounds runner.log.
const maxLog = 1 << 20

// A boundedWriter writes so many bytes and no more.
type boundedWriter struct {
	w    io.Writer
	left int
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return len(p), nil
	}
	return b.w.Write(p)
}

// start starts the command.
func (e *execution) start(env []string) *failure {
	dir := e.job.Dir
	if dir == "" {
		dir = e.dir.Path
	}
	path, f := lookUp(e.spec.Command[0], dir, env)
	if f != nil {
		return f
	}
	attr := &os.ProcAttr{Dir: dir, Env: env}
	closeFiles, f := e.openFiles(attr)
	defer closeFiles()
	if f != nil {
		return f
	}
	attr.Files = append(attr.Files, e.lock)
	changed := func() { kick(e.kickBeat) }
	var err error
	if e.command, err = startCommand(path, e.spec.Command, attr, e.spec.PTY, changed); err != nil {
		return notStarted(err)
	}
	if t := e.terminal; t != nil {
		go t.copyTo(e.typescript, e.command.gone)
	}
	return nil
}

// openFiles opens the files of the command: its standard input, output and error. The function that it
// returns closes this process's copies.
func (e *execution) openFiles(attr *os.ProcAttr) (closeFiles func(), _ *failure) {
	closeFiles = func() {
		for _, f := range attr.Files {
			if f != e.lock {
				f.Close()
			}
		}
	}
	files := make(map[string]*os.File)
	for _, stream := range streams {
		f, err := e.dir.OpenOutput(stream)
		if err != nil {
			return closeFiles, &failure{code: CodeWorkspace, err: err, retry: true}
		}
		files[stream] = f
	}
	var err error
	if e.output, err = openOutput(e.dir, e.job.MaxOutput); err != nil {
		return closeFiles, &failure{code: CodeWorkspace, err: err, retry: true}
	}
	if e.spec.PTY {
		files[jobdir.Stderr].Close() // it stays empty
		if e.terminal, err = openTerminal(e.job.Rows, e.job.Cols); err != nil {
			return closeFiles, &failure{code: CodeStart, err: err}
		}
		e.typescript = files[jobdir.Stdout]
		attr.Files = []*os.File{e.terminal.slave, e.terminal.slave, e.terminal.slave}
		return closeFiles, nil
	}
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return closeFiles, &failure{code: CodeStart, err: err}
	}
	attr.Files = []*os.File{stdin, files[jobdir.Stdout], files[jobdir.Stderr]}
	return closeFiles, nil
}

// notStarted returns the failure of a command that can't be executed, with the exit code of a shell.
func notStarted(err error) *failure {
	exit := 126
	if errors.Is(err, os.ErrNotExist) {
		exit = 127
	}
	return &failure{code: CodeStart, err: err, exit: exit}
}

// lookUp finds the program of a command, as a shell would with that environment in that folder.
func lookUp(name, dir string, env []string) (string, *failure) {
	if strings.Contains(name, "/") {
		return name, nil // relative to dir: the child starts there
	}
	path := ""
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value
		}
	}
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		file := filepath.Join(folder, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", notStarted(fmt.Errorf("%s: %w in PATH", name, os.ErrNotExist))
}

// activity is what heartbeats say.
func (e *execution) activity() string {
	if e.command.isStopped() {
		return "stopped"
	}
	status, _ := e.state()
	switch {
	case status == jobdir.StatusProcessing:
		return "llm_thinking"
	case status == jobdir.StatusRunning && e.adaptor.Reads():
		return "tool_executing"
	}
	return status
}

// state returns status and session of the process.
func (e *execution) state() (status, session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process.Status, e.process.SessionID
}

// supervise stays with the command until it has ended and its end is reported.
func (e *execution) supervise(life context.Context) error {
	forwarding, stop := context.WithCancel(life)
	var sender sync.WaitGroup
	sender.Go(func() { e.forwardLoop(forwarding) })
	asked := e.awaitEnd(life)
	if !e.command.kill() {
		e.log.Warn("descendants of the command are left")
	}
	if e.terminal != nil {
		select {
		case <-e.terminal.copied:
		case <-time.After(restGrace):
		}
	}
	stop()
	sender.Wait()
	if err := context.Cause(life); err != nil {
		e.report(Report{Event: Lost, RunID: e.lease.RunID, Message: err.Error()})
		return err
	}
	return e.finish(life, asked)
}

// Times of descendants that outlive the command: soon is until they are noticed, and restGrace is how
// long they have to end when they are asked to.
const (
	soon      = 5 * time.Millisecond
	restGrace = time.Second
)

// awaitEnd waits for the end of the command, or ends it: after a cancel request, a signal to this
// process, or when the run is lost. It returns why it has asked the command to end, if it has.
func (e *execution) awaitEnd(life context.Context) (asked string) {
	select {
	case <-e.command.done:
	case <-e.cancelled.when:
		asked = "cancelled"
	case <-e.terminated.when:
		asked = "the runner was told to end"
	case <-life.Done():
		asked = "lost"
	}
	if asked != "" {
		e.log.Info("command asked to end", "why", asked)
		kick(e.kickBeat) // acknowledges a cancel request
		e.command.terminate()
		select {
		case <-e.command.done:
		case <-time.After(e.job.Grace):
			e.log.Warn("command killed", "grace", e.job.Grace)
			e.command.kill()
			select {
			case <-e.command.done:
			case <-time.After(killWhile): // not even the kernel can end it
			}
		}
	}
	select {
	case <-e.command.gone:
	case <-time.After(soon):
		e.command.terminateRest(min(restGrace, e.job.Grace))
	}
	return asked
}

// Times of the forward loop.
const (
	lookOften  = 10 * time.Millisecond
	lookSeldom = 500 * time.Millisecond
)

// forwardLoop copies the output to the log, and sends what the engine states.
func (e *execution) forwardLoop(ctx context.Context) {
	for pause := lookOften; ; {
		busy, err := e.forwardOnce(ctx, false)
		switch {
		case errors.Is(err, errLost):
			e.lose(err)
			return
		case ctx.Err() != nil:
			return
		case err != nil:
			e.log.Warn("output not sent", "error", err)
			pause = lookSeldom
		case busy:
			pause = lookOften
		default:
			pause = min(pause*2, lookSeldom)
		}
		if !timer.Sleep(ctx, pause) {
			return
		}
	}
}

// forwardOnce sends what there is, once. It returns false if there was nothing.
func (e *execution) forwardOnce(ctx context.Context, ended bool) (busy bool, err error) {
	parsed := e.parseOutput(ended)
	more, err := e.forwardOutput(ctx, ended)
	if err != nil {
		return false, err
	}
	told, err := e.forwardFacts(ctx)
	return parsed || more || told, err
}

// finish writes the result and reports the end.
func (e *execution) finish(life context.Context, asked string) error {
	e.ending.set()
	e.parseOutput(true)
	how := e.command.ending()
	c := e.endCommit(how, asked)
	size := e.output.have()
	r := jobdir.Result{JobID: e.dir.ID, Tenant: e.grant.Tenant, Commit: c, Output: size,
		FinishedAt: jobdir.Time(time.Now())}
	if err := e.dir.WriteResult(r, e.grant.ResultToken); err != nil {
		e.log.Warn("result not written", "error", err)
	}
	e.log.Info("command ended", "exit_code", how.code, "signal", how.signal)
	e.report(Report{Event: Ended, RunID: e.lease.RunID, ExitCode: how.code})
	err := e.sendRest(life)
	if err == nil {
		err = e.sendEnd(life, c)
	}
	switch {
	case errors.Is(err, errLost):
		e.report(Report{Event: Lost, RunID: e.lease.RunID, Message: err.Error()})
	case err != nil:
		e.report(Report{Event: Failed, RunID: e.lease.RunID, Message: err.Error()})
	default:
		e.report(Report{Event: Sent, RunID: e.lease.RunID})
	}
	return err
}

// ending returns how the command has ended. One that can't be killed counts as killed.
func (c *command) ending() ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		return ending{128 + int(syscall.SIGKILL), "SIGKILL"}
	}
	return c.how
}

// sendRest copies the rest of the output to the log.
func (e *execution) sendRest(ctx context.Context) error {
	for failed := 0; ; {
		more, err := e.forwardOutput(ctx, true)
		if more && err == nil {
			e.report(Report{Event: Sending, RunID: e.lease.RunID})
		}
		switch {
		case err == nil && !more && e.facts.inFlight == nil:
			return nil
		case err == nil && !more:
			_, err = e.forwardFacts(ctx)
		}
		switch {
		case errors.Is(err, errLost), ctx.Err() != nil:
			return err
		case err != nil:
			// The files can't be read, or the server does not take them. The end is more important.
			if failed++; failed == 5 {
				e.log.Warn("rest of the output not sent", "error", err)
				return nil
			}
			timer.Sleep(ctx, backoff(failed))
		}
	}
}

// sendEnd sends the last commit.
func (e *execution) sendEnd(ctx context.Context, c perdure.Commit) error {
	_, err := e.link.commit(ctx, c)
	var refused *refusedError
	if !errors.As(err, &refused) {
		return err
	}
	e.log.Warn("end refused", "error", refused)
	final := false
	short := perdure.Commit{ID: c.ID + "-refused", RunID: c.RunID, Epoch: c.Epoch, CancelAck: c.CancelAck,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &final, Error: &perdure.Failure{Code: CodeEnd,
			Message: cut("the server did not take the end of the command: " + refused.Error())}}}
	if c.Outcome.Type == perdure.OutcomeCancelled {
		short.Outcome = &perdure.Outcome{Type: perdure.OutcomeCancelled}
	}
	_, err = e.link.commit(ctx, short)
	return err
}

// cut shortens a message to what a commit takes.
func cut(text string) string { return strings.ToValidUTF8(text[:min(len(text), 1000)], "") }

// exitEvent is the data of jobdir.EventExit.
type exitEvent struct {
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
}

// endCommit makes the last commit of the run.
func (e *execution) endCommit(how ending, asked string) perdure.Commit {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.process
	p.ExitCode, p.Signal, p.Dropped = &how.code, how.signal, e.output.lost()
	e.viewChanged = false
	process, _ := perdure.Marshal(p) // texts and numbers can always be encoded
	exit, _ := perdure.Marshal(exitEvent{how.code, how.signal})
	final := false
	c := perdure.Commit{
		ID: fmt.Sprintf("end-%d", e.lease.Epoch), RunID: e.lease.RunID, Epoch: e.lease.Epoch,
		CancelAck: e.cancelled.is(),
		Events:    append(e.facts.take(), perdure.Emitted{Type: jobdir.EventExit, Data: exit}),
		Views:     []perdure.View{{Name: jobdir.ProcessView, Value: process}},
	}
	fail := func(code perdure.Code, format string, args ...any) {
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &final,
			Error: &perdure.Failure{Code: code, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case asked == "" && how.code == 0:
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeComplete, Result: process, Summary: summary(p.Text)}
	case e.cancelled.is():
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeCancelled}
	case asked != "":
		fail(CodeKilled, "%s, and has ended the command", asked)
	case how.signal != "":
		fail(CodeKilled, "%s has ended the command", how.signal)
	default:
		fail(CodeExit, "the command has ended with the exit code %d", how.code)
	}
	return c
}

// summary returns the beginning of the agent's last words.
func summary(text string) string {
	text = strings.TrimSpace(text)
	return strings.ToValidUTF8(text[:min(len(text), 500)], "")
}

// failTime is how long the server is told of a command that was not started.
const failTime = time.Minute

// fail reports that the command was not started.
func (e *execution) fail(life context.Context, f *failure) error {
	e.report(Report{Event: Failed, RunID: e.lease.RunID, Code: f.code, Message: f.err.Error(), ExitCode: f.exit})
	e.log.Warn("command not started", "code", string(f.code), "error", f.err)
	ctx, cancel := context.WithTimeout(life, failTime)
	defer cancel()
	c := perdure.Commit{ID: fmt.Sprintf("end-%d", e.lease.Epoch), RunID: e.lease.RunID, Epoch: e.lease.Epoch,
		CancelAck: e.cancelled.is(),
		Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &f.retry,
			Error: &perdure.Failure{Code: f.code, Message: cut(f.err.Error())}}}
	if f.exit != 0 {
		view, _ := perdure.Marshal(jobdir.Process{Engine: e.process.Engine, Status: jobdir.StatusRunning,
			ExitCode: &f.exit})
		c.Views = []perdure.View{{Name: jobdir.ProcessView, Value: view}}
	}
	if err := e.sendEnd(ctx, c); err != nil {
		return err
	}
	e.report(Report{Event: Sent, RunID: e.lease.RunID})
	return f.err
}
