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
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/process/adaptor"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/timer"
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
	hold    hold
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
	// sizes is the pipe that has the sizes of the terminals that the output is shown on.
	sizes *os.File
	disk  disk
	// truncations counts those that were told. The goroutine that forwards output has it, and then the end.
	truncations int
	hide        hidden
	facts       facts
	away        outage

	// cancelled is set by a cancel request, terminated by a signal to this process, and lost when the run
	// is no longer this runner's.
	cancelled, terminated *flag
	lost                  context.CancelCauseFunc
	// ending is set when the end is about to be sent. A heartbeat that crosses it may find the run ended.
	ending *flag

	kickBeat, kickSentinel chan struct{}

	// mu is taken before the locks of output and hold.
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
	if err := syscall.SetNonblock(reportFD, true); err != nil {
		return fmt.Errorf("reports: %w", err)
	}
	jobPipe, reports := os.NewFile(jobFD, "job"), os.NewFile(reportFD, "reports")
	keepFiles()
	if err := Shield(); err != nil {
		return err
	}
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
	report := (&reporter{pipe: reports}).report

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
	l := link{c: c, worker: workerName(host), log: slog.New(slog.DiscardHandler), contact: new(contact)}
	leasing := ctx
	if j.RunID != "" { // a pool's runner waits for as long as its pool lives
		var done context.CancelFunc
		leasing, done = l.patient(ctx, j.GiveUpAfter)
		defer done()
	}
	grant, err := l.lease(leasing, &j)
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
		job: j, spec: j.Spec, link: l, grant: g, log: l.log,
		hold:   hold{run: g.RunID, epoch: g.Epoch, token: g.ResultToken},
		report: report, cancelled: newFlag(), terminated: newFlag(), ending: newFlag(), lost: lose,
		kickBeat: make(chan struct{}, 1), kickSentinel: make(chan struct{}, 1),
	}
	e.hide = j.Server.hide()
	e.facts.hide = e.hide
	report(Report{Event: Leased, RunID: g.RunID})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		for range signals {
			e.terminated.set()
		}
	}()
	if f := j.verify(g); f != nil {
		return e.reject(life, f)
	}
	confirming, confirmed := l.patient(life, j.GiveUpAfter)
	cancel, err := l.confirm(confirming, g)
	confirmed()
	if err != nil {
		report(Report{Event: Lost, RunID: g.RunID, Message: err.Error()})
		return err
	}
	if cancel || g.Cancel {
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
	defer e.closeSizes()
	loops, stop := context.WithCancel(life)
	var running sync.WaitGroup
	for _, loop := range []func(context.Context){e.sentinelLoop, e.beatLoop, e.newsLoop, e.boundLoop} {
		running.Go(func() { loop(loops) })
	}
	err = e.supervise(life)
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
		e.report(Report{Event: Lost, RunID: e.grant.RunID, Message: err.Error()})
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
			if err := e.regain(ctx, err); err != nil && ctx.Err() == nil {
				e.lose(err)
				return
			}
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
	e.tellTruncated()
	parsed := e.parseOutput(ended)
	more, err := e.forwardOutput(ctx, ended)
	if err != nil {
		return false, err
	}
	told, err := e.forwardFacts(ctx)
	return parsed || more || told, err
}
