// Package typescript contains a worker in TypeScript, and tests that run it.
package typescript

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A world is a server behind a listener. The listener stays while the server is away.
type world struct {
	*servertest.Server
	desk *desk

	mu sync.Mutex
	// sent are the commits that workers have sent, in order.
	sent []sentCommit
	// listened has the runs that a worker has named in a poll for news.
	listened map[perdure.RunID]bool
	// builds are those that workers have named in a poll.
	builds map[string]bool
	// fetched says of which lists a worker has fetched a page.
	fetched map[string]bool
	// cutHeartbeats has heartbeats fail.
	cutHeartbeats bool
	// loseAnswer tells whether the answer to a commit gets lost. It is called with mu locked.
	loseAnswer func(perdure.Commit) bool
}

// A sentCommit is one request with a commit. The status is 0 if the server was away.
type sentCommit struct {
	perdure.Commit
	body   string
	status int
	answer string
}

// open starts a server with the default lease. Tests in which a worker loses its lease have a shorter one.
func open(t *testing.T) *world {
	t.Helper()
	return openWith(t, perdure.DefaultPolicy())
}

// shortLease is longer than a poll of the worker, so that a run whose worker is frozen is not granted to its last poll.
func shortLease() perdure.Policy {
	p := perdure.DefaultPolicy()
	p.Lease, p.GapAfter = 3*time.Second, time.Second // a machine that stalls is a gap, in which no lease is lost
	p.BackoffBase = 10 * time.Millisecond
	return p
}

func openWith(t *testing.T, p perdure.Policy) *world {
	t.Helper()
	w := &world{Server: servertest.Open(t, embedded.Options{Policy: &p, Dir: t.TempDir()}), desk: openDesk(t),
		listened: map[perdure.RunID]bool{}, builds: map[string]bool{}, fetched: map[string]bool{}}
	w.Serve(w)
	return w
}

// ServeHTTP passes requests on to the server, and records commits and polls for news.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	srv, cut := w.Live(), w.cutHeartbeats && strings.HasSuffix(r.URL.Path, "/heartbeat")
	w.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil || cut {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if strings.HasSuffix(r.URL.Path, "/commit") {
		w.serveCommit(rw, r, srv, body)
		return
	}
	w.mu.Lock()
	w.fetched[filepath.Base(r.URL.Path)] = true
	w.mu.Unlock()
	var poll api.Poll
	if strings.HasSuffix(r.URL.Path, "/poll") && json.Unmarshal(body, &poll) == nil {
		w.mu.Lock()
		if !poll.News {
			w.builds[poll.Build] = true
		}
		for _, lease := range poll.Holding {
			w.listened[lease.RunID] = true
		}
		w.mu.Unlock()
	}
	w.Server.ServeHTTP(rw, r)
}

func (w *world) serveCommit(rw http.ResponseWriter, r *http.Request, srv *embedded.Server, body []byte) {
	var in api.Commits
	if err := json.Unmarshal(body, &in); err != nil || len(in.Commits) != 1 {
		w.T.Errorf("a worker sent %q (error %v), want one commit", body, err)
		panic(http.ErrAbortHandler)
	}
	rec := httptest.NewRecorder()
	rec.Code = 0
	if srv != nil {
		srv.Handler().ServeHTTP(rec, r)
	}
	w.mu.Lock()
	w.sent = append(w.sent, sentCommit{in.Commits[0], string(body), rec.Code, rec.Body.String()})
	lost := w.loseAnswer != nil && w.loseAnswer(in.Commits[0])
	w.mu.Unlock()
	if rec.Code == 0 || lost {
		panic(http.ErrAbortHandler)
	}
	for name, values := range rec.Header() {
		rw.Header()[name] = values
	}
	rw.WriteHeader(rec.Code)
	rw.Write(rec.Body.Bytes())
}

// commits returns the requests with a commit that records the step.
func (w *world) commits(step string) (out []sentCommit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent {
		if slices.ContainsFunc(s.Journal, func(e perdure.JournalEntry) bool { return e.Key == step }) {
			out = append(out, s)
		}
	}
	return out
}

