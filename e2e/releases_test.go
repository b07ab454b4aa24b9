package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// A rollout is a server with runs of releases_program_test.go, and the workers of the release that is
// deployed.
type rollout struct {
	*node
	ctx     context.Context
	c       *client.Client
	ledger  string
	name    string // of the release
	workers []*exec.Cmd
	// runs has all runs.
	runs []*order
	// settled has the lines of the ledger about steps that were recorded, by their keys.
	settled map[string][]string
}

// An order is a run of a rollout.
type order struct {
	id         perdure.RunID
	thread     perdure.ThreadID
	wait, edit string
	begunBy    string // a release
	name       string // in its input
}

// A release that does not fit the live runs is deployed under load, and rolled back; then a release comes
// that keeps them. Workers and the server are killed on the way. The check foretells what each release
// does. Every run ends with its own results, no step that was recorded is executed again, and nothing
// stays held.
func TestBadReleaseIsRolledBackUnderLoad(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	for name, store := range map[string]func(*testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", pgtest.New(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newRollout(t, store(t)...).rollsOut()
		})
	}
}

// newRollout starts a server.
func newRollout(t *testing.T, store ...string) *rollout {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	t.Cleanup(cancel)
	r := &rollout{ctx: ctx, ledger: filepath.Join(t.TempDir(), "ledger"), settled: map[string][]string{}}
	r.serve(prepareNode(t, append(store, "--policy", "lease=1s", "--policy", "gap_after=2s", "--policy", "gap_spare=1s",
		"--policy", "backoff_base=200ms", "--policy", "dispatched_retry=500ms")...))
	return r
}

// serve starts a node, which has the runs from now on.
func (r *rollout) serve(n *node) {
	r.node = n
	n.log = n.t.Output()
	n.start()
	r.c = client.New("http://"+n.addr, n.key, client.Options{})
	n.t.Cleanup(func() { r.c.Close() })
}

// rollsOut deploys the releases, one after the other.
func (r *rollout) rollsOut() {
	t := r.t
	r.deploy(oldRelease)
	first := r.begin(len(releaseEdits), releaseEdits...)
	r.asleep(first)

	if code, held := r.check(badRelease); code != 1 {
		t.Errorf("builds check of the bad release: exit code %d, want 1", code)
	} else if missed := r.notIn(held, first); len(missed) > 0 {
		t.Errorf("builds check of the bad release does not name %v", missed)
	}
	r.fits(goodRelease)
	r.fits(oldRelease)

	// The bad release holds what wakes. Runs that it begins itself sleep.
	r.deploy(badRelease)
	one, two := halves(first)
	var second []*order
	r.under(func() { second = r.begin(1, removed, rereads) }, func() { r.wake(one) })
	r.held(one)
	r.asleep(second)

	// The release before goes on with those that it has begun, and holds those of the bad one.
	r.deploy(oldRelease)
	three, four := halves(second)
	var third []*order
	r.under(func() { third = r.begin(1, releaseEdits...) }, func() { r.wake(three) })
	r.end(one)
	r.held(three)
	r.asleep(third)

	// The good release goes on with all.
	r.fits(goodRelease)
	r.deploy(goodRelease)
	var fourth []*order
	r.under(func() { fourth = r.begin(1, releaseEdits...) }, func() {
		r.wake(two)
		r.wake(four)
		r.wake(third)
	})
	r.wake(fourth)
	r.end(r.runs)
	r.account()
	r.sound()
	for run, err := range r.c.All(r.ctx, client.Filter{Status: "queued,dispatched,running,suspended"}) {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("run %s (%s) is %s at the end (hold %+v), want none left", run.RunID, run.Kind, run.State, run.Hold)
	}
}

