package agenttest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/worker"
)

// working is the functions that are being executed, by what they are. It is made outside of the bubble, whose clock a
// function can stop that waits for something from outside: somebody has to be able to say which one it was.
type working struct {
	mu sync.Mutex
	on map[string]int
}

// around is a worker's middleware.
func (w *working) around(ctx context.Context, run worker.RunInfo, next func(context.Context) error) error {
	what := fmt.Sprintf("%s (run %s, attempt %d)", run.Kind, run.RunID, run.Attempt)
	w.count(what, 1)
	defer w.count(what, -1)
	return next(ctx)
}

func (w *working) count(what string, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on == nil {
		w.on = make(map[string]int)
	}
	if w.on[what] += by; w.on[what] == 0 {
		delete(w.on, what)
	}
}

// String is who has not returned; empty: nobody.
func (w *working) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(w.on)), ", ")
}

// watch says who is at work when the test's time is nearly over. Then go test ends the process, and what it prints is
// the stacks of everything.
func (w *working) watch(test string, end time.Time, out io.Writer) *time.Timer {
	left := time.Until(end)
	return time.AfterFunc(left-min(left/5, 5*time.Second), func() {
		if who := w.String(); who != "" {
			fmt.Fprintf(out, "agenttest: %s: the test's time is nearly over, and these functions have not returned: %s\n", test, who)
		}
	})
}

// outlast waits, in virtual time, for functions that are deaf to their contexts. The bubble can't end before they do, and
// breaks with the stacks of everything if they never do.
func (w *working) outlast(t *testing.T) {
	for range 100 {
		if w.String() == "" {
			return
		}
		time.Sleep(time.Hour)
	}
	fmt.Fprintf(os.Stderr, "agenttest: %s: these functions do not return, although their contexts have ended long ago: %s\n", t.Name(), w)
}
