package doorbell

import (
	"log/slog"
	"sync"
	"time"
)

// outageEvery is the least time between two lines about a medium that is away, and between two about
// what it complains of. However often connections break, a node logs no more than that.
const outageEvery = time.Minute

// An outage logs a medium that is away: a line when the first connection is lost, one each minute until
// all are back, and one then. Of a medium that comes and goes the next line of the following minute
// says how often it was away.
type outage struct {
	log     *slog.Logger
	address string // without secrets

	mu     sync.Mutex
	down   map[string]bool // the connections that are lost, by their use
	since  time.Time       // when the first of them was
	cause  error
	times  int         // outages since the last line
	said   time.Time   // when the last line was logged
	told   bool        // the current outage has a line
	timer  *time.Timer // of the next line; nil: none is due
	closed bool

	complained time.Time // when the last complaint was logged
	complaints int       // those since
}

func newOutage(opt Options) *outage {
	return &outage{log: opt.Logger, address: Mask(opt.URL), down: make(map[string]bool)}
}

// begins records that a connection is lost, or can't be made.
func (o *outage) begins(use string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.down[use] {
		return
	}
	if o.down[use] = true; len(o.down) > 1 {
		return
	}
	o.since, o.cause, o.told = time.Now(), err, false
	o.times++
	if wait := outageEvery - time.Since(o.said); !o.said.IsZero() && wait > 0 {
		o.next(wait)
		return
	}
	o.line("the doorbell is away: other nodes are not heard, and what they do is found by looking")
}

// ends records that a connection works.
func (o *outage) ends(use string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down[use] {
		return
	}
	if delete(o.down, use); len(o.down) > 0 {
		return
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	if o.told {
		o.log.Info("the doorbell is there", "doorbell", o.address, "after",
			time.Since(o.since).Round(time.Millisecond))
	}
}

// next has a line logged if the outage lasts that long. The caller holds mu.
func (o *outage) next(wait time.Duration) {
	if o.timer != nil {
		o.timer.Stop()
	}
	o.timer = time.AfterFunc(wait, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.down) > 0 && !o.closed && time.Since(o.said) >= outageEvery {
			o.line("the doorbell is still away")
		}
	})
}

// line logs the current outage, and has the next line follow. The caller holds mu.
func (o *outage) line(message string) {
	args := []any{"doorbell", o.address, "error", o.cause}
	if d := time.Since(o.since); d >= time.Second {
		args = append(args, "for", d.Round(time.Second))
	}
	if o.times > 1 {
		args = append(args, "times_away", o.times)
	}
	o.log.Warn(message, args...)
	o.said, o.times, o.told = time.Now(), 0, true
	o.next(outageEvery)
}

// complains logs what the medium refuses while it is connected.
func (o *outage) complains(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.complaints++
	if !o.complained.IsZero() && time.Since(o.complained) < outageEvery {
		return
	}
	o.log.Warn("the doorbell complains", "doorbell", o.address, "error", err, "times", o.complaints)
	o.complained, o.complaints = time.Now(), 0
}

// close ends the lines of a bell that does not run any more.
func (o *outage) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed = true; o.timer != nil {
		o.timer.Stop()
	}
}
