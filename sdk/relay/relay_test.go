// Package relay has runs that go on in another language, with one worker after the other.
package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/agentcases"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// relays are the bodies of agents, in the words of agentcases. Each is executed twice in a run, around a step in which
// the worker is killed and between signals at which the next language goes on.
var relays = []string{
	"a b a", "try:a b", "about:x about:y", "paragraph:x paragraph:y", "a~ b", "sleep:1ms a", "approve:push a",
	"callback:door a", "child:one:x child:two:y", "spawn:one:x spawn:two:y all", "spawn:one:x a settled",
	"spawn:one:x select a", "spawn:one:x selectok", "spawn:one:x spawn:one:y first:2", "spawn:one:x race a",
	"map:one:x,y,z", "par:q:x,y,z", "say:x a say:y", "history say:x a", "newest say:x", "(trip f+ h+ ) a", "(trip f )",
	"[left a child:one:x ] [right b ]", "[left [deep a ] b ]", "?look a / b ; c", "removed:gone a", "emit:x delta:y a",
	"a% b%",
}

// relayed are the words of an agent. One with limits is killed within a step that holds a slot.
func relayed(n int) string {
	hold := "hold"
	if limited(n) {
		hold = "hold%"
	}
	return fmt.Sprintf("signal:one %s signal:two %s %s signal:three end", relays[n], hold, relays[n])
}

func limited(n int) bool { return strings.Contains(relays[n], "%") }

func TestMain(m *testing.M) {
	if os.Getenv("RELAY_WORKER") != "" {
		goWorker()
		return
	}
	os.Exit(m.Run())
}

