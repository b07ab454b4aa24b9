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

// A Scenario is a run and the events around it. Each trial executes it from the beginning, on an
// empty server.
type Scenario struct {
	// Setup makes the state of one trial, such as a fake bank. It returns a function that registers
	// the handlers of the run and of its children. That function is called for every worker: the
	// first, and the one after a crash.
	Setup func(s *Trial) (register func(w *worker.Worker))
	// Start is the run. If it has a ThreadID, whatever it is, the run is on a new thread.
	Start perdure.Submission
	// Script does what happens outside meanwhile: signals, cancels, decisions of people. It begins
	// when the run is accepted, on the goroutine of the test.
	Script func(s *Trial)

	// Server has options of the server. With a Store the scenario runs there in real time, with
	// several trials at once.
	Server embedded.Options
	// Worker has options of the worker.
	Worker worker.Options
	// Patience limits the time of a trial. The default is 25 hours of virtual time. In real time it is
	// ten minutes, and less if the deadline of the test binary comes earlier.
	Patience time.Duration
	// Scrub removes from a text what may differ between trials. It gets every text that is
	// compared, in which names replace the ids of runs. It also gets the field, such as "trip:
	// result" or "trip/hotel#1: choose#1". A field whose text becomes empty is not compared. The
	// default makes instants and UUIDs equal.
	Scrub func(field, text string) string
}

// Run makes one trial without a crash, and returns its end.
func (sc Scenario) Run(t *testing.T) *End {
	t.Helper()
	sc.validate(t)
	return sc.trial(t, sc.shared(t), new(failures), nil, false)
}

// CrashEverywhere makes one trial without a crash, and then one for every crash at every boundary:
// each commit of each run, and each grant. The worker dies, or the server restarts. The call did
// not arrive, or its answer is lost. Each trial has to end in the same way.
//
// Each crash is a subtest whose name describes it, so -run repeats one. Several trials run at once,
// so their state has to be made by Setup. check, which may be nil, is called with every end, one
// after the other, and first with the one without a crash.
func (sc Scenario) CrashEverywhere(t *testing.T, check func(t *testing.T, end *End)) {
	t.Helper()
	sc.validate(t)
	shared := sc.shared(t)
	found := new(failures)
	want := sc.trial(t, shared, found, nil, false)
	if check != nil {
		check(t, want)
	}
	if t.Failed() {
		return // there is nothing to compare with
	}
	if len(want.boundaries) == 0 {
		t.Fatal("the run came to its end without a worker: there is nothing to crash")
	}
	if shared == nil {
		sc.stayAwake(t, want, found)
	}
	var checking sync.Mutex
	crash := func(p point) {
		t.Run(p.String(), func(t *testing.T) {
			for range maxTries {
				end := sc.trial(t, shared, found, &p, false)
				diff := want.differences(end)
				if end.missed && len(diff) == 0 {
					continue
				}
				what := "the end is not the same as without the crash"
				if end.missed {
					what = "the run ends in another way than before, without a crash: what it does depends on more " +
						"than its input and its script"
				}
				found.report(t, p.String(), what, diff)
				if check != nil && !end.missed {
					checking.Lock()
					defer checking.Unlock()
					check(t, end)
				}
				return
			}
			// When lines and messages are committed with what comes after them, or before it, is a matter of
			// time. The run has ended in the same way each time.
			t.Logf("%d trials had no such boundary, and ended as the first did", maxTries)
		})
	}
	// t.Parallel would limit the trials to the number of processors. Trials in real time mostly
	// wait.
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	if shared != nil {
		slots = make(chan struct{}, trialsAtOnce)
	}
	var all sync.WaitGroup
	for _, p := range points(want.boundaries, shared == nil) {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			crash(p)
		})
	}
	all.Wait()
	found.summarize(t)
}

// awakeFor is how long, in virtual time, a run stays awake on a wait in the trial without sleep. Meanwhile
// its worker renews the lease, which takes real time.
const awakeFor = 2 * time.Hour

// awakeSlots is the number of slots that a worker has for runs that stay awake.
const awakeSlots = 1000

// stayAwake makes a trial in which the run is not executed anew after its waits: it stays awake. An agent
// that is executed anew gets recorded results in place of calls. So an end that differs shows state that
// is kept in another way than by the journal.
func (sc *Scenario) stayAwake(t *testing.T, want *End, found *failures) {
	t.Run("the run does not sleep", func(t *testing.T) {
		diff := want.differences(sc.trial(t, nil, found, nil, true))
		found.report(t, "a run that does not sleep", "the end is not the same as that of a run that is executed "+
			"anew after each wait; does a step's function change a variable of the agent, or is a time or a global "+
			"kept over a wait", diff)
	})
}

const (
	maxTries     = 10 // trials that may miss the boundary of a crash: children may end in either order
	trialsAtOnce = 16 // in real time
)

// validate fails the test if the scenario is incomplete.
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

// shared opens the server that all trials in real time share. It returns nil if each has its own.
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
		shared.deadWorkers.Wait()
		srv.Close()
	})
	return shared
}

// trial makes one trial, with a crash if one is given, or one in which the run stays awake. The end is
// marked as missed if the trial did not come to the boundary of the crash.
func (sc *Scenario) trial(t *testing.T, shared *server, found *failures, crash *point, awake bool) (end *End) {
	t.Helper()
	log, handlers := new(logBuffer), new(runningHandlers)
	if end, ok := t.Deadline(); ok {
		defer handlers.reportBefore(t.Name(), end, os.Stderr).Stop()
	}
	t.Cleanup(func() {
		if t.Failed() && found.first() {
			t.Logf("log of server and workers:\n%s", log)
		}
	})
	if shared != nil {
		return newSession(t, sc, shared, "", log, handlers, crash).execute()
	}
	defer watchClock(t.Name(), handlers)()
	dir := ""
	if crash != nil && crash.server {
		dir = t.TempDir() // made outside of the bubble, so that it is removed after its end
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t, sc, nil, dir, log, handlers, crash)
		s.awake = awake
		end = s.execute()
	})
	return end
}
