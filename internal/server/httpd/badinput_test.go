package httpd

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A bad row is a request that has to be refused, and how.
type bad struct {
	Name    string
	Method  string
	Path    string
	Headers http.Header
	Key     string // "none", "admin", "approver"; default: a key of the tenant with every scope
	Body    string
	Base64  string // a body that is no text
	Gen     []struct {
		Text  string
		Times int // %d in the text is the count
	}
	Status int
	Code   string
	Field  string
}

func (b *bad) body(t testing.TB) string {
	t.Helper()
	switch {
	case b.Base64 != "":
		raw, err := base64.StdEncoding.DecodeString(b.Base64)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	case b.Gen != nil:
		var out strings.Builder
		for _, g := range b.Gen {
			times := max(g.Times, 1)
			if !strings.Contains(g.Text, "%d") {
				out.WriteString(strings.Repeat(g.Text, times))
				continue
			}
			for i := range times {
				fmt.Fprintf(&out, g.Text, i)
			}
		}
		return out.String()
	}
	return b.Body
}

// ask makes the request.
func (b *bad) ask(w *world, vars *strings.Replacer) ask {
	w.t.Helper()
	a := ask{method: b.Method, path: vars.Replace(b.Path), key: w.key, body: b.body(w.t), header: b.Headers}
	if strings.Contains(a.body, "$") { // looking for every name in megabytes takes longer than the answer
		a.body = vars.Replace(a.body)
	}
	switch b.Key {
	case "none":
		a.key = ""
	case "admin":
		a.key = w.admin
	case "approver":
		a.key = w.person
	}
	return a
}

