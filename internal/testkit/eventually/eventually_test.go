package eventually

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A patient is a test that notes its failure, with a deadline of its own.
type patient struct {
	testing.TB
	end    time.Time
	failed string
}

func (p *patient) Helper()                     {}
func (p *patient) Logf(string, ...any)         {}
func (p *patient) Deadline() (time.Time, bool) { return p.end, !p.end.IsZero() }
func (p *patient) Fatalf(format string, args ...any) {
	p.failed = fmt.Sprintf(format, args...)
	panic(p)
}

// waits gives how long a wait that is never over takes, and its failure.
func waits(end time.Duration) (took time.Duration, failed string) {
	p := &patient{}
	if began := time.Now(); end > 0 {
		p.end = began.Add(end)
	}
	began := time.Now()
	defer func() {
		took, failed = time.Since(began), recover().(*patient).failed
	}()
	True(p, "the moon is blue", func() bool { return false })
	return 0, ""
}

func TestWaitEndsBeforeTheDeadline(t *testing.T) {
	for _, x := range []struct{ end, least, most time.Duration }{
		{0, Within, Within + time.Second},
		{time.Hour, Within, Within + time.Second},
		{5 * time.Minute, 4 * time.Minute, 5*time.Minute - time.Second},
		{30 * time.Second, 25 * time.Second, 29 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			took, failed := waits(x.end)
			if took < x.least || took > x.most {
				t.Errorf("with a deadline in %s a wait took %s, want %s to %s", x.end, took, x.least, x.most)
			}
			if !strings.Contains(failed, "the moon is blue") {
				t.Errorf("the failure is %q, want that it names what was waited for", failed)
			}
		})
	}
}

// A wait asks at most 120 times in its first second, and notices an answer within 20 ms.
func TestWaitAsksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, began := 0, time.Now()
		True(t, "a second has passed", func() bool {
			asked++
			return time.Since(began) >= time.Second
		})
		if took := time.Since(began); asked > 120 || took > 1020*time.Millisecond {
			t.Errorf("asked %d times and took %s, want at most 120 times and 1.02 s", asked, took)
		}
	})
}
