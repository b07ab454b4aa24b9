package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
)

// An attacker is a client of a hostile tenant. Its calls may be refused. None may make the server
// fail.
type attacker struct {
	addr     string
	no       noise
	ctx      context.Context
	key      string
	platform string // a key of the platform
	http     *http.Client
	paths    *routeList

	// loading is set while the attacker prepares the attack. Nothing is refused then: a call is
	// repeated until it succeeds.
	loading atomic.Bool

	mu   sync.Mutex
	done attacked
}

// newAttacker returns an attacker that makes no attack yet.
func newAttacker(spec attackSpec) (*attacker, error) {
	paths, err := routesOf(spec.Addr)
	if err != nil {
		return nil, err
	}
	return &attacker{addr: spec.Addr, no: noisy(), key: spec.Key, platform: spec.Platform, paths: paths,
		done: attacked{Routes: map[string]bool{}},
		http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}, nil
}

// prepare loads what an attack needs.
func (a *attacker) prepare(x attack) (do func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	a.ctx = ctx
	a.loading.Store(true)
	do = x.begin(a)
	a.loading.Store(false)
	if ctx.Err() != nil {
		return nil, errors.New("the set-up took too long")
	}
	if wrong := a.report().Wrong; len(wrong) > 0 {
		return nil, fmt.Errorf("the set-up failed: %s", wrong)
	}
	return do, nil
}

func (a *attacker) report() attacked {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.done
}

// happened counts attacks.
func (a *attacker) happened(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done.Happened += n
}

func (a *attacker) wrong(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.done.Wrong) < 5 {
		a.done.Wrong = append(a.done.Wrong, fmt.Sprintf(format, args...))
	}
}

// called remembers the route of a call.
func (a *attacker) called(method, path string) {
	if route := a.paths.of(method, path); route != "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.done.Routes[route] = true
	}
}

// call makes a call, and returns the status of the answer.
func (a *attacker) call(method, path string, in, out any) int {
	return a.callAs(a.key, method, path, in, out)
}

func (a *attacker) callAs(key, method, path string, in, out any) int {
	var body []byte
	switch in := in.(type) {
	case nil:
	case []byte:
		body = in
	default:
		body, _ = json.Marshal(in)
	}
	a.called(method, path)
	for {
		status, b := a.once(key, method, path, body, in != nil)
		again := status == 429 || status == 503 || status == 507
		switch {
		case a.loading.Load() && again:
			time.Sleep(20 * time.Millisecond)
			continue
		case a.loading.Load() && status/100 != 2, status >= 500 && !again:
			a.wrong("%s %s: %d %.300s", method, path, status, b)
		}
		if out != nil && status/100 == 2 {
			_ = json.Unmarshal(b, out) // an answer that is none leaves it empty
		}
		return status
	}
}

// once sends a request once. The status is 0 if the attack is over, or the connection was closed.
func (a *attacker) once(key, method, path string, body []byte, typed bool) (int, []byte) {
	req, err := http.NewRequestWithContext(a.ctx, method, "http://"+a.addr+path, bytes.NewReader(body))
	if err != nil {
		a.wrong("%s %s: %v", method, path, err)
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if typed {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.http.Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, b
}

// hit makes a call that is the attack itself: it is counted, if it succeeds or finds nothing.
func (a *attacker) hit(method, path string, in, out any) int {
	status := a.count(a.call(method, path, in, out))
	if status == 400 || status == 413 || status == 422 {
		a.wrong("%s %s: %d, which is no attack", method, path, status)
	}
	return status
}

// count counts an answer.
func (a *attacker) count(status int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case status/100 == 2 || status == 404 || status == 409:
		a.done.Happened++
	case status == 429 || status == 503 || status == 507:
		a.done.Refused++
	}
	return status
}

// each calls a function n times, several at once, until the attack is over.
func (a *attacker) each(n, atOnce int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for a.ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				do(i)
			}
		})
	}
	wg.Wait()
}

// storm calls a function repeatedly, several at once, until the attack is over.
func (a *attacker) storm(atOnce int, do func(i int)) { a.each(1<<40, atOnce, do) }

// beside calls functions at the same time.
func (a *attacker) beside(do ...func()) {
	var wg sync.WaitGroup
	for _, f := range do {
		wg.Go(f)
	}
	wg.Wait()
}