func badRows(t testing.TB) map[string][]bad {
	t.Helper()
	files, err := filepath.Glob("testdata/bad/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]bad{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			var b bad
			d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
			d.DisallowUnknownFields()
			if err := d.Decode(&b); err != nil {
				t.Fatalf("%s:%d: %v", file, n, err)
			}
			name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
			out[name] = append(out[name], b)
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// surroundings are the things that bad rows name: $RUNNING, $THREAD and so on.
func surroundings(w *world) *strings.Replacer {
	w.t.Helper()
	thread := func() string { return w.do("POST", "/api/v1/threads", `{}`).is(201)["thread_id"].(string) }
	ended := w.running(`{"kind":"ended"}`)
	w.commits(ended, complete)
	asleep, done := w.sleeping(`{"kind":"asleep"}`, `{"id":"cb","type":"callback"}`)
	token := done["callbacks"].([]any)[0].(obj)["token"].(string)
	_, done = w.sleeping(`{"kind":"answered"}`,
		`{"id":"cb","type":"callback"},{"id":"more","type":"signal","name":"never"}`)
	used := done["callbacks"].([]any)[0].(obj)["token"].(string)
	w.send(ask{method: "POST", path: "/api/v1/callbacks/" + used, body: `{"result":"first"}`}).is(200)
	w.lease("w", `,"start":true`) // woken by its callback: nobody shall find it
	asks := func(id string) string {
		return `{"id":"` + id + `","type":"approval","name":"` + id +
			`","approval":{"action":1,"form":[{"name":"n","type":"number","required":true}]}}`
	}
	asking, _ := w.sleeping(`{"kind":"asking"}`, asks("first")+","+asks("second")+","+asks("third")+
		`,{"id":"go","type":"signal","name":"approve_go"}`)
	w.person = w.approver()
	approval := func(wait string) string {
		return string(perdure.IDOfApproval("a", perdure.RunID(asking["run_id"].(string)), wait))
	}
	w.as(w.person).do("POST", "/api/v1/approvals/"+approval("second"), `{"decision":"reject"}`).is(200)
	g := w.lease("w", `,"start":true`)
	w.commits(g, `"close":["third"],"outcome":{"type":"suspend","waits":["first"]}`)
	running := w.running(`{"kind":"running"}`)
	w.commits(running, `"journal":[{"key":"step","value":1}],"children":[{"key":"kid","kind":"kid",`+
		`"queue":"kids"}],"waits":[{"id":"w","type":"signal","name":"go"}]`)
	w.do("POST", "/api/v1/workers/w/commit", `{"commits":[{"commit_id":"used","run_id":"%s","epoch":%v}]}`,
		running["run_id"], running["epoch"]).is(200)
	busy := thread()
	chat := w.start(`{"kind":"chat","queue":"chats","thread_id":"` + busy + `"}`)
	w.send(ask{method: "POST", path: "/api/v1/runs", key: w.key, body: `{"kind":"job","queue":"default"}`,
		header: http.Header{"Idempotency-Key": {"used"}}}).is(201)
	queued := w.start(`{"kind":"queued"}`)
	group := w.do("POST", "/api/v1/groups", `{"run_ids":["%s"]}`, queued).is(201)["group_id"].(string)
	hook := w.do("POST", "/api/v1/webhooks", `{"url":"https://1.1.1.1/hook"}`).is(201)["webhook_id"].(string)

	flip := func(at int) string {
		b := []byte(token)
		if b[at] == 'A' {
			b[at] = 'B'
		} else {
			b[at] = 'A'
		}
		return string(b)
	}
	bare := strings.TrimPrefix(token, "cb_")
	return strings.NewReplacer("$RUNNING", running["run_id"].(string), "$EPOCH", fmt.Sprint(running["epoch"]),
		"$QUEUED", queued, "$ENDED", ended["run_id"].(string),
		"$SUSPENDED", asleep["run_id"].(string), "$THREAD", thread(), "$BUSY", busy, "$CHAT", chat, "$GROUP", group,
		"$HOOK", hook, "$UNKNOWN", unknown,
		"$TOKEN_BARE", bare, "$TOKEN_CUT", token[:len(token)-4], "$TOKEN_FLIP_LAST", flip(len(token)-2),
		"$TOKEN_FLIP_FIRST", flip(4), "$TOKEN_FLIP_MID", flip(len(token)/2),
		"$TOKEN_MIXED", used[:len(used)-43]+token[len(token)-43:], "$TOKEN", token, "$ASKING",
		asking["run_id"].(string), "$APPROVAL", approval("first"), "$DECIDED", approval("second"), "$CLOSED",
		approval("third"), "$USED_TOKEN", used)
}

// answerWithin bounds what a refusal may take of the processor: that a machine has other things to do is not the
// server's fault. The race detector makes everything ten times as slow. A refusal waits for nothing, so that it is
// there within noWait however busy the machine is.
const (
	answerWithin = 2 * time.Second
	noWait       = 25 * time.Second
)

// spent is the time of the processor that this process has had.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Every bad request gets a clear problem at once, and changes nothing.
func TestBadInput(t *testing.T) {
	shared := newWorld(t, setup{}) // nothing changes it
	vars := surroundings(shared)
	before := shared.fingerprint("")
	for name, rows := range badRows(t) {
		t.Run(name, func(t *testing.T) {
			w := shared.in(t)
			seen := map[string]bool{}
			for _, row := range rows {
				if seen[row.Name] {
					t.Errorf("%s: two rows of that name", row.Name)
				}
				seen[row.Name] = true
				a := row.ask(w, vars)
				began, had := time.Now(), spent(t)
				got := w.send(a)
				took, waited := spent(t)-had, time.Since(began)
				p := got.problem()
				if got.status != row.Status || p["code"] != row.Code {
					t.Errorf("%s: %d %v, not %d %s\n%.300s", row.Name, got.status, p["code"], row.Status, row.Code,
						got.body)
				}
				field, _ := p["field"].(string)
				if row.Field != "" && field != vars.Replace(row.Field) {
					t.Errorf("%s: field %q, not %q\n%.300s", row.Name, field, row.Field, got.body)
				}
				if len(got.body) > 16<<10 {
					t.Errorf("%s: an answer of %d bytes", row.Name, len(got.body))
				}
				if !raceEnabled && (took > answerWithin || waited > noWait) {
					t.Errorf("%s: took %s, and %s of the processor", row.Name, waited, took)
				}
				if now := w.fingerprint(""); now != before {
					t.Errorf("%s: something changed", row.Name)
					before = now
				}
			}
		})
	}
}

// Both stores refuse the same input in the same words. Two servers with the same ids and the same
// clock, one on each store, give byte by byte the same answers.
func TestBothStoresRefuseTheSame(t *testing.T) {
	stage.NoRace(t)
	stage.NoStore(t)
	clock := func() perdure.Instant { return 1_800_000_000_000_000 }
	same := func(at store.Options) setup {
		at.Hooks.Clock = clock
		return setup{store: &at, entropy: rand.NewChaCha8([32]byte{1})}
	}
	one, other := newWorld(t, same(store.Options{})), newWorld(t, same(store.Options{URL: storetest.Postgres(t)}))
	varsA, varsB := surroundings(one), surroundings(other)
	for name, rows := range badRows(t) {
		t.Run(name, func(t *testing.T) {
			a, b := one.in(t), other.in(t)
			for _, row := range rows {
				x, y := a.send(row.ask(a, varsA)), b.send(row.ask(b, varsB))
				if x.status != y.status || !maps.EqualFunc(x.header, y.header, slices.Equal) ||
					!bytes.Equal(x.body, y.body) {
					t.Errorf("%s: on SQLite\n%d %v %.300s\nand on PostgreSQL\n%d %v %.300s", row.Name, x.status,
						x.header, x.body, y.status, y.header, y.body)
				}
			}
			if a.fingerprint("") != b.fingerprint("") {
				t.Error("they don't hold the same")
			}
		})
	}
}

// The table only counts if it is there.
func TestBadInputTableIsLarge(t *testing.T) {
	n := 0
	for name, rows := range badRows(t) {
		t.Logf("%s: %d", name, len(rows))
		n += len(rows)
	}
	if n < 600 {
		t.Errorf("%d rows", n)
	}
}

// Unusual but valid input is accepted, and returned byte by byte.
func TestUnusualButValidInputIsAccepted(t *testing.T) {
	w := newWorld(t, setup{})
	for _, input := range []string{
		`-0`, `9007199254740993`, `9223372036854775808`, `1e308`, `0.1e-999`, `""`, `null`, `[]`, `{}`, `false`,
		`{"__proto__":{"admin":true},"constructor":1,"":2}`, `"\ud83d\ude00"`, `"😀"`, `"\u202e\u200b"`, `"\ufffd"`,
		`"\\u0000"`, `"\\ud800"`, `"<script>&"`,
		`{"A":1,"a":2}`, strings.Repeat("[", 64) + strings.Repeat("]", 64), `"` + strings.Repeat("x", 1<<20-2) + `"`,
		`"` + strings.Repeat("é", 100_000) + `"`,
		`{ "b" : 1 , "a" : [ 1 ,2 ] }`, `"a/b\/c"`, "\"\u2028\"",
	} {
		id := w.start(`{"kind":"odd","input":` + input + `}`)
		var run struct{ Input json.RawMessage }
		a := w.get("/api/v1/runs/" + id)
		if err := json.Unmarshal(a.body, &run); err != nil {
			t.Fatal(err)
		}
		g := w.lease("w", `,"start":true`)
		var want, got bytes.Buffer // the space around is not kept, and neither is it part of a value
		if err := json.Compact(&want, []byte(input)); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&got, run.Input); err != nil || !sameJSON(want.String(), got.String()) {
			t.Errorf("%.80s came back as %.80s", input, run.Input)
		}
		w.commits(g, `"outcome":{"type":"complete","result":`+input+`}`)
		var ended struct{ Result json.RawMessage }
		if err := json.Unmarshal(w.get("/api/v1/runs/"+id).body, &ended); err != nil ||
			!sameJSON(want.String(), string(ended.Result)) {
			t.Errorf("%.80s came back as the result %.80s", input, ended.Result)
		}
	}
	for _, name := range []string{"CON", "a.", "а-homoglyph", "é", "日本", "a_b", "0", "a b", "a/b", "step#1",
		"x@y.z+w-v:u", strings.Repeat("x", 200)} {
		id := w.start(fmt.Sprintf(`{"kind":%q,"queue":%q,"metadata":{%q:"%%_' \" ; --"}}`, name, name, name))
		if run := w.get("/api/v1/runs/" + id).is(200); run["kind"] != name || run["queue"] != name {
			t.Errorf("%q came back as %v in %v", name, run["kind"], run["queue"])
		}
	}
}

// sameJSON compares texts; writing an answer escapes <, > and &, and the two line separators.
func sameJSON(a, b string) bool {
	var x, y bytes.Buffer
	json.HTMLEscape(&x, []byte(a))
	json.HTMLEscape(&y, []byte(b))
	return x.String() == y.String()
}

// Unusual path values are refused or not found. They never reach a store that can't hold them.
func TestUnusualPathValuesAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	admin := w.as(w.admin)
	before := w.fingerprint("")
	for _, r := range w.s.routes {
		for _, name := range placeholder.FindAllString(r.pattern, -1) {
			for _, odd := range []string{"%00", "a%00b", "%ff", "a%c3", "%ed%a0%80", "%0A"} {
				path := concrete(strings.Replace(r.pattern, name, odd, 1))
				if strings.Contains(r.pattern, "artifacts") && r.method == "PUT" {
					path += "?epoch=1"
				}
				if a := admin.do(r.method, path, ""); a.status != 404 && a.status != 400 && a.status != 426 {
					t.Errorf("%s: %d %s", a.what, a.status, a.body)
				}
			}
		}
	}
	if w.fingerprint("") != before {
		t.Error("something changed")
	}
}

