package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// streams are both streams of output.
var streams = []string{jobdir.Stdout, jobdir.Stderr}

// An output has the files that the command writes to, as the runner reads them.
//
// The log gets the bytes in order, see package jobdir. Beyond some megabytes they are artifacts. A run
// has a limited number of those, so that one is sent when it is full, or after a time that doubles
// with each that was not.
//
// A command can truncate its files. That is seen by a size that is less than before, or by the last bytes
// that were seen: they are others now.
//
// The files are bounded, too: the blocks of bytes that were sent are given back to the disk, and if
// the server is away for long those of the oldest bytes that were not. Offsets stay as they are.
type output struct {
	files map[string]*os.File
	max   int64

	// epoch is the one under which the log has what it has.
	epoch int64

	// The goroutine that bounds the files is another than the one that sends them.
	mu sync.Mutex
	// at is what the log has, and parsed is what the engine's adaptor has read of stdout.
	at     jobdir.Offsets
	parsed int64
	// punched is up to where blocks were given back.
	punched jobdir.Offsets
	dropped jobdir.Offsets
	// base is the offset at which the file begins. It is not zero after the command has truncated it: what
	// is written then follows all that was seen before. seen is how far the files have been seen to reach.
	base, seen jobdir.Offsets
	// last has the last bytes of each stream that were seen.
	last      map[string][]byte
	truncated []truncation
	// early is the time after which an artifact is sent that is not full.
	early   time.Duration
	waiting time.Time
}

// A truncation says from which offset on the output of a stream is new.
type truncation struct {
	stream string
	offset int64
}

// maxTruncated bounds the truncations that wait to be told.
const maxTruncated = 100

// takeTruncated returns the truncations that were not told yet.
func (o *output) takeTruncated() []truncation {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.truncated
	o.truncated = nil
	return all
}

// firstEarly is the time after which the first artifact is sent that is not full.
const firstEarly = 5 * time.Second

// openOutput opens the files of a job for reading.
func openOutput(d jobdir.Dir, max int64) (*output, error) {
	o := &output{files: make(map[string]*os.File), max: max, early: firstEarly, last: make(map[string][]byte)}
	for _, stream := range streams {
		f, err := d.OpenWritten(stream)
		if err != nil {
			return nil, err
		}
		o.files[stream] = f
	}
	return o, nil
}

// errTruncated means that bytes can't be read because the command has truncated the file.
var errTruncated = errors.New("the command has truncated the file")

// read is a jobdir.Source.
func (o *output) read(stream string, b []byte, offset int64) (int, error) {
	o.mu.Lock()
	at := offset - *o.base.Of(stream)
	o.mu.Unlock()
	if at < 0 {
		return 0, errTruncated
	}
	return o.files[stream].ReadAt(b, at)
}

// A streamReader reads a stream by its offsets.
type streamReader struct {
	o      *output
	stream string
}

func (r streamReader) ReadAt(b []byte, offset int64) (int, error) {
	return r.o.read(r.stream, b, offset)
}

// maxTail is how much of the end of a stream the result of a run has.
const maxTail = 2 << 10

// tail returns the end of a stream, as a text. Secrets of the pool are not in it, as the result is in
// a file: what is read begins earlier by the longest of them, so that none is there in part.
func (e *execution) tail(stream string) string {
	hide, longest := []string{"\x00", ""}, 0
	for _, value := range e.job.Secrets {
		if value != "" {
			hide, longest = append(hide, value, "[secret]"), max(longest, len(value))
		}
	}
	have, begin := e.output.have(), e.output.begin(stream)
	size := *have.Of(stream)
	b := make([]byte, min(size-begin, int64(maxTail+max(longest, e.hide.set.Longest()))))
	n, _ := e.output.read(stream, b, size-int64(len(b))) // what can't be read is left out
	text := strings.NewReplacer(hide...).Replace(e.hide.set.String(string(b[:n])))
	return strings.TrimSpace(strings.ToValidUTF8(text[max(len(text)-maxTail, 0):], ""))
}

// begin returns the offset at which the file of a stream begins.
func (o *output) begin(stream string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *o.base.Of(stream)
}

// have returns what the files have, and notices that a file has become shorter.
func (o *output) have() (have jobdir.Offsets) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sizes()
}

