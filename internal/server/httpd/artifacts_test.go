package httpd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/wire/redact"
)

// puts sends an artifact of a leased run.
func (w *world) puts(g obj, name, query, media, body string) *answer {
	w.t.Helper()
	h := http.Header{"Content-Type": nil}
	if media != "" {
		h["Content-Type"] = []string{media}
	}
	return w.send(ask{method: "PUT", path: fmt.Sprintf("/api/v1/runs/%s/artifacts/%s?epoch=%v%s", g["run_id"], name,
		g["epoch"], query), key: w.key, body: body, header: h})
}

func (w *world) rows(table string) (n int) {
	w.t.Helper()
	err := w.e.Store().View(context.Background(), func(v *store.View) error {
		return v.Rows("SELECT count(*) FROM "+table, nil, func(scan func(...any) error) error { return scan(&n) })
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func TestArtifactIsStoredAndFetched(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	at := fmt.Sprintf("/api/v1/runs/%s/artifacts", g["run_id"])
	page := "<script>alert(1)</script>" + strings.Repeat("é", store.ChunkSize)
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(page)))
	made := w.puts(g, "page.html", "&sha256="+sum, "text/html; charset=utf-8", page).is(201)
	if made["sha256"] != sum || made["size"] != float64(len(page)) ||
		made["content_type"] != "text/html; charset=utf-8" || made["name"] != "page.html" || made["attempt"] != 1.0 {
		t.Errorf("made = %v, want sha256 = %v, size = %v, content_type = text/html; charset=utf-8, name = "+
			"page.html, attempt = 1",
			made, sum, float64(len(page)))
	}
	w.puts(g, "page.html", "", "text/html; charset=utf-8", page).is(200)
	list := w.get(at).is(200)["artifacts"].([]any)
	if len(list) != 1 || list[0].(obj)["sha256"] != sum {
		t.Errorf("list = %v, want 1 entry, [0].sha256 = %v", list, sum)
	}

	whole := w.get(at + "/page.html")
	if whole.status != 200 || string(whole.body) != page {
		t.Errorf("%d, %d bytes", whole.status, len(whole.body))
	}
	for name, want := range map[string]string{"Content-Type": "text/html; charset=utf-8",
		"Content-Disposition": `attachment; filename="page.html"`, "Etag": `"` + sum + `"`,
		"X-Content-Type-Options":  "nosniff",
		"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox"} {
		if got := whole.header.Get(name); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	part := w.send(ask{method: "GET", path: at + "/page.html", key: w.key,
		header: http.Header{"Range": {"bytes=262140-262149"}}})
	if part.status != 206 || string(part.body) != page[262140:262150] {
		t.Errorf("%d %q", part.status, part.body)
	}
	for _, none := range []string{"bytes=99999999-", "bytes=5-1"} {
		a := w.send(ask{method: "GET", path: at + "/page.html", key: w.key, header: http.Header{"Range": {none}}})
		a.refuses(416, "range_not_satisfiable")
		if got, want := a.header.Get("Content-Range"), fmt.Sprintf("bytes */%d", len(page)); got != want {
			t.Errorf("%s: %q, not %q", none, got, want)
		}
	}
	if all := w.send(ask{method: "GET", path: at + "/page.html", key: w.key,
		header: http.Header{"Range": {"pages=1"}}}); all.status != 200 || string(all.body) != page {
		t.Errorf("another unit: %d, %d bytes", all.status, len(all.body))
	}
	if same := w.send(ask{method: "GET", path: at + "/page.html", key: w.key,
		header: http.Header{"If-None-Match": {`"` + sum + `"`}}}); same.status != 304 || len(same.body) > 0 {
		t.Errorf("status of a conditional GET = %d, want 304 without a body", same.status)
	}
	w.get(at+"/other").refuses(404, "not_found")
	w.commits(g, `"outcome":{"type":"fail","error":{"code":"broken"},"retryable":false}`)
	d := w.get(fmt.Sprintf("/api/v1/runs/%s/deliverable", g["run_id"])).is(200)
	if left := d["content"].(obj)["artifacts"].([]any); len(left) != 1 || left[0].(obj)["name"] != "page.html" ||
		len(d["artifacts"].([]any)) != 1 {
		t.Errorf("deliverable = %v, want page.html in content and artifacts", d)
	}
}

// A worker can name any media type. No browser executes an artifact in the server's origin, whatever it is: it is
// saved instead of shown, and refused where a page would load it as a script, a style or a frame.
func TestHostileArtifactIsNotExecuted(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	at := fmt.Sprintf("/api/v1/runs/%s/artifacts/", g["run_id"])
	for name, media := range map[string]string{
		"page.html": "text/html", "picture.svg": "image/svg+xml", "page.xhtml": "application/xhtml+xml",
		"feed.xml": "text/xml", "code.js": "text/javascript", "old.js": "application/x-javascript",
		"style.css": "text/css", "parts": "multipart/x-mixed-replace; boundary=x", "report.pdf": "application/pdf",
		"quoted.html": `text/html; charset="utf-7"`,
	} {
		w.puts(g, name, "", media, "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>").is(201)
		load := func(dest string) *answer {
			return w.send(ask{method: "GET", path: at + name, key: w.key,
				header: http.Header{"Sec-Fetch-Dest": {dest}}})
		}
		for _, dest := range []string{"document", "empty", "image"} {
			a := load(dest)
			if a.status != 200 {
				t.Errorf("%s as %s = %d, want 200", name, dest, a.status)
			}
			for header, want := range map[string]string{
				"Content-Disposition":    `attachment; filename="` + name + `"`,
				"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin",
				"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox"} {
				if got := a.header.Get(header); got != want {
					t.Errorf("%s as %s: %s = %q, want %q", name, dest, header, got, want)
				}
			}
		}
		for _, dest := range []string{"script", "style", "worker", "sharedworker", "serviceworker", "audioworklet",
			"xslt", "object", "embed", "frame", "iframe", "something-new"} {
			load(dest).refuses(403, "forbidden")
		}
	}
	for _, name := range []string{"%3Cscript%3E.html", "x%22;x=%22.html", "a%0d%0ab", "..%2fx", "%e2%80%aetxt.exe"} {
		if a := w.puts(g, name, "", "text/html", "x"); a.status != 400 && a.status != 404 {
			t.Errorf("an artifact with the name %s = %d, want it refused", name, a.status)
		}
	}
}

func TestInvalidArtifactChangesNothing(t *testing.T) {
	w := newWorld(t, setup{})
	w.e.Policy().ArtifactMaxBytes, w.e.Policy().ArtifactTotalBytes = 1000, 1500
	old, g := w.fenced(`{"kind":"job"}`)
	w.puts(g, "x", "", "", "first").is(201)
	before := w.rows("artifacts") + w.rows("contents")
	w.puts(old, "x", "", "", "second").refuses(409, "stale_epoch")
	w.puts(g, "x", "&sha256="+strings.Repeat("0", 64), "", "second").refuses(400, "invalid")
	w.puts(g, "x", "&sha256=00", "", "second").refuses(400, "invalid")
	w.puts(g, "x", "&sha256="+strings.Repeat("Z", 64), "", "second").refuses(400, "invalid")
	w.puts(g, "x", "&tenant=b", "", "second").refuses(400, "invalid")
	w.puts(g, "x", "", "no type", "second").refuses(400, "invalid")
	w.puts(g, "y", "", "", strings.Repeat("a", 1001)).refuses(413, "too_large")
	w.puts(g, "y", "", "", strings.Repeat("a", 1000)).is(201)
	w.puts(g, "z", "", "", strings.Repeat("a", 600)).refuses(413, "too_large")
	w.puts(obj{"run_id": g["run_id"], "epoch": ""}, "x", "", "", "second").refuses(400, "invalid")
	w.puts(obj{"run_id": g["run_id"], "epoch": 0}, "x", "", "", "second").refuses(400, "invalid")
	w.puts(obj{"run_id": unknown, "epoch": 1}, "x", "", "", "second").refuses(404, "not_found")
	for _, name := range []string{"..%2fx", "a%2Fb", "%00", ".x", "a%20b", "%C3%A9", "a%0A", strings.Repeat("a", 129)} {
		if a := w.puts(g, name, "", "", "second"); a.status != 400 && a.status != 404 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if got := w.get(fmt.Sprintf("/api/v1/runs/%s/artifacts/x", g["run_id"])); string(got.body) != "first" ||
		w.rows("artifacts")+w.rows("contents") != before+2 {
		t.Errorf("%s, %d rows", got.body, w.rows("artifacts")+w.rows("contents"))
	}
}

// unhurried sends a body that ends when the test says so.
type unhurried struct {
	parts chan []byte
	end   chan error
	rest  []byte
}

func (u *unhurried) Read(p []byte) (int, error) {
	if len(u.rest) == 0 {
		select {
		case u.rest = <-u.parts:
		case err := <-u.end:
			return 0, err
		}
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

// A body that breaks off makes no artifact and leaves no chunks, whether its length was known or not.
func TestAbortedUploadLeavesNothing(t *testing.T) {
	w := newWorld(t, setup{})
	srv := httptest.NewServer(w.s.Handler())
	defer srv.Close()
	g := w.running(`{"kind":"job"}`)
	for _, known := range []bool{true, false} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		length, piece := "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n", 2*store.ChunkSize,
			bytes.Repeat([]byte("a"), 2*store.ChunkSize))
		if known {
			length, piece = "Content-Length: 1000000", strings.Repeat("a", 2*store.ChunkSize)
		}
		fmt.Fprintf(conn, "PUT /api/v1/runs/%s/artifacts/x?epoch=%v HTTP/1.1\r\nHost: localhost\r\nAuthorization: "+
			"Bearer %s\r\n%s\r\n\r\n%s", g["run_id"], g["epoch"], w.key, length, piece)
		eventually.True(t, "the first of it is stored", func() bool { return w.rows("chunks") >= 1 })
		conn.Close()
		eventually.True(t, "the upload is given up", func() bool {
			n := 0
			err := w.e.Store().View(context.Background(), func(v *store.View) error {
				return v.Rows(fmt.Sprintf("SELECT count(*) FROM removals WHERE due_at<=%d", int64(v.Now)), nil,
					func(scan func(...any) error) error { return scan(&n) })
			})
			return err == nil && n == 1
		})
		if n := w.rows("artifacts"); n != 0 {
			t.Errorf("%d artifacts", n)
		}
		w.clear()
		if w.rows("chunks")+w.rows("removals")+w.rows("contents") != 0 {
			t.Errorf("%d chunks, %d removals", w.rows("chunks"), w.rows("removals"))
		}
	}
}

// A body that drips in slower than any other may does not hold its place.
func TestSlowUploadTimesOut(t *testing.T) {
	w := newWorld(t, setup{options: func(o *Options) { o.BodyTimeout = 50 * time.Millisecond }})
	srv := httptest.NewServer(w.s.Handler())
	defer srv.Close()
	g := w.running(`{"kind":"job"}`)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT /api/v1/runs/%s/artifacts/x?epoch=%v HTTP/1.1\r\nHost: localhost\r\nAuthorization: "+
		"Bearer %s\r\nContent-Length: 1000\r\n\r\na", g["run_id"], g["epoch"], w.key)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != 400 {
		t.Errorf("%v %v", res, err)
	}
}

// An upload holds a chunk in memory, however large it is, and other calls don't wait for it.
func TestUploadIsStoredInChunks(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	body := &unhurried{parts: make(chan []byte), end: make(chan error)}
	req := httptest.NewRequest("PUT", fmt.Sprintf("/api/v1/runs/%s/artifacts/x?epoch=%v", g["run_id"], g["epoch"]),
		io.NopCloser(body))
	req.Host, req.ContentLength = "localhost", -1
	req.Header.Set("Authorization", "Bearer "+w.key)
	rec, done := httptest.NewRecorder(), make(chan struct{})
	go func() { defer close(done); w.s.Handler().ServeHTTP(rec, req) }()
	for n := 1; n <= 3; n++ {
		body.parts <- bytes.Repeat([]byte{byte(n)}, store.ChunkSize)
		eventually.True(t, "a chunk is stored before the next one comes", func() bool { return w.rows("chunks") == n })
		w.get(fmt.Sprintf("/api/v1/runs/%s", g["run_id"])).is(200)
		if list := w.get(fmt.Sprintf("/api/v1/runs/%s/artifacts",
			g["run_id"])).is(200)["artifacts"].([]any); len(list) != 0 {
			t.Fatalf("seen too early: %v", list)
		}
	}
	body.end <- io.EOF
	<-done
	if rec.Code != 201 || w.rows("removals") != 0 {
		t.Errorf("%d %s, %d removals", rec.Code, rec.Body, w.rows("removals"))
	}
}

// A reader that meets bytes which are gone is cut off: half of them must not look like all.
func TestDownloadWithReadErrorIsAborted(t *testing.T) {
	w := newWorld(t, setup{})
	srv := httptest.NewServer(w.s.Handler())
	defer srv.Close()
	g := w.running(`{"kind":"job"}`)
	w.puts(g, "x", "", "", strings.Repeat("a", 40*store.ChunkSize)).is(201)
	req, err := http.NewRequest("GET", fmt.Sprintf("%s/api/v1/runs/%s/artifacts/x", srv.URL, g["run_id"]), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	req.Header.Set("Host", "localhost")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 10)); err != nil || res.StatusCode != 200 {
		t.Fatal(res.Status, err)
	}
	w.puts(g, "x", "", "", "other").is(200)
	w.clear()
	if n, err := io.Copy(io.Discard, res.Body); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes and no error", n)
	}
}