// A body that says that it is too large is not read, and one that breaks off says nothing of who is connected to whom.
func TestUnreadableBodiesAreRefused(t *testing.T) {
	t.Parallel() // it waits for as long as a body that does not come is waited for
	w := newWorld(t, setup{})
	hs := httptest.NewServer(w.s.Handler())
	defer hs.Close()
	send := func(path, rest string, more ...string) (int, string) {
		conn, err := net.Dial("tcp", hs.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\n%s", path, w.key, rest)
		for range more { // no more is sent
			conn.(*net.TCPConn).CloseWrite()
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	// and nothing follows
	if status, body := send("/api/v1/runs", fmt.Sprintf("Content-Length: %d\r\n\r\n", maxBody+1)); status != 413 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := send("/api/v1/runs", fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n",
		maxBody+1)); status != 413 {
		t.Errorf("%d %s", status, body)
	}
	w.s.opt.BodyTimeout = 50 * time.Millisecond
	if status, body := send("/api/v1/runs", "Content-Length: 100\r\n\r\n{"); status != 400 ||
		strings.Contains(body, "127.0.0.1") || !strings.Contains(body, "within 50ms") {
		t.Errorf("%d %s", status, body)
	}
	w.s.opt.BodyTimeout = long
	if status, body := send("/api/v1/runs", "Content-Length: 100\r\n\r\n{", "end"); status != 400 ||
		!strings.Contains(body, "broke off") {
		t.Errorf("%d %s", status, body)
	}
}