// sizes is have for a caller that holds the lock.
func (o *output) sizes() (have jobdir.Offsets) {
	for _, stream := range streams {
		base, seen, at := o.base.Of(stream), o.seen.Of(stream), *o.at.Of(stream)
		if at > *seen { // a server that has taken over has read more
			*seen, o.last[stream] = at, nil
		}
		if info, err := o.files[stream].Stat(); err == nil {
			size := info.Size()
			if size < *seen-*base || !o.continues(stream, *seen-*base) {
				*base = *seen
				if len(o.truncated) < maxTruncated {
					o.truncated = append(o.truncated, truncation{stream, *base})
				}
				if info, err = o.files[stream].Stat(); err == nil { // it may have happened after the first look
					size = info.Size()
				}
			}
			if *seen = *base + size; size > 0 {
				o.last[stream] = jobdir.LastBytes(o.files[stream], size)
			}
		}
		*have.Of(stream) = *seen
	}
	return have
}

// continues tells whether a file still has what was seen of it, up to a position.
func (o *output) continues(stream string, at int64) bool {
	last := o.last[stream]
	return at < int64(len(last)) || bytes.HasSuffix(jobdir.LastBytes(o.files[stream], at), last)
}

// forwardOutput copies the next part of the output to the log. It returns false if there is nothing to
// copy now.
func (e *execution) forwardOutput(ctx context.Context, ended bool) (more bool, err error) {
	o := e.output
	lease, _ := e.hold.now()
	if err := e.resync(ctx, lease); err != nil {
		return false, err
	}
	have := o.have()
	if step, err := o.gone(lease); step != nil || err != nil {
		if err == nil {
			err = e.drop(ctx, step)
		}
		return true, err
	}
	next := jobdir.Next{Run: e.grant.RunID, Read: o.read, Epoch: lease.Epoch, Hide: e.hide.set}
	step, more, err := next.Output(o.at, have, ended)
	if errors.Is(err, errTruncated) {
		return true, nil // the next call says so
	}
	if err != nil {
		return false, fmt.Errorf("read the output: %w", err)
	}
	if !more || step.Artifact != "" && !ended && !o.due(&step) {
		return false, nil
	}
	if step.Artifact != "" {
		err = e.upload(ctx, lease, &step)
		o.have() // it may have been truncated meanwhile
	}
	if errors.Is(err, errTruncated) {
		return true, nil // the next call says so
	}
	if err == nil {
		if gone, err := o.gone(lease); gone != nil || err != nil {
			return true, err // the bytes were given back while they were read
		}
		err = e.sendStep(ctx, &step)
	}
	var refused *refusedError
	if errors.As(err, &refused) {
		return true, e.dropRefused(ctx, lease, &step, refused)
	}
	return err == nil, err
}

// dropRefused drops output that the server does not take, so that what follows it is not held up.
func (e *execution) dropRefused(ctx context.Context, lease api.Lease, s *jobdir.Step, why *refusedError) error {
	at := e.output.at
	stream := jobdir.Stdout
	if s.To.Stdout == at.Stdout {
		stream = jobdir.Stderr
	}
	size := *s.To.Of(stream) - *at.Of(stream)
	e.log.Warn("output not kept", "stream", stream, "offset", *at.Of(stream), "bytes", size, "error", why)
	reason := "the server does not take it: " + cut(why.Detail)
	drop, err := jobdir.DropOutput(lease.RunID, lease.Epoch, at, stream, size, reason)
	if err != nil {
		return err
	}
	return e.drop(ctx, &drop)
}

// due tells whether an artifact is sent now.
func (o *output) due(s *jobdir.Step) bool {
	if s.Size > jobdir.SegmentMax-jobdir.HoleAlign { // less than the maximum where the key lies across the border
		o.waiting = time.Time{}
		return true
	}
	if o.waiting.IsZero() {
		o.waiting = time.Now()
	}
	if time.Since(o.waiting) < o.early {
		return false
	}
	o.waiting = time.Time{}
	o.early *= 2
	return true
}

// sendStep sends a commit of output. If the log has another one from the same offsets, it goes on
// after that one.
func (e *execution) sendStep(ctx context.Context, s *jobdir.Step) error {
	o := e.output
	cancel, err := e.link.commit(ctx, s.Commit)
	var refused *refusedError
	switch {
	case errors.As(err, &refused) && refused.Code == perdure.CodeReused:
		at, err := e.link.logged(ctx, s.Commit.RunID, s.Commit.Epoch)
		if err == nil && at == o.at {
			err = fmt.Errorf("the output at %+v was refused: %s", at, refused.Detail)
		}
		o.reached(at)
		return err
	case err != nil:
		return err
	}
	if cancel {
		e.askToStop()
	}
	o.reached(s.To)
	return nil
}

// reached records what the log has, and gives back blocks that nobody needs any more.
func (o *output) reached(at jobdir.Offsets) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at = at
	for _, stream := range streams {
		to := *at.Of(stream)
		if stream == jobdir.Stdout && o.parsed >= 0 {
			to = min(to, o.parsed)
		}
		// The last ones are read by those who look at the files.
		if to -= o.max / 2; to-*o.punched.Of(stream) >= jobdir.SegmentMax {
			o.punch(stream, to)
		}
	}
}

