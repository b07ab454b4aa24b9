package httpd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/metrics"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/redact"
)

var update = flag.Bool("update", false, "write the printed docs anew")

// answered notes which routes gave which statuses, each checked against the OpenAPI document.
var answered sync.Map // "GET /path 200" → true

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" &&
		flag.Lookup("test.list").Value.String() == "" {
		code = everyRouteAnswered()
	}
	os.Exit(code)
}

// everyRouteAnswered fails when a route of the table never gave one of the answers that it promises.
func everyRouteAnswered() (code int) {
	for _, r := range (&Server{}).table() {
		for _, status := range append(r.more, r.usual()) {
			if _, ok := answered.Load(fmt.Sprint(r.method, " ", r.pattern, " ", status)); !ok {
				fmt.Printf("FAIL: no test has %s %s answer %d\n", r.method, r.pattern, status)
				code = 1
			}
		}
	}
	return code
}

// long is longer than any test takes. With Poll at this, nothing is found by looking again: what wakes is a ring.
const long = time.Hour

type setup struct {
	policy   func(*perdure.Policy)
	poll     time.Duration // default: long
	watchdog bool
	ready    func() error
	store    *store.Options                  // default: what the environment names
	entropy  io.Reader                       // of ids; default: the system's
	counters *atomic.Pointer[doorbell.Stats] // of the bell; default: those of a bell without other nodes
	deaf     bool                            // no ring reaches the server
	broken   bool                            // it may log errors: its store will fail
	options  func(*Options)
	signer   *perdure.Signer
	secrets  *redact.Set
}

// A countingBell is a bell of one node with counters that a test sets.
type countingBell struct {
	*doorbell.Local
	counters *atomic.Pointer[doorbell.Stats]
}

func (b *countingBell) Stats() doorbell.Stats {
	if b.counters == nil {
		return b.Local.Stats()
	}
	return *b.counters.Load()
}

// A world is a server without a socket, with the store that the environment names.
type world struct {
	t      *testing.T
	s      *Server
	e      *engine.Engine
	bell   *doorbell.Local
	doc    *document
	admin  string // a key of the platform
	key    string // one of tenant "a" with every scope
	person string // one that may decide, where a test has made it
	n      int

	stop   func()        // ends what the server does beside answering
	writes *atomic.Int64 // batches that were written
	prints map[perdure.TenantID]print
}

