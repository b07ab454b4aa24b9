package sentinel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/plant"
)

// Adoption sends what a runner has left: the output that is missing in the run's log, then the result.
//
// A commit of output is named after the offsets at which it begins, and moves a view of the run in the
// same write. So it does not matter how far the runner came, nor whether another server adopts at the
// same time: the one that is refused reads the offsets again and goes on. The result's commit has an id of its
// own, and counts once.

// maxLostOutput bounds the output that is copied of a process without a result. Nobody has signed how
// much there is: a neighbour can make the file as long as it likes.
const maxLostOutput = 64 << 20

// maxEndedOutput bounds the output of each stream that is copied after the run's end. It is in events.
const maxEndedOutput = 4 << 20

// errLater means that the time of a pass is over. The next one goes on.
var errLater = errors.New("the rest follows with the next scan")

// errStuck means that the log takes output, and does not have it then.
var errStuck = errors.New("the output does not move on")

// adopt sends the rest of a job's output and its result.
func (m *Monitor) adopt(ctx context.Context, d jobdir.Dir, r *perdure.Run, until time.Time) error {
	res, ok := m.result(d, r.Tenant, r.Epoch, r.Former)
	if !ok {
		return nil
	}
	if err := m.copyOutput(ctx, d, r, &res.Output, until); err != nil {
		return err
	}
	op := &life.Commit{Tenant: r.Tenant, Commit: res.Commit}
	err := m.engine.Do(ctx, op)
	if perdure.CodeOf(err) == perdure.CodeInvalid || perdure.CodeOf(err) == perdure.CodeTooLarge {
		m.bad(&jobdir.BadFile{Path: d.Path + "/" + jobdir.ResultFile, Reason: "was refused: " + err.Error()}, true)
		return nil
	}
	if err == nil && op.Refused == nil {
		m.count(func(c *Counts) { c.Adopted++ })
		m.note(d.ID, fmt.Sprintf("adopted its result: %s", op.Answer.State))
		m.log.Info("result of a process adopted", "run", d.ID, "state", op.Answer.State)
	}
	return err
}

// copyOutput copies output to the log until it has all of it. total is how much the runner has signed
// for; nil means all bytes of the files, up to a bound. An event tells which bytes can't be copied.
func (m *Monitor) copyOutput(
	ctx context.Context, d jobdir.Dir, r *perdure.Run, total *jobdir.Offsets, until time.Time,
) error {
	have, err := d.Sizes()
	if err != nil {
		m.bad(err, false)
		have = jobdir.Offsets{}
	}
	want, reason, limit := have, "it is more than is copied of a process that left no result", int64(maxLostOutput)
	if r.State.Terminal() {
		reason, limit = "it is more than is copied after the end of the run", maxEndedOutput
	}
	if total != nil {
		want, reason = *total, "the file has less"
		have = jobdir.Offsets{Stdout: min(have.Stdout, total.Stdout), Stderr: min(have.Stderr, total.Stderr)}
	}
	stuck := 0
	for last := (jobdir.Offsets{Stdout: -1}); ; {
		from, err := m.logged(ctx, r)
		if err != nil {
			return err
		}
		if total == nil && last.Stdout < 0 {
			have.Stdout = min(have.Stdout, from.Stdout+limit)
			have.Stderr = min(have.Stderr, from.Stderr+limit)
		}
		if stuck++; from != last {
			stuck = 0
		}
		if last = from; stuck > 2 {
			return fmt.Errorf("job %s: %w from %+v", d.ID, errStuck, from)
		}
		if time.Now().After(until) {
			return errLater
		}
		if Complete(from, want) {
			return nil
		}
		var step jobdir.Step
		var more bool
		if r.State.Terminal() {
			step, more, err = d.LastOutput(r.Epoch, from, atLeast(have, from))
		} else {
			step, more, err = d.NextOutput(r.Epoch, from, atLeast(have, from), true)
		}
		if err != nil {
			m.bad(err, false)
			more, reason = false, "the file can't be read"
		}
		if more && step.Artifact != "" {
			switch err := m.putOutput(ctx, d, r, step); {
			case perdure.CodeOf(err) == perdure.CodeTooLarge:
				more, reason = false, err.Error()
			case err != nil:
				return err
			}
		}
		commit := step.Commit
		if !more {
			if commit, err = dropped(d.ID, r.Epoch, from, want, reason); err != nil {
				return err
			}
		}
		err = m.engine.Do(ctx, &life.Commit{Tenant: r.Tenant, Commit: commit, Quiet: total == nil})
		if err != nil && perdure.CodeOf(err) != perdure.CodeReused {
			return err
		}
	}
}

