package doorbell

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errGone = errors.New("gone")

// withOutage gives an outage whose log is read. All of it has a clock of its own.
func withOutage(t *testing.T, do func(o *outage, lines func(text string) int)) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		o := newOutage(Options{URL: "nats://bell:4222", Logger: slog.New(slog.NewTextHandler(&b, nil))})
		defer o.close()
		do(o, func(text string) int {
			synctest.Wait() // for lines that a timer writes
			return strings.Count(b.String(), text)
		})
		if t.Failed() {
			t.Log("the log:\n" + b.String())
		}
	})
}

// Both connections to PostgreSQL break with their server: that is one outage.
func TestLostConnectionsAreOneOutage(t *testing.T) {
	withOutage(t, func(o *outage, lines func(string) int) {
		o.begins("listen", errGone)
		o.begins("notify", errGone)
		o.begins("listen", errGone)
		time.Sleep(5 * time.Second)
		o.ends("listen")
		if n := lines("is there"); n != 0 {
			t.Errorf("%d lines say that the doorbell is there while one connection is lost, want none", n)
		}
		o.ends("notify")
		if lines("level=WARN") != 1 || lines(`the doorbell is there" doorbell=nats://bell:4222 after=5s`) != 1 {
			t.Errorf("%d warnings, want one, and a line when both connections are back", lines("level=WARN"))
		}
	})
}

// A medium that comes and goes makes a line a minute, which counts.
func TestDoorbellThatComesAndGoesMakesALineAMinute(t *testing.T) {
	withOutage(t, func(o *outage, lines func(string) int) {
		for range 250 {
			o.begins("listen", errGone)
			time.Sleep(100 * time.Millisecond)
			o.ends("listen")
			time.Sleep(100 * time.Millisecond)
		}
		if n := lines("level=WARN"); n != 1 {
			t.Errorf("%d warnings within a minute with 250 outages, want 1", n)
		}
		o.begins("listen", errGone)
		time.Sleep(5 * time.Minute)
		if n := lines("level=WARN"); n != 6 {
			t.Errorf("%d warnings after 5 further minutes of an outage, want 6", n)
		}
		if lines("times_away=250") != 1 {
			t.Error("no line says that the doorbell was away 250 times")
		}
		o.ends("listen")
		time.Sleep(time.Hour)
		if n := lines("level=WARN"); n != 6 {
			t.Errorf("%d warnings an hour after the end of the outage, want 6", n)
		}
	})
}

// A medium that refuses a subject complains of each message. That is a line a minute.
func TestComplaintsMakeALineAMinute(t *testing.T) {
	withOutage(t, func(o *outage, lines func(string) int) {
		for range 1000 {
			o.complains(errGone)
			time.Sleep(100 * time.Millisecond)
		}
		if n := lines("level=WARN"); n != 2 || lines("times=600") != 1 {
			t.Errorf("%d lines about 1000 complaints in 100 s, want 2, the second one with their number", n)
		}
	})
}

// A bell that was ended logs nothing more.
func TestEndedBellIsSilent(t *testing.T) {
	withOutage(t, func(o *outage, lines func(string) int) {
		o.begins("listen", errGone)
		o.close()
		o.begins("notify", errGone)
		time.Sleep(time.Hour)
		if n := lines("level=WARN"); n != 1 {
			t.Errorf("%d warnings, want the one from before the end", n)
		}
	})
}