func newWorld(t *testing.T, opt setup) *world {
	t.Helper()
	log := slog.New(failing{t})
	if opt.broken {
		log = slog.New(slog.DiscardHandler)
	}
	alone := opt.store == nil // a test that names a store may open it twice
	if alone {
		at := storetest.Options(t)
		opt.store = &at
	}
	at := *opt.store
	at.Logger = log
	if opt.secrets != nil {
		at.Redact = opt.secrets.Text
	}
	writes := new(atomic.Int64)
	counts := metrics.New()
	at.Observe = func(b store.Written) {
		writes.Add(1)
		counts.Written(b)
	}
	st, err := store.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	p := perdure.DefaultPolicy()
	if opt.policy != nil {
		opt.policy(&p)
	}
	bell := &doorbell.Local{}
	e, err := engine.New(st, engine.Options{Policy: &p, Bell: bell, Counter: counts, Logger: log, Entropy: opt.entropy,
		Signer: opt.signer, Secrets: opt.secrets, Alone: alone})
	if err != nil {
		t.Fatal(err)
	}
	if opt.poll == 0 {
		opt.poll = long
	}
	sopt := Options{Node: "n1", Secrets: opt.secrets, Metrics: counts, Rules: watchdog.RuleNames(),
		StoredRule: watchdog.StoredName, Poll: opt.poll, Logger: log, Ready: opt.ready}
	if opt.options != nil {
		opt.options(&sopt)
	}
	if opt.deaf {
		bell = &doorbell.Local{}
	}
	s, err := New(e, &countingBell{bell, opt.counters}, sopt)
	if err != nil {
		t.Fatal(err)
	}
	counts.Look(e, s.Attached)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	run(s.Run)
	if opt.watchdog {
		dog := watchdog.New(e, log)
		dog.OnActions = counts.Acted
		run(dog.Run)
	}
	w := &world{t: t, s: s, e: e, bell: bell, doc: readDocument(t, s.openapi), writes: writes,
		prints: make(map[perdure.TenantID]print)}
	w.stop = func() {
		s.Shutdown()
		stop()
		wg.Wait()
	}
	t.Cleanup(func() {
		w.stop()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	w.admin = w.newKey("default", func(op *access.CreateKey) { op.Platform = true })
	w.key = w.newKey("a", nil)
	return w
}

func (w *world) newKey(tenant perdure.TenantID, change func(*access.CreateKey)) string {
	w.t.Helper()
	op := &access.CreateKey{Tenant: tenant, Name: "test", Scopes: perdure.Scopes}
	if change != nil {
		change(op)
	}
	if err := w.e.Do(context.Background(), op); err != nil {
		w.t.Fatal(err)
	}
	return op.Secret
}

// approver makes a key of tenant a that may decide: one that works on runs may not.
func (w *world) approver() string {
	w.t.Helper()
	return w.newKey("a", func(op *access.CreateKey) {
		op.Name, op.Scopes = "ada", []perdure.Scope{perdure.ScopeRead, perdure.ScopeControl, perdure.ScopeApprove}
	})
}

// failing is a log handler that fails the test when an error is logged.
type failing struct{ t *testing.T }

func (failing) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h failing) WithAttrs([]slog.Attr) slog.Handler         { return h }
func (h failing) WithGroup(string) slog.Handler              { return h }
func (h failing) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		var attrs []string
		r.Attrs(func(a slog.Attr) bool {
			attrs = append(attrs, a.String())
			return true
		})
		h.t.Errorf("logged: %s %s", r.Message, strings.Join(attrs, " "))
	}
	return nil
}

type obj = map[string]any

// An answer is the response to a call.
type answer struct {
	t      *testing.T
	what   string
	status int
	header http.Header
	body   []byte
}

// ask is a request before it is sent.
type ask struct {
	method, path string
	key          string // bearer; empty: none
	body         string
	header       http.Header
	ctx          context.Context
}

func (w *world) send(a ask) *answer {
	w.t.Helper()
	var body io.Reader = http.NoBody
	if a.body != "" {
		body = strings.NewReader(a.body)
	}
	req := httptest.NewRequest(a.method, a.path, body)
	req.Host = "localhost"
	if a.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	for name, values := range a.header {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	if a.ctx != nil {
		req = req.WithContext(a.ctx)
	}
	rec := httptest.NewRecorder()
	w.s.Handler().ServeHTTP(rec, req)
	out := &answer{w.t, a.method + " " + a.path, rec.Code, rec.Header(), rec.Body.Bytes()}
	w.conforms(req, []byte(a.body), out)
	return out
}

// conforms checks an answer against the OpenAPI document, and the body of an accepted request too.
func (w *world) conforms(req *http.Request, sent []byte, a *answer) {
	w.t.Helper()
	if a.status >= 500 && a.status != http.StatusServiceUnavailable && a.status != http.StatusInsufficientStorage {
		w.t.Errorf("%s: status = %d, want no internal error: %s", a.what, a.status, a.body)
	}
	if a.status >= 400 && a.header.Get("Content-Type") != "application/json" {
		a.problem()
		return
	}
	_, pattern := w.s.muxOf(req.URL.EscapedPath()).Handler(req)
	method, path, _ := strings.Cut(pattern, " ")
	if a.status/100 == 2 && !bytes.Contains(a.body, []byte(`"error":{"code"`)) { // of an entry of a batch
		if err := w.doc.checkRequest(method, path, sent); err != nil {
			w.t.Errorf("%s: body was accepted, and does not match the OpenAPI document: %.300s\n%v", a.what, sent, err)
		}
	}
	if err := w.doc.check(method, path, a.status, a.body); err != nil {
		w.t.Errorf("%s: answer %d does not match the OpenAPI document: %.300s\n%v", a.what, a.status, a.body, err)
	}
	answered.Store(fmt.Sprint(pattern, " ", a.status), true)
}

// problem checks that an answer is a complete problem, and returns it.
func (a *answer) problem() obj {
	a.t.Helper()
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		a.t.Errorf("%s: content type of answer %d = %q, want a problem: %.200s", a.what, a.status, ct, a.body)
		return nil
	}
	p := a.json()
	for _, f := range []string{"type", "title", "detail", "code"} {
		if s, _ := p[f].(string); s == "" {
			a.t.Errorf("%s: the problem has no %s: %s", a.what, f, a.body)
		}
	}
	if p["status"] != float64(a.status) {
		a.t.Errorf("%s: status in the problem = %v, want that of the answer, %d", a.what, p["status"], a.status)
	}
	if p["type"] != "urn:perdure:problem:"+fmt.Sprint(p["code"]) {
		a.t.Errorf("%s: type of the problem = %v, want that of its code %v", a.what, p["type"], p["code"])
	}
	return p
}