// tellShorter tells which files have less than the log has of them: the command has truncated them. Only
// the runner knew where they begin since then, and which of their bytes it had copied.
func (m *Monitor) tellShorter(ctx context.Context, d jobdir.Dir, r *perdure.Run) error {
	have, err := d.Sizes()
	if err != nil {
		return nil // copyOutput has told that
	}
	logged, err := m.logged(ctx, r)
	if err != nil {
		return err
	}
	c := perdure.Commit{ID: fmt.Sprintf("shorter-%d", r.Epoch), RunID: r.ID, Epoch: r.Epoch}
	for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
		size, copied := *have.Of(stream), *logged.Of(stream)
		if size >= copied {
			continue
		}
		data, err := perdure.Marshal(jobdir.Notice{Stream: stream, Offset: copied,
			Message: fmt.Sprintf("the command has truncated the file of its %s: it has %d bytes, and %d were copied. "+
				"What was written after the last look of the runner may be missing", stream, size, copied)})
		if err != nil {
			return err
		}
		c.Events = append(c.Events, perdure.Emitted{Type: jobdir.EventTruncated, Data: data})
	}
	if len(c.Events) == 0 {
		return nil
	}
	err = m.engine.Do(ctx, &life.Commit{Tenant: r.Tenant, Commit: c, Quiet: true})
	if perdure.CodeOf(err) == perdure.CodeReused { // it was told when the file had another size
		return nil
	}
	return err
}

// Complete tells whether the log has all of the output, so that the result may follow.
func Complete(logged, all jobdir.Offsets) bool {
	return plant.Is("result-without-output") || logged.Stdout >= all.Stdout && logged.Stderr >= all.Stderr
}

// atLeast raises offsets to those that are in the log already.
func atLeast(o, from jobdir.Offsets) jobdir.Offsets {
	return jobdir.Offsets{Stdout: max(o.Stdout, from.Stdout), Stderr: max(o.Stderr, from.Stderr)}
}

// logged reads how much of the output is in the log.
func (m *Monitor) logged(ctx context.Context, r *perdure.Run) (jobdir.Offsets, error) {
	view, err := m.engine.Runs.View(ctx, r.Tenant, r.ID, jobdir.OutputView)
	if perdure.CodeOf(err) == perdure.CodeNotFound {
		return jobdir.Offsets{}, nil
	}
	return jobdir.LoggedOutput([]byte(view.Value), r.Epoch, r.Former), err
}

// dropped makes the commit that says which output is not copied.
func dropped(id string, epoch int64, from, to jobdir.Offsets, reason string) (perdure.Commit, error) {
	to = atLeast(to, from)
	c := perdure.Commit{ID: fmt.Sprintf("output-%d-%d-%d", epoch, from.Stdout, from.Stderr),
		RunID: perdure.RunID(id), Epoch: epoch}
	for _, x := range []jobdir.Dropped{{Stream: jobdir.Stdout, Offset: from.Stdout, Size: to.Stdout - from.Stdout,
		Reason: reason},
		{Stream: jobdir.Stderr, Offset: from.Stderr, Size: to.Stderr - from.Stderr, Reason: reason}} {
		if x.Size <= 0 {
			continue
		}
		data, err := perdure.Marshal(&x)
		if err != nil {
			return c, err
		}
		c.Events = append(c.Events, perdure.Emitted{Type: jobdir.EventDropped, Data: data})
	}
	view, err := perdure.Marshal(jobdir.Logged{Epoch: epoch, Offsets: to})
	c.Views = []perdure.View{{Name: jobdir.OutputView, Value: view}}
	return c, err
}

// putOutput stores the artifact of a step, chunk by chunk.
func (m *Monitor) putOutput(ctx context.Context, d jobdir.Dir, r *perdure.Run, step jobdir.Step) error {
	begin := &life.BeginArtifact{Tenant: r.Tenant, RunID: r.ID, Epoch: r.Epoch, Name: step.Artifact,
		ContentType: "application/octet-stream", Size: step.Size}
	if err := m.engine.Do(ctx, begin); err != nil {
		return err
	}
	put := &life.PutArtifact{Tenant: r.Tenant, RunID: r.ID, Epoch: r.Epoch, Name: step.Artifact,
		ContentType: begin.ContentType, Upload: begin.Upload}
	sum := sha256.New()
	body := m.opt.Secrets.Reader(io.NewSectionReader(outputFile{d, step.Stream}, step.Offset, step.Size))
	chunk := make([]byte, life.ChunkSize)
	err := func() error {
		for n := int64(0); ; n++ {
			have, err := io.ReadFull(body, chunk)
			if have > 0 {
				sum.Write(chunk[:have])
				put.Size += int64(have)
				add := &life.AddChunk{Tenant: r.Tenant, Upload: begin.Upload, N: n, Data: chunk[:have]}
				if err := m.engine.Do(ctx, add); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		put.SHA256 = fmt.Sprintf("%x", sum.Sum(nil))
		return m.engine.Do(ctx, put)
	}()
	if err != nil {
		// Retention removes the chunks in an hour, if this fails.
		_ = m.engine.Do(context.WithoutCancel(ctx), &life.EndUpload{Tenant: r.Tenant, Upload: begin.Upload})
	}
	return err
}

// outputFile reads a stream of a job.
type outputFile struct {
	d      jobdir.Dir
	stream string
}

func (f outputFile) ReadAt(b []byte, offset int64) (int, error) {
	return f.d.ReadOutput(f.stream, b, offset)
}