// checkRecordedOnce compares the steps that the server accepted with those of the run, each of them once.
func (w *world) checkRecordedOnce(id perdure.RunID, want ...string) {
	w.T.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	accepted := map[string]bool{} // by commit_id: a commit that is sent again counts once
	var got []string
	for _, s := range w.sent {
		if s.RunID != id || s.status != http.StatusOK || accepted[s.ID] {
			continue
		}
		accepted[s.ID] = true
		for _, e := range s.Journal {
			if !strings.Contains(e.Key, "/") { // an item of a wait
				got = append(got, e.Key)
			}
		}
	}
	if !slices.Equal(got, want) {
		w.T.Errorf("run %s: recorded steps = %q, want %q", id, got, want)
	}
}

// A desk is the system that the steps of a trip call.
type desk struct {
	url string

	mu sync.Mutex
	// calls has the idempotency keys of the calls, by what was asked.
	calls map[string][]string
	// large has the questions with answers of 600 KiB.
	large map[string]bool
	// held has a channel for each question that is not answered yet.
	held map[string]chan struct{}
	// cut has the questions whose next connection breaks.
	cut map[string]bool
}

func openDesk(t *testing.T) *desk {
	d := &desk{calls: map[string][]string{}, held: map[string]chan struct{}{}, cut: map[string]bool{}}
	l := httptest.NewServer(d)
	d.url = l.URL
	t.Cleanup(func() {
		l.CloseClientConnections()
		l.Close()
	})
	return d
}

func (d *desk) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	what := strings.TrimPrefix(r.URL.Path, "/")
	d.mu.Lock()
	d.calls[what] = append(d.calls[what], r.Header.Get("Idempotency-Key"))
	held, large, cut := d.held[what], d.large[what], d.cut[what]
	delete(d.cut, what)
	d.mu.Unlock()
	if cut {
		panic(http.ErrAbortHandler)
	}
	if large {
		defer io.WriteString(rw, strings.Repeat(".", 600<<10))
	}
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return
		}
	}
	io.WriteString(rw, what+" ok")
}

// hold keeps a question without an answer until the returned function is called.
func (d *desk) hold(what string) (answer func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(chan struct{})
	d.held[what] = held
	return func() {
		d.pass(what)
		close(held)
	}
}

// pass answers further calls for a question at once. Those that are held stay so.
func (d *desk) pass(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, what)
}

func (d *desk) keys(what string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls[what])
}

// checkCalls compares how often each question was asked. Repeated ones have the same key.
func (d *desk) checkCalls(t *testing.T, want map[string]int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for what, keys := range d.calls {
		if len(keys) != want[what] {
			t.Errorf("the desk was asked %d times for %s, want %d", len(keys), what, want[what])
		}
		if len(slices.Compact(slices.Clone(keys))) != 1 {
			t.Errorf("the calls for %s have the keys %q, want one key", what, keys)
		}
	}
	for what := range want {
		if len(d.calls[what]) == 0 {
			t.Errorf("the desk was not asked for %s, want %d times", what, want[what])
		}
	}
}

// output collects the output of the process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// A process is a worker.
type process struct {
	*exec.Cmd
	out *output
}

// node starts the worker.
func (w *world) node(key string) *process {
	w.T.Helper()
	return w.nodeOf("dist", key)
}

// nodeOf starts the worker in a folder. Without Node.js the test fails, because a skipped test would
// look green.
func (w *world) nodeOf(folder, key string) *process {
	w.T.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		w.T.Fatal("this test needs Node.js; type: make typescript: ", err)
	}
	checkCompiled(w.T)
	p := &process{exec.Command(node, filepath.Join(folder, "main.js")), &output{}}
	p.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+key)
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() {
		if p.ProcessState == nil {
			p.kill()
		}
		if w.T.Failed() {
			w.T.Logf("the worker said:\n%s", p.out)
		}
	})
	return p
}

func (p *process) kill() {
	p.Process.Kill() // SIGKILL
	p.Wait()
}

