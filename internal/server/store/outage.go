package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// Log lines while the database is away.
//
// Every call, every sweep and every watched list fails while the database is away, and each of them
// would log it. The store therefore logs an outage itself: one line when it begins, one each minute
// with the refused calls, and one when it is over. The logger of the store (Logger) holds back the
// lines of other packages whose error says that the database is away, and counts them.
//
// A call that began before the database was back may fail after the first write. So an outage is
// over when the database has taken a write and no call was refused for outageSettles after it.
//
// A database that comes and goes makes outageLines lines a minute at most. The next line of the
// minute says how often it was away.

const (
	// outageEvery is the interval of the lines about an outage that goes on.
	outageEvery = time.Minute
	// outageLines is the limit of lines about outages in outageEvery.
	outageLines = 4
	// outageSettles is how long no call may be refused after a write, for an outage to be over. It
	// is longer than the interval between two test writes.
	outageSettles = 2 * testEvery
	// outageTexts bounds the different messages that a line counts.
	outageTexts = 8
)

// An outage is what the log knows of the current outage. It is safe for concurrent use.
type outage struct {
	out  *slog.Logger // lines about outages themselves
	test func()       // called when an outage begins: tests until the database takes writes again

	mu            sync.Mutex
	since         time.Time // the zero time: there is no outage
	cause         error
	reads, writes int            // refused since the last line
	held          map[string]int // lines that were held back since the last line, by message
	times         int            // outages since the last line
	window        time.Time      // begin of the minute in which lines are counted
	lines         int
	timer         *time.Timer // of the next line about an outage that goes on
	back          time.Time   // when the database took a write again; the zero time: it has not
	settling      *time.Timer // logs that the database is back
	closed        bool
}

// refused records calls that were refused because the database is away.
func (o *outage) refused(reads, writes int, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reads, o.writes = o.reads+reads, o.writes+writes
	if !o.back.IsZero() { // the outage goes on
		o.back = time.Time{}
		o.settling.Stop()
	}
	o.begin(why)
}

// note records that the database is away.
func (o *outage) note(why error) { o.refused(0, 0, why) }

// holdBack records a line that is not written.
func (o *outage) holdBack(message string, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = make(map[string]int)
	}
	if _, known := o.held[message]; !known && len(o.held) >= outageTexts {
		message = "other lines"
	}
	o.held[message]++
	o.begin(why)
}

// begin logs the beginning of an outage. The caller holds mu.
func (o *outage) begin(why error) {
	if !o.since.IsZero() || o.closed {
		return
	}
	o.since, o.cause = time.Now(), why
	o.times++
	if o.mayLog() {
		o.out.Error(headline(why).begins, "error", why)
	}
	o.timer = time.AfterFunc(outageEvery, o.tick)
	if o.test != nil {
		o.test()
	}
}

// tick logs that an outage goes on.
func (o *outage) tick() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || o.closed {
		return
	}
	o.window, o.lines = time.Now(), 1
	o.out.Warn(headline(o.cause).goesOn, append([]any{"for", time.Since(o.since).Round(time.Second)},
		append(o.counts(), "error", o.cause)...)...)
	o.timer.Reset(outageEvery)
}

// over records that the database has taken a write.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || !o.back.IsZero() || o.closed {
		return
	}
	o.back = time.Now()
	o.settling = time.AfterFunc(outageSettles, o.settled)
}

// settled logs that the outage is over, unless a call was refused meanwhile.
func (o *outage) settled() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.back.IsZero() || time.Since(o.back) < outageSettles || o.closed {
		return
	}
	took := o.back.Sub(o.since).Round(time.Millisecond)
	o.since, o.back = time.Time{}, time.Time{}
	o.timer.Stop()
	if o.mayLog() {
		o.out.Info(headline(o.cause).ends, append([]any{"after", took}, o.counts()...)...)
	}
}

// active tells whether there is an outage.
func (o *outage) active() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero()
}

// close ends the lines of a store that is closed.
func (o *outage) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, t := range []*time.Timer{o.timer, o.settling} {
		if t != nil {
			t.Stop()
		}
	}
}