func (a *answer) json() (out obj) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, &out); err != nil {
		a.t.Fatalf("%s: answer %d is not JSON: %v: %.200s", a.what, a.status, err, a.body)
	}
	return out
}

// is fails the test unless the answer has that status. It returns the answer's JSON.
func (a *answer) is(status int) obj {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status = %d, want %d: %.500s", a.what, a.status, status, a.body)
	}
	return a.json()
}

// refuses fails the test unless the answer is that problem.
func (a *answer) refuses(status int, code string) obj {
	a.t.Helper()
	p := a.problem()
	if a.status != status || p["code"] != code {
		a.t.Fatalf("%s: problem = %d %v, want %d %s: %.300s", a.what, a.status, p["code"], status, code, a.body)
	}
	return p
}

// do calls with the key of tenant a.
func (w *world) do(method, path, body string, args ...any) *answer {
	w.t.Helper()
	if len(args) > 0 {
		body = fmt.Sprintf(body, args...)
	}
	return w.send(ask{method: method, path: path, key: w.key, body: body})
}

func (w *world) get(path string) *answer {
	w.t.Helper()
	return w.do("GET", path, "")
}

// as gives the same world, asked with another key.
func (w *world) as(key string) *world {
	other := *w
	other.key = key
	return &other
}

// in gives the same world for a part of its test.
func (w *world) in(t *testing.T) *world {
	other := *w
	other.t = t
	return &other
}

// later calls in the background; the channel gets the answer.
func (w *world) later(method, path, body string) <-chan *answer {
	c := make(chan *answer, 1)
	go func() { c <- w.send(ask{method: method, path: path, key: w.key, body: body}) }()
	return c
}

// soon returns the answer of a call in the background, and fails the test if it takes too long.
func soon(t *testing.T, c <-chan *answer) *answer {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(eventually.Left(t)):
		t.Fatal("no answer")
		return nil
	}
}

// ---- lives of runs

// start submits a run and gives its id.
func (w *world) start(body string) string {
	w.t.Helper()
	return w.do("POST", "/api/v1/runs", body).is(201)["run_id"].(string)
}

// lease polls until it gets a run, and gives it.
func (w *world) lease(worker, more string) obj {
	w.t.Helper()
	runs := w.do("POST", "/api/v1/workers/"+worker+"/poll", `{"slots":1,"wait":"0s"`+more+`}`).is(200)["runs"].([]any)
	if len(runs) != 1 {
		w.t.Fatalf("leased %d runs", len(runs))
	}
	return runs[0].(obj)
}