// edited returns a folder with a release of the worker in which one text is replaced.
func edited(t *testing.T, before, after string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("dist")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "main.js")
	text, err := os.ReadFile(path)
	if err != nil || bytes.Count(text, []byte(before)) != 1 {
		t.Fatalf("%s has %q %d times (error %v), want once", path, before, bytes.Count(text, []byte(before)), err)
	}
	for name, text := range map[string][]byte{"main.js": bytes.Replace(text, []byte(before), []byte(after), 1),
		"package.json": []byte(`{"type":"module"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// checkCompiled fails the test unless the worker was compiled after its last change.
func checkCompiled(t *testing.T) {
	t.Helper()
	sources, err := filepath.Glob("*.ts")
	if err != nil || len(sources) == 0 {
		t.Fatalf("sources of the worker = %q (error %v), want some", sources, err)
	}
	for _, source := range sources {
		compiled := filepath.Join("dist", strings.TrimSuffix(source, ".ts")+".js")
		from, err := os.Stat(source)
		if err != nil {
			t.Fatal(err)
		}
		to, err := os.Stat(compiled)
		if err != nil || to.ModTime().Before(from.ModTime()) {
			t.Fatalf("%s is missing or older than %s; type: make typescript", compiled, source)
		}
	}
}

// until polls a condition, as long as the test may take.
func (w *world) until(what string, ok func() bool) {
	w.T.Helper()
	for !ok() {
		select {
		case <-w.Ctx.Done():
			w.T.Fatalf("waited in vain until %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *world) asked(what string, times int) {
	w.T.Helper()
	w.until("the desk is asked for "+what, func() bool { return len(w.desk.keys(what)) >= times })
}

func (w *world) trip(patience string) perdure.RunID {
	w.T.Helper()
	return w.Start(perdure.Submission{Kind: "trip-ts",
		Input: client.JSON(map[string]string{"city": "Köln", "patience": patience, "desk": w.desk.url})})
}

func (w *world) run(id perdure.RunID) *api.Run {
	w.T.Helper()
	run, err := w.C.Get(w.Ctx, id)
	if err != nil {
		w.T.Fatal(err)
	}
	return run
}

// suspended waits until the run is suspended after the given step.
func (w *world) suspended(id perdure.RunID, step string) {
	w.T.Helper()
	w.until("the run is suspended after "+step, func() bool {
		return len(w.commits(step)) > 0 && w.run(id).State == perdure.Suspended
	})
}

func (w *world) confirm(id perdure.RunID) {
	w.T.Helper()
	if _, err := w.C.Signal(w.Ctx, id, "confirm", client.JSON("ann")); err != nil {
		w.T.Fatal(err)
	}
}

// checkBooked waits for the end of a trip that was confirmed.
func (w *world) checkBooked(id perdure.RunID, attempt int) {
	w.T.Helper()
	run := w.End(id)
	var got struct {
		City, Price, By, Ticket, Trip string
		Bookings                      []struct{ What, Ref string }
	}
	if run.State != perdure.Completed || json.Unmarshal(run.Result, &got) != nil || run.Attempt != attempt {
		w.T.Fatalf("run %s: %s in attempt %d with %s (error %+v), want completed in attempt %d",
			id, run.State, run.Attempt, run.Result, run.Error, attempt)
	}
	if got.Trip != "booked" || got.City != "Köln" || got.By != "ann" ||
		got.Price != "price ok" || got.Ticket != "ticket ok" || len(got.Bookings) != 2 ||
		got.Bookings[0].Ref != "reserve-flight ok" || got.Bookings[1].Ref != "reserve-room ok" {
		w.T.Errorf("run %s: result = %s, want the trip with both bookings and the ticket", id, run.Result)
	}
	w.checkRecordedOnce(id, "plan", "wait:bookings", "price", "wait:confirmation", "ticket")
	for step, want := range map[string]int{"wait:bookings": 3, "wait:confirmation": 1} {
		if got := w.commits(step)[0].Ack; len(got) != want {
			w.T.Errorf("run %s: items acknowledged with %s = %v, want %d of them", id, step, got, want)
		}
	}
}

func (w *world) checkInvariants() {
	w.T.Helper()
	if inv, err := admin.New(w.C).Invariants(w.Ctx); err != nil || len(inv.Violations) > 0 {
		w.T.Errorf("invariants = %+v (error %v), want no violations", inv, err)
	}
}

// once has the questions of a trip that is confirmed, each asked once. The given ones are asked twice.
func once(twice ...string) map[string]int {
	out := map[string]int{"plan": 1, "search-flight": 1, "search-room": 1, "reserve-flight": 1, "reserve-room": 1,
		"price": 1, "ticket": 1}
	for _, what := range twice {
		out[what] = 2
	}
	return out
}

func TestTripWithChildrenAndSignal(t *testing.T) {
	w := open(t)
	w.node(w.Key())
	id := w.trip("10m")
	w.suspended(id, "price")
	w.confirm(id)
	w.checkBooked(id, 1)
	w.desk.checkCalls(t, once())
	tree, err := w.C.Tree(w.Ctx, id, "")
	if err != nil || len(tree.Runs) != 3 {
		t.Fatalf("tree of the trip = %+v (error %v), want the trip and two children", tree, err)
	}
	for _, run := range tree.Runs {
		if run.State != perdure.Completed || run.Attempt != 1 {
			t.Errorf("run %s of the tree: %s in attempt %d, want completed in attempt 1", run.RunID, run.State,
				run.Attempt)
		}
	}
	w.checkInvariants()
}

// The results of the children are more than a grant carries, first as inbox and then as journal. The
// worker fetches the rest.
func TestLargeInboxAndJournalAreFetched(t *testing.T) {
	w := open(t)
	w.desk.large = map[string]bool{"search-flight": true, "search-room": true}
	w.node(w.Key())
	id := w.trip("10m")
	w.suspended(id, "price")
	w.confirm(id)
	w.checkBooked(id, 1)
	w.desk.checkCalls(t, once())
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, list := range []string{"inbox", "journal"} {
		if !w.fetched[list] {
			t.Errorf("the worker has fetched no page of the %s, want one", list)
		}
	}
}

func TestSignalBeforeItsWait(t *testing.T) {
	w := open(t)
	id := w.trip("10m")
	w.confirm(id)
	w.node(w.Key())
	w.checkBooked(id, 1)
	w.desk.checkCalls(t, once())
}

func TestTripWithoutConfirmation(t *testing.T) {
	w := open(t)
	w.node(w.Key())
	id := w.trip("50ms")
	if run := w.End(id); run.State != perdure.Completed || !strings.Contains(string(run.Result), "not confirmed") {
		t.Errorf("run %s: %s with %s (error %+v), want a trip that was not confirmed", id, run.State, run.Result,
			run.Error)
	}
	want := once()
	delete(want, "ticket")
	want["return-flight"], want["return-room"] = 1, 1
	w.desk.checkCalls(t, want)
}

// Workers are killed while a child works, while nothing is to be done, and in the middle of a step.
// The steps that were cut off are executed again, and no others.
func TestRunContinuesAfterWorkerKill(t *testing.T) {
	w := openWith(t, shortLease())
	first := w.node(w.Key())
	answerRoom := w.desk.hold("reserve-room")
	id := w.trip("10m")
	w.asked("reserve-room", 1)
	w.until("the flight is booked", func() bool {
		tree, err := w.C.Tree(w.Ctx, id, "")
		return err == nil && slices.ContainsFunc(tree.Runs, func(r api.Run) bool {
			return r.State == perdure.Completed
		})
	})
	first.kill()
	answerRoom()

	second := w.node(w.Key())
	w.suspended(id, "price")
	second.kill()
	w.confirm(id)

	answerTicket := w.desk.hold("ticket")
	third := w.node(w.Key())
	w.asked("ticket", 1)
	third.kill()
	answerTicket()

	w.node(w.Key())
	w.checkBooked(id, 2)
	w.desk.checkCalls(t, once("reserve-room", "ticket"))
	w.checkInvariants()
}

// A step takes longer than the lease.
func TestHeartbeatsKeepTheLease(t *testing.T) {
	p := shortLease()
	w := openWith(t, p)
	w.node(w.Key())
	answer := w.desk.hold("price")
	id := w.trip("10m")
	w.asked("price", 1)
	begin := w.run(id)
	w.until("the worker is heard from after the first lease", func() bool {
		return w.run(id).SeenAt.Time().Sub(begin.SeenAt.Time()) > p.Lease
	})
	answer()
	w.suspended(id, "price")
	w.confirm(id)
	w.checkBooked(id, 1)
	w.desk.checkCalls(t, once())
}

func TestCancelledTripGivesBookingsBack(t *testing.T) {
	for _, c := range []struct {
		name string
		// begin brings a trip to the point where it is cancelled.
		begin    func(*world) perdure.RunID
		returned []string
	}{
		{"suspended", func(w *world) perdure.RunID {
			id := w.trip("10m")
			w.suspended(id, "price")
			return id
		}, []string{"return-flight", "return-room"}},
		{"in a step", func(w *world) perdure.RunID {
			w.desk.hold("price")
			id := w.trip("10m")
			w.asked("price", 1)
			w.until("the worker listens for news of the run", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.listened[id]
			})
			return id
		}, []string{"return-flight", "return-room"}},
		{"a child in a step", func(w *world) perdure.RunID {
			w.desk.hold("reserve-room")
			id := w.trip("10m")
			w.asked("reserve-room", 1)
			w.until("the flight is booked", func() bool {
				tree, err := w.C.Tree(w.Ctx, id, "")
				return err == nil && slices.ContainsFunc(tree.Runs, func(r api.Run) bool {
					return r.State == perdure.Completed
				})
			})
			return id
		}, []string{"return-flight"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			w.node(w.Key())
			id := c.begin(w)
			run, err := w.C.Cancel(w.Ctx, id, "enough", time.Minute)
			if err != nil || run.State != perdure.Cancelled || run.Cancel.AckedAt == 0 || run.Attempt != 1 {
				t.Fatalf("cancelled run = %+v (error %v), want an acknowledged cancel in attempt 1", run, err)
			}
			for _, what := range []string{"return-flight", "return-room"} {
				want := 0
				if slices.Contains(c.returned, what) {
					want = 1
				}
				if got := len(w.desk.keys(what)); got != want {
					t.Errorf("the desk was asked %d times for %s, want %d", got, what, want)
				}
			}
			w.until("every run of the tree has ended", func() bool {
				tree, err := w.C.Tree(w.Ctx, id, "")
				return err == nil && !slices.ContainsFunc(tree.Runs, func(r api.Run) bool { return r.State.Live() })
			})
			w.checkInvariants()
		})
	}
}

// The server is away when a step has ended, and the first answer after its return is lost.
func TestCommitIsRepeatedUntilAnswered(t *testing.T) {
	w := open(t)
	w.node(w.Key())
	answer := w.desk.hold("price")
	id := w.trip("10m")
	w.asked("price", 1)
	w.Down()
	answer()
	w.until("the commit was sent twice", func() bool { return len(w.commits("price")) >= 2 })
	lost := 0
	w.mu.Lock()
	w.loseAnswer = func(c perdure.Commit) bool {
		if len(c.Journal) > 0 && c.Journal[0].Key == "price" && w.Live() != nil {
			lost++
		}
		return lost == 1
	}
	w.mu.Unlock()
	w.Reopen()
	w.suspended(id, "price")
	w.confirm(id)
	w.checkBooked(id, 1)
	w.desk.checkCalls(t, once())

	sent := w.commits("price")
	for _, s := range sent {
		if s.ID != sent[0].ID || s.body != sent[0].body {
			t.Errorf("the commit was sent as %s and as %s, want the same each time", sent[0].body, s.body)
		}
	}
	var answers []string
	for _, s := range sent {
		if s.status == http.StatusOK {
			answers = append(answers, s.answer)
		}
	}
	if len(answers) != 2 || answers[0] != answers[1] {
		t.Errorf("answers of the server = %q, want two that are equal", answers)
	}
	w.checkInvariants()
}

// A worker is stopped for longer than its lease, and another one finishes the run. The first one
// then learns that it has lost the run, does nothing more for it, and serves other runs.
func TestFrozenWorkerStopsAtStaleEpoch(t *testing.T) {
	for _, by := range []string{"commit", "heartbeat"} {
		t.Run("by "+by, func(t *testing.T) {
			w := openWith(t, shortLease())
			first := w.node(w.Key())
			answer := w.desk.hold("price")
			id := w.trip("10m")
			w.asked("price", 1)
			if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			w.desk.pass("price")
			second := w.node(w.Key())
			w.suspended(id, "price")
			w.confirm(id)
			w.checkBooked(id, 2)
			second.kill()

			if by == "commit" {
				answer()
				w.mu.Lock()
				w.cutHeartbeats = true
				w.mu.Unlock()
			}
			if err := first.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			w.until("the frozen worker has given up its run", func() bool {
				return strings.Contains(first.out.String(), "is no longer ours")
			})
			w.desk.checkCalls(t, once("price"))
			sent := w.commits("price")
			last := sent[len(sent)-1]
			if refused := strings.Contains(last.answer, "stale_epoch"); refused != (by == "commit") {
				t.Errorf("answer to the last commit of the step = %d %s, want it refused: %v",
					last.status, last.answer, by == "commit")
			}
			w.mu.Lock()
			w.cutHeartbeats = false
			w.mu.Unlock()
			other := w.trip("0s")
			if run := w.End(other); run.State != perdure.Completed {
				t.Errorf("run %s of the worker that was frozen: %s (error %+v), want completed", other, run.State,
					run.Error)
			}
			w.checkInvariants()
		})
	}
}

func TestWorkerReleasesItsRunsOnSIGTERM(t *testing.T) {
	w := open(t)
	first := w.node(w.Key())
	answer := w.desk.hold("price")
	id := w.trip("10m")
	w.asked("price", 1)
	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.until("the worker drains", func() bool { return strings.Contains(first.out.String(), "draining") })
	answer()
	if err := first.Wait(); err != nil {
		t.Errorf("exit of the worker = %v, want success", err)
	}
	if run := w.run(id); run.State != perdure.Queued {
		t.Errorf("run %s after its release: %s, want queued", id, run.State)
	}
	w.confirm(id)
	w.node(w.Key())
	w.checkBooked(id, 1)
	w.desk.checkCalls(t, once())
}

// A release has a defect behind its third wait. It holds the run and spends no attempt. The fixed
// release continues, and executes no recorded step again.
func TestDefectHoldsRunUntilNextBuild(t *testing.T) {
	for _, c := range []struct {
		name, before, after string // the edit
		code                perdure.Code
		message             string
	}{
		{"a mistake", "const ticket =", "bookings.mop(); const ticket =", "panic", "bookings.mop is not a function"},
		{"another child of the same key", "const ticket =",
			`await run.join("more", [{ key: "flight", kind: "booking-ts" }]); const ticket =`,
			perdure.CodeNondeterminism, `child "flight" was spawned with another kind or input`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			checkCompiled(t)
			first := w.nodeOf(edited(t, c.before, c.after), w.Key())
			id := w.trip("10m")
			w.suspended(id, "price")
			w.confirm(id)
			w.until("the run is held", func() bool { return w.run(id).Hold != nil })
			if hold := w.run(id).Hold; hold.Code != c.code || !strings.Contains(hold.Message, c.message) {
				t.Errorf("run %s is held with %+v, want %s: %s", id, hold, c.code, c.message)
			}
			if err := first.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := first.Wait(); err != nil {
				t.Errorf("exit of the first release = %v, want success", err)
			}
			w.node(w.Key())
			w.checkBooked(id, 1)
			w.desk.checkCalls(t, once())
			w.mu.Lock()
			if len(w.builds) != 2 || w.builds[""] {
				t.Errorf("builds that polled = %v, want two with a name", w.builds)
			}
			w.mu.Unlock()
			w.checkInvariants()
		})
	}
}

// A connection that breaks in a step is a TypeError too, and no defect: it costs an attempt.
func TestFailureOfStepIsNoDefect(t *testing.T) {
	w := openWith(t, shortLease())
	w.desk.cut["price"] = true
	w.node(w.Key())
	id := w.trip("10m")
	w.suspended(id, "price")
	w.confirm(id)
	w.checkBooked(id, 2)
	w.desk.checkCalls(t, once("price"))
}

func TestWorkerWithWrongKeyExits(t *testing.T) {
	w := open(t)
	p := w.node("prd_wrong")
	if err := p.Wait(); err == nil || !strings.Contains(p.out.String(), "refuses this worker") {
		t.Errorf("worker with a wrong key: %v, want an error that the server refuses it\n%s", err, p.out)
	}
}
