package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/timer"
)

// finish writes the result and reports the end.
func (e *execution) finish(life context.Context, asked string) error {
	e.ending.set()
	e.parseOutput(true)
	e.lookAtDisk()
	e.tellTruncated()
	how := e.command.ending()
	c := e.endCommit(how, asked)
	e.log.Info("command ended", "exit_code", how.code, "signal", how.signal)
	if err := e.writeResult(&c); isFull(err) {
		e.noteWrite(err)
		e.mu.Lock()
		c.Events = append(e.facts.take(), c.Events...)
		e.mu.Unlock()
	}
	e.report(Report{Event: Ended, RunID: e.grant.RunID, ExitCode: how.code})
	limited, done := e.link.patient(life, e.job.GiveUpAfter)
	defer done()
	err := e.deliver(limited, &c)
	switch {
	case errors.Is(err, errLost):
		e.report(Report{Event: Lost, RunID: e.grant.RunID, Message: err.Error()})
	case err != nil:
		err = fmt.Errorf("%w; the runner ends: %s", err, e.leaves())
		e.log.Error("end not reported", "error", err)
		e.report(Report{Event: Failed, RunID: e.grant.RunID, Message: err.Error()})
	default:
		e.report(Report{Event: Sent, RunID: e.grant.RunID})
	}
	return err
}

// writeResult writes the result file, under the epoch that the runner has now.
func (e *execution) writeResult(c *perdure.Commit) error {
	lease, token := e.hold.now()
	c.Epoch, c.ID = lease.Epoch, fmt.Sprintf("end-%d", lease.Epoch)
	r := jobdir.Result{JobID: e.dir.ID, Tenant: e.grant.Tenant, Commit: *c, Output: e.output.have(),
		FinishedAt: jobdir.Time(time.Now())}
	err := e.dir.WriteResult(r, token)
	if err != nil {
		e.log.Warn("result not written", "error", err)
	}
	return err
}

// deliver sends the rest of the output and the end. If the run has got a new epoch meanwhile, it does so
// once more.
func (e *execution) deliver(life context.Context, c *perdure.Commit) error {
	for {
		err := e.sendRest(life)
		if err == nil {
			err = e.sendEnd(life, *c)
		}
		if !errors.Is(err, errLost) {
			return err
		}
		if err := e.regain(life, err); err != nil {
			return err
		}
		_ = e.writeResult(c) // it is sent all the same
	}
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
			e.report(Report{Event: Sending, RunID: e.grant.RunID})
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
	out, errs := e.tail(jobdir.Stdout), e.tail(jobdir.Stderr)
	p.Text = e.hide.set.String(p.Text)
	if p.Text == "" {
		p.Tail = strings.TrimSpace(out + "\n" + errs)
	}
	e.viewChanged = false
	e.facts.endText()
	process, _ := perdure.Marshal(p) // texts and numbers can always be encoded
	process = e.hide.json(process)
	exit, _ := perdure.Marshal(exitEvent{how.code, how.signal})
	final := false
	c := perdure.Commit{
		RunID: e.grant.RunID, CancelAck: e.cancelled.is(), // writeResult sets epoch and id
		Events: append(e.facts.take(), perdure.Emitted{Type: jobdir.EventExit, Data: exit}),
		Views:  []perdure.View{{Name: jobdir.ProcessView, Value: process}},
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
		fail(CodeExit, "the command has ended with the exit code %d%s", how.code, lastWords(out, errs))
	}
	return c
}

// lastWords returns the end of the output for a failure: of the standard error, if there is some.
func lastWords(out, errs string) string {
	text := strings.TrimSpace(cmp.Or(errs, out))
	if text == "" {
		return ""
	}
	return ": " + strings.ToValidUTF8(text[max(len(text)-500, 0):], "")
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
	e.report(Report{Event: Failed, RunID: e.grant.RunID, Code: f.code, Message: f.err.Error(), ExitCode: f.exit})
	e.log.Warn("command not started", "code", string(f.code), "error", f.err)
	ctx, cancel := context.WithTimeout(life, failTime)
	defer cancel()
	c := perdure.Commit{ID: fmt.Sprintf("end-%d", e.grant.Epoch), RunID: e.grant.RunID, Epoch: e.grant.Epoch,
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
	e.report(Report{Event: Sent, RunID: e.grant.RunID})
	return f.err
}