// Agents in every kind of wait go on after a restore to the other kind of store. What they did after the
// backup is lost, and what is in it is not done again. A run whose kind nobody had announced is still open
// to the class that its first worker gives it.
func TestAgentsGoOnAfterARestore(t *testing.T) {
	t.Parallel()
	for name, postgres := range map[string]bool{"SQLite to PostgreSQL": true, "PostgreSQL to SQLite": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to := pgtest.New(t), ""
			if postgres {
				from, to = to, from
			}
			r := newRollout(t, storeArgs(from)...)
			r.deploy(oldRelease)
			all := r.begin(1, releaseEdits...)
			later := r.submit(obj{"kind": "later"})
			r.asleep(all)
			file := filepath.Join(t.TempDir(), "backup")
			cli(t, "backup", file, "--url", "http://"+r.addr, "--data", r.dir)
			one, _ := halves(all)
			r.wake(one)
			r.end(one)
			r.killWorkers()
			key := r.key
			r.kill(syscall.SIGKILL)

			n := prepareNode(t, storeArgs(to)...)
			if n.key = key; to == "" {
				cli(t, "restore", file, "--data", n.dir)
			} else {
				cli(t, "restore", file, "--store", to)
			}
			r.serve(n)
			r.fits(goodRelease)
			r.deploy(goodRelease)
			r.wake(all)
			r.end(all)
			r.account()

			run := insist(r, func() (*api.Run, error) { return r.c.Get(r.ctx, perdure.RunID(later.RunID)) })
			if left := time.Until(run.DeadlineAt.Time()); run.Class != perdure.Open || left < time.Hour {
				t.Errorf("run %s after the restore: class %s, %s left, want it open with a day", run.RunID, run.Class,
					left)
			}
			w := worker.New(r.c, worker.Options{})
			worker.Handle(w, "later", func(context.Context, any) (int, error) { return 1, nil })
			ctx, stop := context.WithCancel(r.ctx)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			ended(t, r.ctx, r.c, run.RunID, "1")
			stop()
			wg.Wait()
			if run, err := r.c.Get(r.ctx, run.RunID); err != nil || run.Class != perdure.Task {
				t.Errorf("run %s has ended with the class %s (error %v), want task", run.RunID, run.Class, err)
			}
			r.sound()
		})
	}
}

// halves returns two halves of some orders, each with all edits.
func halves(all []*order) (one, other []*order) {
	for i, o := range all {
		if bits.OnesCount(uint(i))%2 == 0 {
			one = append(one, o)
		} else {
			other = append(other, o)
		}
	}
	return one, other
}

// deploy kills the workers of a release, and starts those of another one.
func (r *rollout) deploy(name string) {
	r.killWorkers()
	r.name = name
	for range 2 {
		r.workers = append(r.workers, r.worker())
	}
}

// killWorkers kills all workers.
func (r *rollout) killWorkers() {
	for _, w := range r.workers {
		killWorker(w)
	}
	r.workers = nil
}

// spec is the environment variable of a worker's program.
func (r *rollout) spec(name string) string {
	return fmt.Sprintf("%s=%s http://%s %s %s", releaseVar, name, r.addr, r.key, r.ledger)
}

// worker starts a worker.
func (r *rollout) worker() *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), r.spec(r.name)), os.Stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { killWorker(cmd) })
	return cmd
}

// under does several things at once, while the server and a worker are killed.
func (r *rollout) under(load ...func()) {
	var wg sync.WaitGroup
	for _, f := range load {
		wg.Go(f)
	}
	r.kill(syscall.SIGKILL)
	r.start()
	killWorker(r.workers[0])
	r.workers[0] = r.worker()
	wg.Wait()
}

// insist repeats a call until it succeeds: the server may be away.
func insist[T any](r *rollout, call func() (T, error)) (out T) {
	eventually.True(r.t, "a call succeeds", func() (ok bool) {
		v, err := call()
		if err != nil && r.ctx.Err() != nil {
			r.t.Error(err)
			return true
		}
		out = v
		return err == nil
	})
	return out
}

// begin submits runs of all waits, each with some of these edits. With PERDURE_TEST_FULL these are several
// runs with all of them.
func (r *rollout) begin(each int, edits ...string) (out []*order) {
	copies := 1
	if os.Getenv("PERDURE_TEST_FULL") != "" {
		copies, each = 8, len(edits)
	}
	for n, wait := range slices.Sorted(maps.Keys(releaseWaits)) {
		for k := range copies * each {
			o := &order{wait: wait, edit: edits[(n+k)%len(edits)], begunBy: r.name}
			o.name = fmt.Sprintf("%s-%s-%s-%d-%d", r.name, wait, o.edit, k, len(r.settled))
			sub := perdure.Submission{Kind: wait + "-" + o.edit, Class: perdure.Agent, MaxAttempts: 100,
				Input: client.JSON(orderBoth{o.name, o.name})}
			if wait == "message" {
				o.thread = insist(r, func() (*api.Thread, error) { return r.c.CreateThread(r.ctx, nil) }).ThreadID
				sub.ThreadID = o.thread
			}
			with := client.CallOptions{IdempotencyKey: o.name}
			o.id = insist(r, func() (*api.Run, error) { return r.c.Start(r.ctx, sub, with) }).RunID
			out = append(out, o)
		}
	}
	r.runs = append(r.runs, out...)
	return out
}