// goWorker is the worker in Go, a process of its own.
func goWorker() {
	world := agentcases.NewWorld()
	world.Noted = func(run perdure.RunID, what string) {
		f, err := os.OpenFile(os.Getenv("LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(f, "%s %s\n", run, what)
		f.Close()
		if what == "hold" && os.Getenv("HOLD") != "" {
			select {}
		}
	}
	c := client.New(os.Getenv("PERDURE_URL"), os.Getenv("PERDURE_KEY"), client.Options{})
	wk := worker.New(c, worker.Options{Build: "go", Slots: 64, AgentSlots: 100})
	world.Children(wk)
	var kinds map[string]string
	if err := json.Unmarshal([]byte(os.Getenv("RELAY")), &kinds); err != nil {
		panic(err)
	}
	for kind, words := range kinds {
		world.Register(wk, kind, words, "")
	}
	if err := wk.Run(context.Background()); err != nil {
		panic(err)
	}
}

// output collects the output of a process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

// A relay is a server whose runs are executed by one worker after the other, which note their effects in a file.
type relay struct {
	*servertest.Server
	log   string
	kinds map[string]string
	order []string
	stage int
}

// next starts the worker of the next language. stop kills it.
func (r *relay) next(env ...string) (stop func()) {
	r.T.Helper()
	language := r.order[r.stage%len(r.order)]
	r.stage++
	cmd := exec.Command(os.Args[0])
	switch language {
	case "python":
		cmd = exec.Command("python3", "-u", "-m", "tests.relay_worker")
		cmd.Dir = "../python"
	case "typescript":
		cmd = exec.Command("../typescript/runtime/node_modules/node-22/bin/node",
			"../typescript/dist/test/relay-worker.js")
	}
	cmd.Env = append(append(os.Environ(), "PERDURE_URL="+r.URL, "PERDURE_KEY="+r.Key(), "NO_PROXY=*",
		"PYTHONDONTWRITEBYTECODE=1", "LOG="+r.log, "RELAY_WORKER="+language,
		"RELAY="+string(client.JSON(r.kinds))), env...)
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		r.T.Fatal(err)
	}
	killed := false
	stop = func() {
		if !killed {
			killed = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	r.T.Cleanup(func() {
		stop()
		if r.T.Failed() {
			r.T.Logf("the worker in %s said:\n%.4000s", language, &out.b)
		}
	})
	return stop
}

// until waits until something holds for each run.
func (r *relay) until(ids []perdure.RunID, what string, holds func(*api.Replay) bool) {
	r.T.Helper()
	for _, id := range ids {
		eventually.True(r.T, fmt.Sprintf("run %s: %s", id, what), func() bool {
			replay, err := r.C.Replay(r.Ctx, id)
			if err == nil && holds(replay) {
				return true
			}
			run, err := r.C.Get(r.Ctx, id)
			if err == nil && (run.State.Terminal() || run.Hold != nil) {
				r.T.Fatalf("run %s of %q is %s (error %+v, hold %+v), want that %s", id, r.kinds[run.Kind], run.State,
					run.Error, run.Hold, what)
			}
			return false
		})
	}
}

func (r *relay) sleeps(ids []perdure.RunID, signal string) {
	r.T.Helper()
	r.until(ids, "it waits for "+signal, func(p *api.Replay) bool {
		return slices.ContainsFunc(p.Waits, func(w api.ReplayWait) bool {
			return w.Asleep && w.ID == "signal:"+signal+"#1"
		})
	})
}

func (r *relay) signal(ids []perdure.RunID, signals ...string) {
	r.T.Helper()
	for _, id := range ids {
		for _, name := range signals {
			if _, err := r.C.Signal(r.Ctx, id, name, client.JSON(1)); err != nil {
				r.T.Fatal(err)
			}
		}
	}
}

// effects returns what the workers did in a run, sorted.
func (r *relay) effects(id perdure.RunID) (out []string) {
	b, err := os.ReadFile(r.log)
	if err != nil {
		r.T.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if what, ok := strings.CutPrefix(line, string(id)+" "); ok {
			out = append(out, strings.TrimSpace(what))
		}
	}
	slices.Sort(out)
	return out
}

// leavesChildren tells whether a body goes on when some of its children have ended. The second time it goes on at once,
// with the child of the first time, and the run may end before a worker has begun the new one.
func leavesChildren(words string) bool {
	return slices.ContainsFunc([]string{"select", "first", "race"}, func(word string) bool {
		return strings.Contains(words, " "+word)
	})
}

// ofChildrenOnce removes what a second child did as the first one had.
func ofChildrenOnce(sorted []string) []string {
	return slices.CompactFunc(sorted, func(a, b string) bool { return a == b && strings.HasPrefix(a, "one") })
}

func (r *relay) begin() (ids []perdure.RunID) {
	r.T.Helper()
	for n := range relays {
		thread, err := r.C.CreateThread(r.Ctx, nil)
		if err != nil {
			r.T.Fatal(err)
		}
		ids = append(ids, r.Start(perdure.Submission{Kind: fmt.Sprintf("relay-%d", n), Class: perdure.Agent,
			ThreadID: thread.ThreadID}))
	}
	return ids
}

// A run goes on in another language after each wait, and after each kill -9: it has the result of a run that stayed in
// one language, and every step was executed once, but for the one in which a worker was killed.
func TestRelay(t *testing.T) {
	orders := [][]string{
		{"go", "python", "typescript"}, {"typescript", "go", "python"}, {"python", "typescript", "go"},
		{"go", "typescript", "python"}, {"python", "go", "typescript"}, {"typescript", "python", "go"},
	}
	// A journal has the same bytes on both stores, and each language follows each other in two orders.
	short := map[string]string{"go python typescript": "sqlite", "typescript python go": "postgres"}
	for _, order := range orders {
		for _, store := range []string{"sqlite", "postgres"} {
			if short[strings.Join(order, " ")] != store && os.Getenv("PERDURE_TEST_FULL") == "" {
				continue // make campaign has them all
			}
			t.Run(strings.Join(order, " ")+" on "+store, func(t *testing.T) {
				t.Parallel()
				runRelay(t, order, store)
			})
		}
	}
}

func runRelay(t *testing.T, order []string, store string) {
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter = 3*time.Second, 2*time.Second
	p.BackoffBase = 10 * time.Millisecond // a grant has the usual time to be heard from, or a busy machine repeats it
	opt := embedded.Options{Policy: &p, Dir: t.TempDir()}
	if store == "postgres" {
		opt.Store = pgtest.New(t)
	}
	r := &relay{Server: servertest.Listen(t, opt), log: filepath.Join(t.TempDir(), "log"), order: order,
		kinds: map[string]string{}}
	for n := range relays {
		r.kinds[fmt.Sprintf("relay-%d", n)] = relayed(n)
	}
	if _, err := r.C.PutLimit(r.Ctx, "narrow", api.PutLimit{Concurrency: new(1)}); err != nil {
		t.Fatal(err)
	}
	ids, stayed := r.begin(), r.begin()
	var wait, free []perdure.RunID // those that wait at the limit while it is closed, and the others
	for n, id := range ids {
		if limited(n) {
			wait = append(wait, id)
		} else {
			free = append(free, id)
		}
	}
	r.signal(stayed, "one", "two", "three")
	stop := r.next()
	r.sleeps(ids, "one")
	want := make([]*api.Run, len(stayed))
	for n, id := range stayed {
		if want[n] = r.End(id); want[n].State != perdure.Completed {
			t.Fatalf("run %s of %q is %s (error %+v), want completed", id, relayed(n), want[n].State, want[n].Error)
		}
	}
	stop()
	if _, err := r.C.CloseLimit(r.Ctx, "narrow", api.CloseLimit{For: perdure.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	r.signal(ids, "one")
	stop = r.next("HOLD=1")
	r.until(wait, "it waits at the limit", func(p *api.Replay) bool {
		return slices.ContainsFunc(p.Waits, func(w api.ReplayWait) bool {
			return w.Asleep && strings.HasPrefix(w.ID, "limit:")
		})
	})
	r.sleeps(free, "two")
	stop()
	if _, err := r.C.OpenLimit(r.Ctx, "narrow", api.OpenLimit{}); err != nil {
		t.Fatal(err)
	}
	stop = r.next("HOLD=1")
	r.sleeps(wait, "two")
	stop()
	r.signal(ids, "two")
	stop = r.next("HOLD=1")
	r.until(ids, "a worker has begun its step hold", func(p *api.Replay) bool {
		return slices.Contains(r.effects(p.RunID), "hold")
	})
	stop()
	stop = r.next()
	r.sleeps(ids, "three")
	stop()
	r.signal(ids, "three")
	r.next()
	for n, id := range ids {
		run := r.End(id)
		if run.State != perdure.Completed || string(run.Result) != string(want[n].Result) {
			t.Errorf("%q in %q: %s with %s (error %+v), want %s", relayed(n), order, run.State, run.Result, run.Error,
				want[n].Result)
		}
		once := append(r.effects(stayed[n]), "hold") // the killed one again
		slices.Sort(once)
		got := r.effects(id)
		if leavesChildren(relays[n]) {
			once, got = ofChildrenOnce(once), ofChildrenOnce(got)
		}
		if !slices.Equal(got, once) {
			t.Errorf("%q in %q: the effects were %q, want %q", relayed(n), order, got, once)
		}
	}
}