// commit sends one commit of a leased run; rest is its fields beside the ids.
func (w *world) commit(g obj, rest string) *answer {
	w.t.Helper()
	w.n++
	return w.do("POST", "/api/v1/workers/w/commit", `{"commits":[{"commit_id":"c%d","run_id":"%s","epoch":%v,%s}]}`,
		w.n, g["run_id"], g["epoch"], rest)
}

// attached counts those who are attached to the node by these transports.
func (w *world) attached(by ...string) (n int64) {
	all, _ := w.s.Attached()
	for _, name := range by {
		n += all[name]
	}
	return n
}

// streams counts the streams, sockets and waits of the node.
func (w *world) streams() int64 { return w.attached("sse", "websocket", "wait") }

// commits sends one that is taken and gives its result.
func (w *world) commits(g obj, rest string) obj {
	w.t.Helper()
	return w.commit(g, rest).is(200)["results"].([]any)[0].(obj)
}

const complete = `"outcome":{"type":"complete","result":"done"}`

// running starts a run and leases it, begun.
func (w *world) running(body string) obj {
	w.t.Helper()
	w.start(body)
	return w.lease("w", `,"start":true`)
}

// sleeping suspends a new run on a wait.
func (w *world) sleeping(body, wait string) (g, result obj) {
	w.t.Helper()
	g = w.running(body)
	return g, w.commits(g, `"waits":[`+wait+`],"outcome":{"type":"suspend"}`)
}

// fenced returns a lease that has been fenced: another worker holds the run.
func (w *world) fenced(body string) (old, held obj) {
	w.t.Helper()
	old = w.running(body)
	w.do("POST", "/api/v1/workers/w/release", `{"runs":[{"run_id":"%s","epoch":%v}]}`, old["run_id"],
		old["epoch"]).is(200)
	return old, w.lease("w2", `,"start":true`)
}

func (w *world) events(id string) []obj {
	w.t.Helper()
	var out []obj
	for _, e := range w.get("/api/v1/runs/" + id + "/events").is(200)["events"].([]any) {
		out = append(out, e.(obj))
	}
	return out
}

func (w *world) types(id string) (out []string) {
	w.t.Helper()
	for _, e := range w.events(id) {
		out = append(out, e["type"].(string))
	}
	return out
}

// ---- what is stored

// fingerprint is a hash of what is stored, of one tenant or (empty) of all. Workers' signs of life are left
// out: they are no state of anybody's. Everything is read again only if something was written since.
func (w *world) fingerprint(tenant perdure.TenantID) string {
	w.t.Helper()
	writes := w.writes.Load()
	if p, ok := w.prints[tenant]; ok && p.writes == writes {
		return p.hash
	}
	h := sha256.New()
	err := w.e.Store().View(context.Background(), func(v *store.View) error {
		rows, err := storetest.Dump(v, tenant, "workers")
		for _, row := range rows {
			fmt.Fprintln(h, row)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	hash := fmt.Sprintf("%x", h.Sum(nil))
	w.prints[tenant] = print{writes, hash}
	return hash
}

// A print is what was stored after so many writes.
type print struct {
	writes int64
	hash   string
}

// stored tells whether a text stands anywhere in the store.
func (w *world) stored(text string) bool {
	w.t.Helper()
	var all []string
	err := w.e.Store().View(context.Background(), func(v *store.View) (err error) {
		all, err = storetest.Dump(v, "")
		return err
	})
	has := func(text string) bool {
		return slices.ContainsFunc(all, func(row string) bool { return strings.Contains(row, text) })
	}
	if err != nil || !has("reader") {
		w.t.Fatalf("%v: %s", err, all)
	}
	return has(text)
}

func mustContain(t *testing.T, list []string, want ...string) {
	t.Helper()
	for _, s := range want {
		if !slices.Contains(list, s) {
			t.Errorf("%v lacks %s", list, s)
		}
	}
}

func contains(b []byte, s string) bool { return bytes.Contains(b, []byte(s)) }