// mayLog tells whether the minute has room for another line. The caller holds mu.
func (o *outage) mayLog() bool {
	if now := time.Now(); now.Sub(o.window) >= outageEvery {
		o.window, o.lines = now, 0
	}
	o.lines++
	return o.lines <= outageLines
}

// A headlines has the messages of an outage.
type headlines struct{ begins, goesOn, ends string }

// headline gives the messages about a cause.
func headline(cause error) headlines {
	if errors.Is(cause, errReadOnly) || errors.Is(cause, errNoSpace) || pg.Refused(cause) {
		return headlines{begins: "the store takes no writes", goesOn: "the store still takes no writes",
			ends: "the store takes writes again"}
	}
	return headlines{begins: "the database is away: calls are refused until it is back",
		goesOn: "the database is still away", ends: "the database is back"}
}

// counts gives the counts since the last line, and begins them anew. The caller holds mu.
func (o *outage) counts() []any {
	out := []any{"reads_refused", o.reads, "writes_refused", o.writes}
	if o.times > 1 {
		out = append(out, "times_away", o.times)
	}
	if len(o.held) > 0 {
		type line struct {
			text string
			n    int
		}
		var list []line
		for text, n := range o.held {
			list = append(list, line{text, n})
		}
		slices.SortFunc(list, func(a, b line) int { return cmp.Or(b.n-a.n, strings.Compare(a.text, b.text)) })
		texts := make([]string, len(list))
		for i, l := range list {
			texts[i] = fmt.Sprintf("%d× %s", l.n, l.text)
		}
		out = append(out, "held_back", strings.Join(texts, "; "))
	}
	o.reads, o.writes, o.times, o.held = 0, 0, 0, nil
	return out
}

// aboutOutage tells whether an error says that the database is away or takes no writes.
func aboutOutage(err error) bool {
	return errors.Is(err, pg.ErrLost) || errors.Is(err, pg.ErrStandby) || errors.Is(err, pg.ErrInDoubt) ||
		errors.Is(err, errAway) || errors.Is(err, errReadOnly) || errors.Is(err, errNoSpace) ||
		same(err, refusedReadOnly) || same(err, refusedFull) || same(err, refusedLost) || same(err, refusedRead) ||
		same(err, refusedStandby)
}

// Unreachable tells whether a start has failed because PostgreSQL can't be used now and may be later:
// in Open, or in the first calls after it.
func Unreachable(err error) bool {
	return pg.Unreachable(err) || errors.Is(err, pg.ErrInDoubt) || unavailable(err)
}

// Address gives host and port of a PostgreSQL, of the form host:port,host:port if there are several.
func Address(url string) string { return pg.AddressOf(url) }

// errAway is the reason of a database that does not answer.
var errAway = errors.New("the database has not answered")

// A folding is a log handler that holds back the warnings and errors that an outage causes.
type folding struct {
	slog.Handler
	o *outage
}

// Handle passes a line on, unless its error says that the database is away. During an outage the
// lines about calls that are unavailable for any other reason are held back too: they wait for what
// the outage holds up.
func (h folding) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	var why error
	r.Attrs(func(a slog.Attr) bool {
		why, _ = a.Value.Any().(error)
		return why == nil
	})
	if why == nil || !aboutOutage(why) && !(unavailable(why) && h.o.active()) {
		return h.Handler.Handle(ctx, r)
	}
	h.o.holdBack(r.Message, why)
	return nil
}

func (h folding) WithAttrs(attrs []slog.Attr) slog.Handler {
	return folding{h.Handler.WithAttrs(attrs), h.o}
}

func (h folding) WithGroup(name string) slog.Handler { return folding{h.Handler.WithGroup(name), h.o} }

// unavailable tells whether a call was refused and may succeed later.
func unavailable(err error) bool {
	switch perdure.CodeOf(err) {
	case perdure.CodeUnavailable, perdure.CodeUnknown, perdure.CodeStorageFull, perdure.CodeQueryTimeout:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// Logger is the logger of everything that works on this store. It holds back the lines that an
// outage of the database causes, see outage.
func (s *Store) Logger() *slog.Logger { return s.log }