func (a *attacker) submit(in obj) string {
	var r runView
	a.call("POST", "/api/v1/runs", in, &r)
	return r.RunID
}

// thread makes a thread.
func (a *attacker) thread() string {
	var th struct {
		ID string `json:"thread_id"`
	}
	a.call("POST", "/api/v1/threads", obj{}, &th)
	return th.ID
}

// load submits n runs, a thousand with each call.
func (a *attacker) load(n int, run func(i int) obj) []string {
	const many = 1000
	ids := make([]string, n)
	a.each((n+many-1)/many, 4, func(k int) {
		var left []int // those without an id
		for i := k * many; i < min(n, (k+1)*many); i++ {
			left = append(left, i)
		}
		for len(left) > 0 && a.ctx.Err() == nil {
			left = a.loadBatch(ids, left, run)
		}
	})
	return ids
}

// loadBatch submits some runs of a load, and returns those that the server had no room for.
func (a *attacker) loadBatch(ids []string, of []int, run func(i int) obj) (left []int) {
	runs := make([]obj, len(of))
	for k, i := range of {
		runs[k] = run(i)
	}
	var out struct {
		Results []struct {
			Run   runView `json:"run"`
			Error *struct {
				Code   perdure.Code `json:"code"`
				Detail string       `json:"detail"`
			} `json:"error"`
		} `json:"results"`
	}
	a.call("POST", "/api/v1/runs/batch", obj{"runs": runs}, &out)
	for k, r := range out.Results {
		switch {
		case r.Error == nil:
			ids[of[k]] = r.Run.RunID
		case r.Error.Code == perdure.CodeTooMany:
			left = append(left, of[k])
		default:
			a.wrong("run %d was refused: %s: %s", of[k], r.Error.Code, r.Error.Detail)
		}
	}
	return left
}

// alike makes every run of a load the same.
func alike(in obj) func(int) obj { return func(int) obj { return in } }

// lease leases up to n runs of a kind, and starts them.
func (a *attacker) lease(kind string, n int) (runs []runView) {
	for len(runs) < n && a.ctx.Err() == nil {
		var p polled
		a.call("POST", "/api/v1/workers/w/poll",
			obj{"slots": min(n-len(runs), 500), "start": true, "wait": "0s", "kinds": []string{kind}}, &p)
		if len(p.Runs) == 0 {
			break
		}
		runs = append(runs, p.Runs...)
	}
	return runs
}

// holds submits n runs of a kind and leases them.
func (a *attacker) holds(n int, in obj) []runView {
	a.load(n, alike(in))
	runs := a.lease(in["kind"].(string), n)
	if len(runs) != n {
		a.wrong("%d runs of %v were granted, want %d", len(runs), in["kind"], n)
	}
	return runs
}

// committing is the body of a call with one commit.
func committing(r runView, id string, c obj) obj {
	c["commit_id"], c["run_id"], c["epoch"] = id, r.RunID, r.Epoch
	return obj{"commits": []obj{c}}
}

func (a *attacker) commit(r runView, id string, c obj) int {
	return a.call("POST", "/api/v1/workers/w/commit", committing(r, id, c), nil)
}

// end ends many leased runs with one outcome, a thousand with each call.
func (a *attacker) end(runs []runView, outcome obj) {
	for part := range slices.Chunk(runs, 1000) {
		var commits []obj
		for _, r := range part {
			commits = append(commits, obj{"commit_id": "end", "run_id": r.RunID, "epoch": r.Epoch, "outcome": outcome})
		}
		a.call("POST", "/api/v1/workers/w/commit", obj{"commits": commits}, nil)
	}
}

// held opens connections, sends something on each, and reads nothing until the attack is over.
func (a *attacker) held(n int, method, path string) {
	a.called(method, path)
	var wg sync.WaitGroup
	for range n {
		c, err := net.Dial("tcp", a.addr)
		if err != nil {
			continue
		}
		wg.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(a.no.attack + time.Second))
			for range 50 {
				if _, err := io.WriteString(c, a.request(method, path)); err != nil {
					break
				}
				a.happened(1)
			}
			<-a.ctx.Done()
		})
	}
	wg.Wait()
}

