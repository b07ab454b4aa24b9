package bench

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestFramesOfAStream(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name, in string
		want     []string
		err      string
	}{
		{"events", "retry: 1000\nid: 0\nevent: stream:attached\ndata: {}\n\nid: 1\nevent: x:a\ndata: 7\n\n", []string{"0 stream:attached {}", "1 x:a 7"}, "unexpected EOF"},
		{"a heartbeat between", "id: 1\nevent: x:a\ndata: 7\n\n: hb\n: hb\nid: 2\nevent: x:b\ndata: 8\n\n", []string{"1 x:a 7", "2 x:b 8"}, "unexpected EOF"},
		{"a long line", "id: 1\nevent: x:a\ndata: " + long + "\n\nid: 2\nevent: x:b\ndata: 8\n\n", []string{"1 x:a " + long, "2 x:b 8"}, "unexpected EOF"},
		{"its end", "id: 1\nevent: x:a\ndata: 7\n\nid: 1\nevent: stream:end\ndata: {}\n\n", []string{"1 x:a 7", "1 stream:end {}"}, ""},
		{"more after its end", "id: 1\nevent: stream:end\ndata: {}\n\n: hb\n", []string{"1 stream:end {}"}, "goes on after its end"},
		{"cut in an event", "id: 1\nevent: x:a\nda", nil, "unexpected EOF"},
		{"cut before its blank line", "id: 1\nevent: x:a\ndata: 7\n", nil, "unexpected EOF"},
		{"no number", "id: one\nevent: x:a\n\n", nil, "invalid syntax"},
		{"something else", "<html>\n", nil, "a line that is none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			err := readFrames(strings.NewReader(c.in), func(f *benchFrame) error {
				got = append(got, fmt.Sprintf("%d %s %s", f.id, f.event, f.data))
				return nil
			})
			if fmt.Sprint(got) != fmt.Sprint(c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	boom := errors.New("boom")
	if err := readFrames(strings.NewReader("id: 1\nevent: x:a\ndata: 7\n\n"), func(*benchFrame) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("an error of who is told ends it: %v", err)
	}
}

// toyStreams is a server that streams what it is told to, in place of a log that does everything right.
func toyStreams(t *testing.T, script func(after, run string, w io.Writer)) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after := r.Header.Get("Last-Event-ID")
		fmt.Fprintf(w, "retry: 1000\nid: %s\nevent: stream:attached\ndata: {}\n\n", after)
		script(after, strings.Split(r.URL.Path, "/")[4], w)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	return s
}

func told(w io.Writer, ids ...int) {
	for _, id := range ids {
		fmt.Fprintf(w, "id: %d\nevent: x:tick\ndata: {\"seq\":%d,\"type\":\"x:tick\",\"data\":%d}\n\n", id, id, 100+id)
	}
}

func TestClientsNoticeWhatAStreamDoesWrong(t *testing.T) {
	s := toyStreams(t, func(_, run string, w io.Writer) {
		told(w, map[string][]int{"good": {1, 2, 3}, "lossy": {1, 3}, "double": {1, 2, 2, 3}}[run]...)
	})
	for _, c := range []struct {
		run           string
		lost, doubled int64
	}{{"good", 0, 0}, {"lossy", 1, 0}, {"double", 0, 1}} {
		t.Run(c.run, func(t *testing.T) {
			cl := &clients{ctx: t.Context()}
			if _, err := cl.do(&crowdAsk{Do: askAttach, URL: s.URL, Runs: []string{c.run}, Streams: 3, Note: true}); err != nil {
				t.Fatal(err)
			}
			got, err := cl.do(&crowdAsk{Do: askAwait, Upto: []int64{3}, Limit: 10 * time.Second})
			if err != nil || got.Lost != 3*c.lost || got.Doubled != 3*c.doubled || len(got.At) != 3 || got.At[0] == 0 {
				t.Errorf("%+v, %v", got, err)
			}
			if want := 3 * (3 - int(c.lost)); len(got.Noted) != want || got.Noted[0].N != 101 {
				t.Errorf("%v was noted, %d events were told", got.Noted, want)
			}
		})
	}
}

func TestClientsSayThatAStreamWasCutOrRefused(t *testing.T) {
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/refused/") {
			http.Error(w, "too many", http.StatusServiceUnavailable)
			return
		}
		calls.Add(1)
		fmt.Fprint(w, "id: 0\nevent: stream:attached\ndata: {}\n\n")
		told(w, 1)
	}))
	t.Cleanup(s.Close)
	cl := &clients{ctx: t.Context()}
	if _, err := cl.do(&crowdAsk{Do: askAttach, URL: s.URL, Runs: []string{"refused"}, Streams: 1}); err == nil || !strings.Contains(err.Error(), "503 too many") {
		t.Errorf("refused: %v", err)
	}
	cl = &clients{ctx: t.Context(), streams: []*benchStream{{}}}
	cl.follow(&crowdAsk{URL: s.URL}, "cut", cl.streams[0], func() {})
	if _, err := cl.do(&crowdAsk{Do: askAwait, Upto: []int64{2}, Limit: 10 * time.Second}); err == nil || !strings.Contains(err.Error(), "1 streams were cut") {
		t.Errorf("cut: %v", err)
	}
	if calls.Load() != 1 || cl.open.Load() != 0 || cl.streams[0].cursor.Load() != 1 {
		t.Errorf("%d calls, %d open, cursor %d", calls.Load(), cl.open.Load(), cl.streams[0].cursor.Load())
	}
}

// A response that is complete, but lacks the stream's own end, was cut somewhere on its way.
func TestOnlyAnEndIsAnEnd(t *testing.T) {
	for _, c := range []struct{ body, err string }{
		{"id: 1\nevent: stream:end\ndata: {}\n\n", ""},
		{"id: 1\nevent: x:a\ndata: {}\n\n", "unexpected EOF"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.body) }))
		err := readStream(t.Context(), s.URL, "key", "run", 0, func(*benchFrame) error { return nil })
		s.Close()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v", c.body, err)
		}
	}
}