// drop sends a commit that says which output is not kept.
func (e *execution) drop(ctx context.Context, s *jobdir.Step) error {
	before := e.output.at
	if err := e.sendStep(ctx, s); err != nil {
		return err
	}
	*e.output.dropped.Of(s.Stream) += *e.output.at.Of(s.Stream) - *before.Of(s.Stream)
	return nil
}

// uploadTime is how long storing one artifact may take before it is tried again.
const uploadTime = 2 * time.Minute

// A wholeReader ends with errTruncated if there are fewer bytes than expected.
type wholeReader struct {
	r    io.Reader
	left int64
	// short is set then. A client may read a body when it has returned already.
	short atomic.Bool
}

func (w *wholeReader) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if w.left -= int64(n); errors.Is(err, io.EOF) && w.left > 0 {
		err = errTruncated
	}
	if errors.Is(err, errTruncated) {
		w.short.Store(true)
	}
	return n, err
}

// upload stores the artifact of a step.
func (e *execution) upload(ctx context.Context, lease api.Lease, s *jobdir.Step) error {
	return e.link.persist(ctx, "artifact", func(ctx context.Context) (bool, error) {
		one, cancel := context.WithTimeout(ctx, uploadTime)
		defer cancel()
		file := &wholeReader{r: io.NewSectionReader(streamReader{e.output, s.Stream}, s.Offset, s.Size), left: s.Size}
		body := e.hide.reader(file)
		_, err := session.Of(e.link.c).PutArtifact(one, lease, s.Artifact, "application/octet-stream", body)
		code := client.CodeOf(err)
		switch {
		case file.short.Load():
			return false, errTruncated
		case err == nil:
			return false, nil
		case isLost(code):
			return false, fmt.Errorf("%w: %w", errLost, err)
		case temporary(err):
			return true, err
		}
		return false, &refusedError{api.Refusal{Code: code, Detail: err.Error()}}
	})
}

// gone returns the step that says which output was given back to the disk before it was sent, if some
// was.
func (o *output) gone(lease api.Lease) (*jobdir.Step, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, stream := range streams {
		if lost := *o.base.Of(stream) - *o.at.Of(stream); lost > 0 {
			s, err := jobdir.DropOutput(lease.RunID, lease.Epoch, o.at, stream, lost,
				"the command has truncated the file before it was copied")
			return &s, err
		}
		if lost := *o.punched.Of(stream) - *o.at.Of(stream); lost > 0 {
			s, err := jobdir.DropOutput(lease.RunID, lease.Epoch, o.at, stream, lost,
				"the server was away for too long")
			return &s, err
		}
	}
	return nil, nil
}

// bound gives back blocks of the oldest output if a file is too large, sent or not. It is called while
// the server is away, too.
func (o *output) bound() (lost int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have := o.sizes()
	for _, stream := range streams {
		if to := *have.Of(stream) - o.max; to > *o.punched.Of(stream) {
			// Half of it is given back, so that this is rare.
			to = min(*have.Of(stream), to+o.max/2)
			if o.punch(stream, to) {
				lost += max(0, *o.punched.Of(stream)-*o.at.Of(stream))
			}
		}
	}
	return lost
}

// lost returns how many bytes are not kept, in all.
func (o *output) lost() jobdir.Offsets {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost := o.dropped
	for _, stream := range streams {
		*lost.Of(stream) += max(0, max(*o.punched.Of(stream), *o.base.Of(stream))-*o.at.Of(stream))
	}
	return lost
}

// boundEvery is the time between two looks at the sizes of the files.
const boundEvery = time.Second

// boundLoop bounds the files, whether or not the server takes the output.
func (e *execution) boundLoop(ctx context.Context) {
	for timer.Sleep(ctx, boundEvery) {
		e.lookAtDisk()
		if lost := e.output.bound(); lost > 0 {
			e.log.Warn("output given up: the disk has as much as it may, and the server is away", "bytes", lost)
		}
	}
}

// punch gives back the blocks of a file before an offset. A part of a block would only be zeroed, and a
// server that adopts the output could not tell that from bytes: so whole blocks are given back.
func (o *output) punch(stream string, to int64) bool {
	base := *o.base.Of(stream)
	if to -= (to - base) % jobdir.HoleAlign; to <= *o.punched.Of(stream) || to <= base {
		return false
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", o.files[stream].Fd()), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, to-base) != nil {
		return false // the file system can't
	}
	*o.punched.Of(stream) = to
	return true
}