// asleep waits until runs sleep. From then on their steps are recorded: see account.
func (r *rollout) asleep(orders []*order) {
	r.t.Helper()
	for _, o := range orders {
		eventually.True(r.t, fmt.Sprintf("%s sleeps", o), func() bool {
			run := r.get(string(o.id))
			return run.State == "suspended" || o.wait == "sleep" && run.State == "completed"
		})
	}
	lines := r.lines()
	for _, o := range orders {
		for _, key := range o.before() {
			if r.settled[key] = lines[key]; len(lines[key]) == 0 {
				r.t.Errorf("%s sleeps, and the ledger has no line for %s", o, key)
			}
		}
	}
}

func (o *order) String() string {
	return fmt.Sprintf("run %s (%s, %s, begun by %s)", o.id, o.wait, o.edit, o.begunBy)
}

// before returns the keys of the steps before the wait.
func (o *order) before() []string {
	prefix, name := string(o.id)+"/", booking
	if o.wait == "branches" {
		prefix += "left#1//"
	}
	keys := []string{}
	if o.edit == removed && o.begunBy == oldRelease {
		keys = append(keys, prefix+"check#1")
	}
	if o.edit == renamed && o.begunBy != oldRelease {
		name = card
	}
	return append(keys, prefix+name+"#1")
}

// lines returns the ledger: what each key has.
func (r *rollout) lines() map[string][]string {
	r.t.Helper()
	b, err := os.ReadFile(r.ledger)
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		key, what, _ := strings.Cut(strings.TrimSpace(line), "|")
		out[key] = append(out[key], what)
	}
	return out
}

// wake ends what runs wait for.
func (r *rollout) wake(orders []*order) {
	signal := func(id perdure.RunID, name string) {
		insist(r, func() (any, error) {
			_, err := r.c.Signal(r.ctx, id, name, client.JSON("now"), client.CallOptions{IdempotencyKey: name})
			if client.CodeOf(err) == perdure.CodeWrongState {
				err = nil // it has ended
			}
			return nil, err
		})
	}
	for _, o := range orders {
		switch o.wait {
		case "sleep":
		case "approval":
			insist(r, func() (*perdure.Approval, error) {
				all, err := r.c.Approvals(r.ctx, client.ApprovalFilter{RunID: o.id})
				if err != nil || len(all.Approvals) == 0 {
					return nil, cmp.Or(err, errors.New("not asked yet"))
				}
				return r.c.Decide(r.ctx, all.Approvals[0].ID, api.Decide{Decision: perdure.Approve})
			})
		case "callback":
			insist(r, func() (*api.CallbackUsed, error) {
				for _, line := range r.lines()["token"] {
					if token, ok := strings.CutPrefix(line, string(o.id)+" "); ok {
						return r.c.Callback(r.ctx, token, api.UseCallback{Result: client.JSON("paid")})
					}
				}
				return nil, errors.New("no token yet")
			})
		case "message":
			insist(r, func() (*api.MessageAppended, error) {
				return r.c.AppendMessage(r.ctx, o.thread, perdure.Message{Role: "user", Content: client.JSON("hello")},
					client.CallOptions{IdempotencyKey: "hello"})
			})
		case "child", "join", "map":
			// A map spawns the last of its children when the first ones have ended: see end.
			r.wakeKids(o)
		case "branches":
			signal(o.id, "go")
			signal(o.id, "come")
		default:
			signal(o.id, "go")
		}
	}
}

// wakeKids ends the children of a run.
func (r *rollout) wakeKids(o *order) {
	insist(r, func() (any, error) {
		found := false
		for kid, err := range r.c.All(r.ctx, client.Filter{ParentRunID: o.id}) {
			if err != nil {
				return nil, err
			}
			found = true
			if _, err := r.c.Signal(r.ctx, kid.RunID, "go", client.JSON("now"), client.CallOptions{
				IdempotencyKey: "go"}); err != nil && client.CodeOf(err) != perdure.CodeWrongState {
				return nil, err
			}
		}
		if !found {
			return nil, errors.New("no children yet")
		}
		return nil, nil
	})
}