func (a *attacker) request(method, path string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + a.key + "\r\n\r\n"
}

// slowly opens connections without a key, and keeps them all busy with requests that never end.
func (a *attacker) slowly(n int) {
	a.each(n, n, func(int) {
		for a.ctx.Err() == nil {
			c, err := net.Dial("tcp", a.addr)
			if err != nil {
				continue
			}
			_, err = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
			for err == nil && a.ctx.Err() == nil {
				a.happened(1)
				select {
				case <-time.After(500 * time.Millisecond):
				case <-a.ctx.Done():
				}
				_, err = io.WriteString(c, "X: y\r\n")
			}
			c.Close()
		}
	})
}

// joins waits for a run on n connections, and calls a function when all of them wait. It returns when all
// of them have an answer.
func (a *attacker) joins(conns []net.Conn, id string, then func()) {
	path := "/api/v1/runs/" + id + "/join?timeout=60s"
	a.called("GET", path)
	for _, c := range conns {
		if _, err := io.WriteString(c, a.request("GET", path)); err != nil {
			return
		}
	}
	then()
	// Some are not let in and get no answer. They wait together, and a millisecond each afterwards. One
	// goroutine reads: thousands would take the processors from the bystander by themselves.
	until, buf := time.Now().Add(a.no.attack), make([]byte, 4096)
	for _, c := range conns {
		deadline := time.Now().Add(time.Millisecond)
		if deadline.Before(until) {
			deadline = until
		}
		_ = c.SetReadDeadline(deadline)
		if n, err := c.Read(buf); err == nil && n > 0 {
			a.happened(1)
		}
	}
}

// watch opens a WebSocket, sends it messages, and counts what it gets until the attack is over.
func (a *attacker) watch(key string, messages []obj) {
	a.called("GET", "/api/v1/ws")
	conn, _, err := websocket.Dial(a.ctx, "ws://"+a.addr+"/api/v1/ws?watch=none",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(64 << 20)
	for _, m := range messages {
		text, _ := json.Marshal(m)
		if conn.Write(a.ctx, websocket.MessageText, text) != nil {
			return
		}
	}
	for {
		_, text, err := conn.Read(a.ctx)
		if err != nil {
			return
		}
		if bytes.HasPrefix(text, []byte(`{"type":"error"`)) && !bytes.Contains(text, []byte("too_many_requests")) {
			a.wrong("a watch was answered with %.300s", text)
		}
		a.happened(1)
	}
}

// put uploads an artifact.
func (a *attacker) put(r runView, name, content string) int {
	path := fmt.Sprintf("/api/v1/runs/%s/artifacts/%s?epoch=%d", r.RunID, name, r.Epoch)
	a.called("PUT", path)
	status, _ := a.once(a.key, "PUT", path, []byte(content), false)
	return status
}

// A routeList has the routes of a server.
type routeList struct {
	all    []string // "GET /api/v1/runs/{id}"
	shapes []*regexp.Regexp
}

// parameter is a parameter of a path, quoted for a regular expression.
var parameter = regexp.MustCompile(`\\\{[^}]*\\\}`)

// routesOf reads the routes from a server's OpenAPI document.
func routesOf(addr string) (*routeList, error) {
	res, err := http.Get("http://" + addr + "/openapi.json")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil {
		return nil, err
	}
	out := new(routeList)
	for path, methods := range doc.Paths {
		for method := range methods {
			if slices.Contains([]string{"get", "post", "put", "patch", "delete"}, method) {
				out.all = append(out.all, strings.ToUpper(method)+" "+path)
			}
		}
	}
	// A route without a parameter goes before one with it: "/runs/counts" is no run.
	slices.SortFunc(out.all, func(a, b string) int {
		if n := strings.Count(a, "{") - strings.Count(b, "{"); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	for _, route := range out.all {
		shape := parameter.ReplaceAllString(regexp.QuoteMeta(route), `[^/]+`)
		out.shapes = append(out.shapes, regexp.MustCompile("^"+shape+"$"))
	}
	return out, nil
}

// of returns the route of a request.
func (l *routeList) of(method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	for i, shape := range l.shapes {
		if shape.MatchString(method + " " + path) {
			return l.all[i]
		}
	}
	return ""
}