func TestArtifactsAreRedactedAcrossChunks(t *testing.T) {
	const secret = "s3cret-of-the-house"
	set, err := redact.New([]string{secret})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, setup{options: func(o *Options) { o.Secrets = set }})
	g := w.running(`{"kind":"job"}`)
	body := strings.Repeat("a", store.ChunkSize-5) + secret + " end"
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(body)))
	made := w.puts(g, "x", "&sha256="+sum, "", body).is(201)
	got := w.get(fmt.Sprintf("/api/v1/runs/%s/artifacts/x", g["run_id"]))
	if want := strings.Replace(body, secret, redact.Mark, 1); string(got.body) != want ||
		made["sha256"] != fmt.Sprintf("%x", sha256.Sum256([]byte(want))) {
		t.Errorf("…%s, %v", got.body[len(got.body)-40:], made)
	}
}

func TestDeletedRunIsGone(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.makeThread()
	g := w.running(`{"kind":"job","thread_id":"` + thread + `"}`)
	run := fmt.Sprintf("/api/v1/runs/%s", g["run_id"])
	w.puts(g, "x", "", "", strings.Repeat("a", 3*store.ChunkSize)).is(201)
	w.do("DELETE", run, "").refuses(409, "wrong_state")
	w.do("DELETE", "/api/v1/threads/"+thread, "").refuses(409, "in_use")
	w.commits(g, complete)
	w.do("DELETE", run, "").is(200)
	for _, path := range []string{"", "/events", "/stream", "/deliverable", "/artifacts", "/artifacts/x", "/tree"} {
		w.get(run+path).refuses(404, "not_found")
	}
	w.do("DELETE", run, "").refuses(404, "not_found")
	for _, table := range []string{"runs", "events", "artifacts", "contents", "chunks", "removals"} {
		if n := w.rows(table); n != 0 {
			t.Errorf("%d rows of %s", n, table)
		}
	}
	w.do("DELETE", "/api/v1/threads/"+thread, "").is(200)
	w.get("/api/v1/threads/"+thread).refuses(404, "not_found")
	w.do("DELETE", "/api/v1/threads/"+thread, "").refuses(404, "not_found")
}

// clear removes what is on its way out.
func (w *world) clear() {
	w.t.Helper()
	for {
		op := watchdog.New(w.e, nil).Retire()
		if err := w.e.Do(context.Background(), op); err != nil {
			w.t.Fatal(err)
		}
		if !op.More {
			return
		}
	}
}
