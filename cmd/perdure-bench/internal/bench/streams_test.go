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

func TestReadFrames(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name, in string
		want     []string
		err      string
	}{
		{"events", "retry: 1000\nid: 0\nevent: stream:attached\ndata: {}\n\nid: 1\nevent: x:a\ndata: 7\n\n",
			[]string{"0 stream:attached {}", "1 x:a 7"}, "unexpected EOF"},
		{"a heartbeat between", "id: 1\nevent: x:a\ndata: 7\n\n: hb\n: hb\nid: 2\nevent: x:b\ndata: 8\n\n",
			[]string{"1 x:a 7", "2 x:b 8"}, "unexpected EOF"},
		{"a long line", "id: 1\nevent: x:a\ndata: " + long + "\n\nid: 2\nevent: x:b\ndata: 8\n\n",
			[]string{"1 x:a " + long, "2 x:b 8"}, "unexpected EOF"},
		{"its end", "id: 1\nevent: x:a\ndata: 7\n\nid: 1\nevent: stream:end\ndata: {}\n\n",
			[]string{"1 x:a 7", "1 stream:end {}"}, ""},
		{"more after its end", "id: 1\nevent: stream:end\ndata: {}\n\n: hb\n", []string{"1 stream:end {}"},
			"goes on after its end"},
		{"cut in an event", "id: 1\nevent: x:a\nda", nil, "unexpected EOF"},
		{"cut before its blank line", "id: 1\nevent: x:a\ndata: 7\n", nil, "unexpected EOF"},
		{"no number", "id: one\nevent: x:a\n\n", nil, "invalid syntax"},
		{"something else", "<html>\n", nil, "a line that is none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			err := readFrames(strings.NewReader(c.in), func(f *frame) error {
				got = append(got, fmt.Sprintf("%d %s %s", f.id, f.event, f.data))
				return nil
			})
			if fmt.Sprint(got) != fmt.Sprint(c.want) || (err == nil) != (c.err == "") || err != nil &&
				!strings.Contains(err.Error(), c.err) {
				t.Errorf("frames = %q (error %v)", got, err)
			}
		})
	}
	boom := errors.New("boom")
	if err := readFrames(strings.NewReader("id: 1\nevent: x:a\ndata: 7\n\n"), func(*frame) error {
		return boom
	}); !errors.Is(err, boom) {
		t.Errorf("readFrames = %v, want the error of the callback", err)
	}
}

// toyStreams is a server that streams given frames, also wrong ones.
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

func writeTicks(w io.Writer, ids ...int) {
	for _, id := range ids {
		fmt.Fprintf(w, "id: %d\nevent: x:tick\ndata: {\"seq\":%d,\"type\":\"x:tick\",\"data\":%d}\n\n", id, id, 100+id)
	}
}

func TestClientsCountLostAndDoubledLines(t *testing.T) {
	s := toyStreams(t, func(_, run string, w io.Writer) {
		writeTicks(w, map[string][]int{"good": {1, 2, 3}, "lossy": {1, 3}, "double": {1, 2, 2, 3}}[run]...)
	})
	for _, c := range []struct {
		run           string
		lost, doubled int64
	}{{"good", 0, 0}, {"lossy", 1, 0}, {"double", 0, 1}} {
		t.Run(c.run, func(t *testing.T) {
			cl := &clients{ctx: t.Context()}
			if _, err := cl.do(&clientRequest{Do: askAttach, URL: s.URL, Runs: []string{c.run}, Streams: 3,
				Note: true}); err != nil {
				t.Fatal(err)
			}
			got, err := cl.do(&clientRequest{Do: askAwait, Upto: []int64{3}, Limit: 10 * time.Second})
			if err != nil || got.Lost != 3*c.lost || got.Doubled != 3*c.doubled || len(got.At) != 3 || got.At[0] == 0 {
				t.Errorf("reply = %+v (error %v), want %d lines lost and %d doubled, on 3 streams", got, err, 3*c.lost,
					3*c.doubled)
			}
			if want := 3 * (3 - int(c.lost)); len(got.Arrivals) != want || got.Arrivals[0].N != 101 {
				t.Errorf("arrivals = %v, want %d events", got.Arrivals, want)
			}
		})
	}
}

func TestClientsReportCutAndRefusedStreams(t *testing.T) {
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/refused/") {
			http.Error(w, "too many", http.StatusServiceUnavailable)
			return
		}
		calls.Add(1)
		fmt.Fprint(w, "id: 0\nevent: stream:attached\ndata: {}\n\n")
		writeTicks(w, 1)
	}))
	t.Cleanup(s.Close)
	cl := &clients{ctx: t.Context()}
	if _, err := cl.do(&clientRequest{Do: askAttach, URL: s.URL, Runs: []string{"refused"},
		Streams: 1}); err == nil || !strings.Contains(err.Error(), "503 too many") {
		t.Errorf("attach to a server that refuses = %v, want an error with its status", err)
	}
	cl = &clients{ctx: t.Context(), streams: []*stream{{}}}
	cl.follow(&clientRequest{URL: s.URL}, "cut", cl.streams[0], func() {})
	if _, err := cl.do(&clientRequest{Do: askAwait, Upto: []int64{2}, Limit: 10 * time.Second}); err == nil ||
		!strings.Contains(err.Error(), "1 streams were cut") {
		t.Errorf("await after the stream was cut = %v, want an error that says so", err)
	}
	if calls.Load() != 1 || cl.open.Load() != 0 || cl.streams[0].cursor.Load() != 1 {
		t.Errorf("%d calls, %d open streams, cursor %d; want 1 call, no open stream and cursor 1",
			calls.Load(), cl.open.Load(), cl.streams[0].cursor.Load())
	}
}

// A complete response without the stream's end frame was cut.
func TestStreamWithoutEndFrameWasCut(t *testing.T) {
	for _, c := range []struct{ body, err string }{
		{"id: 1\nevent: stream:end\ndata: {}\n\n", ""},
		{"id: 1\nevent: x:a\ndata: {}\n\n", "unexpected EOF"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, c.body)
		}))
		err := readStream(t.Context(), s.URL, "key", "run", 0, func(*frame) error { return nil })
		s.Close()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("stream %q: %v, want an error with %q, or none if that is empty", c.body, err, c.err)
		}
	}
}
