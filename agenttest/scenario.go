package agenttest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A Scenario is a run and what happens around it. It is told from the beginning as often as it takes, each time to an
// empty server.
type Scenario struct {
	// Setup makes what one telling has for itself, such as a bank that is none, and gives what registers the functions
	// of the run and of its children. That is called for every worker that is born: the first, and the one after a crash.
	Setup func(s *Session) (register func(w *worker.Worker))
	// Start is the run. Whatever ThreadID it has stands for a new thread.
	Start perdure.Submission
	// Script is what the world does meanwhile: signals, cancels, decisions of people. It begins when the run is accepted,
	// on the goroutine of the test.
	Script func(s *Session)

	// Server changes the server. With a Store the scenario runs on it in real time, and several of them at once.
	Server embedded.Options
	// Worker changes the worker.
	Worker worker.Options
	// Patience is how long the runs may take together; default 25 hours of virtual time, or a minute of real time.
	Patience time.Duration
	// Scrub makes equal what may differ from one telling to the next. It is given every text that is compared, after the ids
	// of the runs in it were replaced by their names, and the field, such as "trip: result" or "trip/hotel#1: choose#1";
	// what it makes empty is not compared. Default: instants and UUIDs are made equal.
	Scrub func(field, text string) string
}

// Run tells the scenario once, without a crash, and gives what came of it.
func (sc Scenario) Run(t *testing.T) *End {
	t.Helper()
	sc.validate(t)
	return sc.tell(t, sc.shared(t), nil)
}

// CrashEverywhere tells the scenario once without a crash, and then once for every way to crash at every boundary that it
// has: each commit of each run, and each grant. The worker dies, or the server is started again; the call that was
// under way did not arrive, or its answer is lost. Each time what comes of it has to be the same.
//
// Each crash is a subtest with a name that says what happens, so that -run repeats one. Several are told at once, so that
// what a scenario keeps belongs into its sessions. check, which may be nil, looks at every end, one after the other, the
// one without a crash first.
func (sc Scenario) CrashEverywhere(t *testing.T, check func(t *testing.T, end *End)) {
	t.Helper()
	sc.validate(t)
	shared := sc.shared(t)
	want := sc.tell(t, shared, nil)
	if check != nil {
		check(t, want)
	}
	if t.Failed() {
		return // nothing to compare with
	}
	if len(want.boundaries) == 0 {
		t.Fatal("the run came to its end without a worker: there is nothing to crash")
	}
	var checking sync.Mutex
	crash := func(p point) {
		t.Run(p.String(), func(t *testing.T) {
			for range tries {
				end := sc.tell(t, shared, &p)
				if end == nil {
					continue
				}
				want.same(t, end)
				if check != nil {
					checking.Lock()
					defer checking.Unlock()
					check(t, end)
				}
				return
			}
			t.Errorf("it was there without a crash, and not once in %d more tellings: what the run does depends on more than its input and its script", tries)
		})
	}
	// Not t.Parallel: in real time these wait much and compute little, and each is to fail in its own place.
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	if shared != nil {
		places = make(chan struct{}, atOnce)
	}
	var all sync.WaitGroup
	for _, p := range points(want.boundaries, shared == nil) {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			crash(p)
		})
	}
	all.Wait()
}

const (
	tries  = 3  // to come to a boundary again
	atOnce = 16 // tellings in real time
)

func (sc *Scenario) validate(t *testing.T) {
	t.Helper()
	if err := errors.Join(missing(sc.Setup == nil, "Setup"), missing(sc.Start.Kind == "", "Start.Kind")); err != nil {
		t.Fatal(err)
	}
}

func missing(is bool, what string) error {
	if is {
		return fmt.Errorf("agenttest: a scenario needs %s", what)
	}
	return nil
}

// shared opens the server that all tellings use in real time; nil: each has its own.
func (sc *Scenario) shared(t *testing.T) *server {
	t.Helper()
	if sc.Server.Store == "" {
		return nil
	}
	srv, err := embedded.Open(sc.Server)
	if err != nil {
		t.Fatal(err)
	}
	shared := &server{Server: srv}
	t.Cleanup(func() {
		shared.lingering.Wait()
		srv.Close()
	})
	return shared
}

// tell tells the scenario, with a crash if one is given. Nil: the crash's boundary did not come.
func (sc *Scenario) tell(t *testing.T, shared *server, crash *point) (end *End) {
	t.Helper()
	log, at := new(lines), new(working)
	if end, ok := t.Deadline(); ok {
		defer at.watch(t.Name(), end, os.Stderr).Stop()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what server and workers said:\n%s", log)
		}
	})
	if shared != nil {
		return newSession(t, sc, shared, "", log, at, crash).tell()
	}
	dir := ""
	if crash != nil && crash.server {
		dir = t.TempDir() // made outside: it goes when the bubble is gone
	}
	synctest.Test(t, func(t *testing.T) { end = newSession(t, sc, nil, dir, log, at, crash).tell() })
	return end
}
