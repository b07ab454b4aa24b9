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

// runningHandlers counts the handlers that are being executed. It is made outside of the bubble. A
// handler that waits for something from outside stops the bubble's clock, and then the test has to
// name it.
type runningHandlers struct {
	mu sync.Mutex
	on map[string]int
}

// middleware counts a handler while it runs.
func (w *runningHandlers) middleware(ctx context.Context, run worker.RunInfo, next func(context.Context) error) error {
	what := fmt.Sprintf("%s (run %s, attempt %d)", run.Kind, run.RunID, run.Attempt)
	w.count(what, 1)
	defer w.count(what, -1)
	return next(ctx)
}

func (w *runningHandlers) count(what string, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on == nil {
		w.on = make(map[string]int)
	}
	if w.on[what] += by; w.on[what] == 0 {
		delete(w.on, what)
	}
}

// String lists the handlers that have not returned.
func (w *runningHandlers) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(w.on)), ", ")
}

// reportBefore prints the running handlers shortly before the test's timeout. After it, go test
// would print only the stacks of all goroutines.
func (w *runningHandlers) reportBefore(test string, end time.Time, out io.Writer) *time.Timer {
	left := time.Until(end)
	return time.AfterFunc(left-min(left/5, 5*time.Second), func() {
		if who := w.String(); who != "" {
			fmt.Fprintf(out, "agenttest: %s: the test's time is nearly over, and these functions have not "+
				"returned: %s\n",
				test, who)
		}
	})
}

// waitForHandlers waits, in virtual time, for handlers that ignore the end of their contexts. The
// bubble can't end before they do. If they never do, synctest fails with the stacks of all
// goroutines.
func (w *runningHandlers) waitForHandlers(t *testing.T) {
	for range 100 {
		if w.String() == "" {
			return
		}
		time.Sleep(time.Hour)
	}
	fmt.Fprintf(os.Stderr,
		"agenttest: %s: these functions do not return, although their contexts have ended long ago: %s\n", t.Name(), w)
}
