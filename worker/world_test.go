package worker_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A world is a server, in a folder if it is opened again.
type world struct {
	*servertest.Server
	dir string
}

// steady returns a policy that retries at once, and under which a busy machine loses no lease and
// grants no run twice.
func steady() *perdure.Policy {
	p := perdure.DefaultPolicy()
	p.DispatchedRetry, p.DispatchedTimeout = p.Lease, 5*p.Lease
	p.BackoffBase = 10 * time.Millisecond
	p.WatchdogInterval = 50 * time.Millisecond
	return &p
}

func open(t *testing.T, socket bool, policy *perdure.Policy) *world {
	t.Helper()
	if policy == nil {
		policy = steady()
	}
	opt := embedded.Options{Store: storetest.Address(t), Policy: policy}
	if socket {
		return &world{Server: servertest.Listen(t, opt)}
	}
	return &world{Server: servertest.Open(t, opt)}
}

// virtual runs a test in a synctest bubble. Its clock advances only while all goroutines wait.
func virtual(t *testing.T, f func(*world)) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f(&world{servertest.Open(t, embedded.Options{Dir: dir, Clock: time.Now}), dir})
	})
}

// both runs a test twice: with a server in the process, and over a socket.
func both(t *testing.T, f func(*world)) {
	t.Run("in process", func(t *testing.T) { t.Parallel(); f(open(t, false, nil)) })
	t.Run("over a socket", func(t *testing.T) { t.Parallel(); f(open(t, true, nil)) })
}

// lines counts a run's log lines by type.
func (w *world) lines(id perdure.RunID) map[perdure.LineType]int {
	w.T.Helper()
	out := make(map[perdure.LineType]int)
	for e, err := range w.C.Events(w.Ctx, id, 0) {
		if err != nil {
			w.T.Fatal(err)
		}
		out[e.Type]++
	}
	return out
}

// settled waits until no more goroutines run than before.
func settled(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(eventually.Within); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, want at most %d:\n%s", runtime.NumGoroutine(), before,
				buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(5 * time.Millisecond)
	}
}