// held waits until runs are held. Those that sleep for a time wake by themselves, perhaps before.
func (r *rollout) held(orders []*order) {
	r.t.Helper()
	for _, o := range orders {
		if o.wait != "sleep" {
			eventually.True(r.t, fmt.Sprintf("%s is held by the release %s", o, r.name), func() bool {
				if run := r.get(string(o.id)); run.State == "completed" || run.State == "failed" {
					r.t.Fatalf("%s is %s under the release %s, want it held", o, run.State, r.name)
				}
				return r.count(string(o.id), "run:held") > 0
			})
		}
	}
}

// end waits until runs have completed, each with its own results.
func (r *rollout) end(orders []*order) {
	r.t.Helper()
	for _, o := range orders {
		var run *api.Run
		eventually.True(r.t, fmt.Sprintf("%s ends under the release %s", o, r.name), func() bool {
			if o.wait == "map" {
				r.wakeKids(o)
			}
			run = insist(r, func() (*api.Run, error) { return r.c.Get(r.ctx, o.id) })
			return run.State.Terminal()
		})
		if run.State != perdure.Completed {
			r.t.Errorf("%s: %s with %+v, want it completed", o, run.State, run.Error)
		}
	}
}

// account compares the ledger with the results. A step that a kill has interrupted before it was recorded
// is executed again, under the same key, at most once for each grant. One that was recorded is not.
func (r *rollout) account() {
	r.t.Helper()
	lines := r.lines()
	for key, was := range r.settled {
		if !slices.Equal(lines[key], was) {
			r.t.Errorf("%s was recorded with the effects %v, and has %v: it was executed again", key, was, lines[key])
		}
	}
	for _, o := range r.runs {
		keys := append(o.before(), string(o.id)+"/ship#1")
		charge := keys[len(keys)-2]
		if o.wait == "undone" {
			keys = append(keys, strings.Replace(charge, "/", "/_undone:", 1))
		}
		run := insist(r, func() (*api.Run, error) { return r.c.Get(r.ctx, o.id) })
		var result string
		if err := json.Unmarshal(run.Result, &result); err != nil {
			r.t.Errorf("%s: its result is %s", o, run.Result)
			continue
		}
		part := strings.Fields(result)
		if len(part) != 3 || part[0] != o.name || !slices.Contains(lines[charge], part[1]) ||
			!slices.Contains(lines[string(o.id)+"/ship#1"], part[2]) {
			r.t.Errorf("%s gives %q, want the order %s and what the ledger has: %v, %v", o, result, o.name,
				lines[charge], lines[string(o.id)+"/ship#1"])
		}
		var got []string
		for key, effects := range lines {
			if strings.HasPrefix(key, string(o.id)+"/") {
				got = append(got, key)
				if int64(len(effects)) > run.Epoch {
					r.t.Errorf("%s has %d effects, and the run was granted %d times", key, len(effects), run.Epoch)
				}
			}
		}
		slices.Sort(got)
		if slices.Sort(keys); !slices.Equal(got, keys) {
			r.t.Errorf("%s has the effects %v, want %v", o, got, keys)
		}
	}
	r.t.Logf("%d runs, %d keys with effects", len(r.runs), len(lines))
}

// check makes a check of a release as people do. It returns the exit code, and the runs that would be held.
func (r *rollout) check(name string) (code int, held []perdure.RunID) {
	r.t.Helper()
	path, err := program()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(path, "builds", "check", "--json", "--url", "http://"+r.addr, "--key", r.key, "--", os.Args[0])
	cmd.Env = append(os.Environ(), r.spec(name))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		r.t.Fatal(err)
	}
	var report worker.CheckReport
	if err := json.Unmarshal(out, &report); err != nil {
		r.t.Fatalf("builds check of %s printed %s (%v): %s", name, out, err, stderr.String())
	}
	for _, c := range report.Causes {
		held = append(held, c.Runs...)
	}
	if report.Runs == 0 || len(report.Causes) > 0 && report.OK() {
		r.t.Errorf("builds check of %s: %+v, want it to have replayed runs", name, report)
	}
	return cmd.ProcessState.ExitCode(), held
}

// fits checks that a release is said to continue all runs.
func (r *rollout) fits(name string) {
	r.t.Helper()
	if code, held := r.check(name); code != 0 {
		r.t.Errorf("builds check of the release %s: exit code %d, held %v; want 0 and none", name, code, held)
	}
}

// notIn returns the orders that are not among the runs, but for those that wake by themselves.
func (r *rollout) notIn(runs []perdure.RunID, orders []*order) (out []string) {
	for _, o := range orders {
		if !slices.Contains(runs, o.id) && o.wait != "sleep" {
			out = append(out, o.wait+"-"+o.edit)
		}
	}
	return out
}
