package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/server/store/pg"
)

// A logText is what was logged, also by timers.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *logText) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *logText) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// loggedOutage gives an outage with its logger, and the lines that were written.
func loggedOutage() (o *outage, log *slog.Logger, lines func() []string) {
	var text logText
	out := slog.New(slog.NewTextHandler(&text, nil))
	o = &outage{out: out}
	return o, slog.New(folding{out.Handler(), o}), func() []string {
		return strings.FieldsFunc(text.String(), func(r rune) bool { return r == '\n' })
	}
}

// TestOutageIsLoggedOnceAMinute: whatever fails during an outage, there is one line at its begin,
// one a minute with the refused calls, and one at its end.
func TestOutageIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, log, lines := loggedOutage()
		away := fmt.Errorf("%w: no route", pg.ErrLost)
		o.note(away)
		time.Sleep(time.Second / 2) // so that calls and the lines of each minute do not fall together
		for range 150 {             // seconds
			for range 4 {
				o.refused(1, 2, away)
				log.Error("the queues could not be looked at", "error", refusedRead)
			}
			log.Warn("a watched list can't be read", "error", errors.Join(errors.New("list"), away))
			time.Sleep(time.Second)
		}
		o.over()
		o.over()
		time.Sleep(outageSettles)
		synctest.Wait()
		want := []string{
			`level=ERROR msg="the database is away: calls are refused until it is back" error="the connection`,
			`level=WARN msg="the database is still away" for=1m0s reads_refused=240 writes_refused=480 ` +
				`held_back="240× the queues could not be looked at; 60× a watched list can't be read" error="the`,
			`level=WARN msg="the database is still away" for=2m0s reads_refused=240 writes_refused=480`,
			`level=INFO msg="the database is back" after=2m30.5s reads_refused=120 writes_refused=240`,
		}
		got := lines()
		if len(got) != len(want) {
			t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("line %d = %s\nwant %s", i, got[i], want[i])
			}
		}
	})
}

// TestLateRefusalBeginsNoOutage: a call that began before the database was back may fail, or be
// logged, after the first write. It is part of the same outage.
func TestLateRefusalBeginsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, log, lines := loggedOutage()
		o.refused(0, 1, refusedLost)
		time.Sleep(10 * time.Second)
		o.over()
		time.Sleep(time.Second)
		o.refused(1, 0, refusedLost) // on a connection of before
		log.Error("a sweep failed", "error", refusedLost)
		time.Sleep(time.Second)
		o.over()
		time.Sleep(time.Second)
		log.Error("a sweep failed", "error", refusedLost) // was refused before
		time.Sleep(time.Hour)
		want := `level=INFO msg="the database is back" after=12s reads_refused=1 writes_refused=1 ` +
			`held_back="2× a sweep failed"`
		if got := lines(); len(got) != 2 || !strings.Contains(got[1], want) {
			t.Errorf("%d lines, want 2, the last one %s:\n%s", len(got), want, strings.Join(got, "\n"))
		}
	})
}

// TestFlappingDatabaseIsLoggedInBounds: a database that comes and goes makes at most five lines a
// minute.
func TestFlappingDatabaseIsLoggedInBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, _, lines := loggedOutage()
		for range 36 {
			o.refused(0, 1, refusedLost)
			time.Sleep(time.Second)
			o.over()
			time.Sleep(2 * outageSettles)
		}
		if got := lines(); len(got) > 15 || !strings.Contains(strings.Join(got, "\n"), "times_away=") {
			t.Errorf("%d lines in 3 minutes, want at most 15, one with times_away:\n%s", len(got),
				strings.Join(got, "\n"))
		}
	})
}

// TestOtherLinesPassDuringAnOutage: an outage hides no other defect.
func TestOtherLinesPassDuringAnOutage(t *testing.T) {
	t.Parallel()
	o, log, lines := loggedOutage()
	o.note(refusedLost)
	log.Error("a handler panicked", "panic", "nil map")
	log.With("run", "r1").Error("a run could not be handed over", "error", errors.New("bad row"))
	log.Info("the doorbell is there")
	o.close()
	if got := lines(); len(got) != 4 {
		t.Errorf("%d lines, want 4:\n%s", len(got), strings.Join(got, "\n"))
	}
}
