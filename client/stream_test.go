package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/wire/session"
)

// emit leases the next run, writes events to its log, each in its own commit, and completes it.
func emit(t *testing.T, c *client.Client, lines int) {
	t.Helper()
	ctx := context.Background()
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Errorf("Poll = %+v, %v, want one run", polled, err)
		return
	}
	g := polled.Runs[0]
	for i := range lines + 1 {
		commit := perdure.Commit{ID: fmt.Sprint(i), RunID: g.RunID, Epoch: g.Epoch,
			Events: []perdure.Emitted{{Type: "x:line", Data: client.JSON(strings.Repeat("é<", i%50))}}}
		if i == lines {
			commit.Events, commit.Outcome = nil, &perdure.Outcome{Type: perdure.OutcomeComplete,
				Result: client.JSON("done")}
		}
		if _, err := session.Of(c).Commit(ctx, "w", commit); err != nil {
			t.Errorf("commit %d: %v", i, err)
			return
		}
	}
}

// gather collects all events of an iteration.
func gather(t *testing.T, events func(func(api.Event, error) bool)) (out []api.Event) {
	t.Helper()
	for e, err := range events {
		if err != nil {
			t.Fatalf("after %d events: %v", len(out), err)
		}
		out = append(out, e)
	}
	return out
}

func TestStreamYieldsTheWholeLog(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		worked := make(chan struct{})
		var live []api.Event
		for e, err := range c.Stream(ctx, run.RunID, 0) {
			if err != nil {
				t.Fatalf("Stream: %v", err)
			}
			if live = append(live, e); e.Type == perdure.LineCreated {
				go func() { defer close(worked); emit(t, c, 30) }()
			}
		}
		<-worked
		polled := gather(t, c.Events(ctx, run.RunID, 0))
		if len(live) != 34 || !reflect.DeepEqual(live, polled) {
			t.Errorf("the stream yielded %v, want the 34 events of the log %v", live, polled)
		}
		if again := gather(t, c.Stream(ctx, run.RunID, 0)); !reflect.DeepEqual(again, live) {
			t.Errorf("after the end the stream yielded %v, want %v", again, live)
		}
		if rest := gather(t, c.Stream(ctx, run.RunID, 30)); !reflect.DeepEqual(rest, live[30:]) {
			t.Errorf("after event 30 the stream yielded %v, want %v", rest, live[30:])
		}
		if none := gather(t, c.Stream(ctx, run.RunID, live[33].Seq)); len(none) > 0 {
			t.Errorf("after the last event the stream yielded %v, want nothing", none)
		}
	})
}

// A cutter truncates the first ten answers of a stream.
type cutter struct {
	rng  *rand.Rand
	cuts int
}

func (x *cutter) wrap(next http.RoundTripper) http.RoundTripper {
	return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/stream") && x.cuts < 10 {
			x.cuts++
			res.Body = &cut{res.Body, 150 + x.rng.IntN(1000)}
		}
		return res, err
	})
}

// cut is a body that fails after some bytes.
type cut struct {
	io.ReadCloser
	left int
}

func (c *cut) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

func TestBrokenStreamYieldsEveryEventOnce(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		x := &cutter{rng: rand.New(rand.NewPCG(seed, 1))}
		ctx, c := within(t), w.Client()
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		worked := make(chan struct{})
		go func() { defer close(worked); emit(t, c, 300) }()
		got := gather(t, w.Client(x.wrap).Stream(ctx, run.RunID, 0))
		<-worked
		if want := gather(t, c.Events(ctx, run.RunID, 0)); len(want) != 304 || !reflect.DeepEqual(got, want) {
			t.Errorf("the stream yielded %d events, the log has %d, want the same 304", len(got), len(want))
		}
		if x.cuts < 10 {
			t.Errorf("%d connections were cut, want 10", x.cuts)
		}
	})
}

// A script answers requests for a stream with given answers, and records their cursors and times.
type script struct {
	answers []func(ctx context.Context) *http.Response
	cursors []string
	at      []time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.cursors, s.at = append(s.cursors, r.Header.Get("Last-Event-ID")), append(s.at, time.Now())
	if len(s.answers) == 0 {
		return nil, errors.New("connection refused")
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	if res := next(r.Context()); res != nil {
		return res, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func says(status int, kind, body string, header ...string) func(context.Context) *http.Response {
	return func(context.Context) *http.Response {
		h := http.Header{"Content-Type": {kind}}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
	}
}

func streams(frames string) func(context.Context) *http.Response {
	return says(200, api.MediaStream, "retry: 1000\nid: 0\nevent: stream:attached\ndata: {}\n\n"+frames)
}

// drips sends its parts and then stays silent. The body does not end by itself.
func drips(parts ...string) func(context.Context) *http.Response {
	return func(ctx context.Context) *http.Response {
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
		go func() {
			for _, p := range parts {
				io.WriteString(w, p)
			}
		}()
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {api.MediaStream}}, Body: r}
	}
}

// never does not answer.
func never(context.Context) *http.Response { return nil }

// line returns the frame of event n.
func line(n int) string {
	const data = `{"seq":%d,"type":"x:line","at":"2026-01-01T00:00:00Z","attempt":1,"data":null}`
	return fmt.Sprintf("id: %d\nevent: x:line\ndata: "+data+"\n\n", n, n)
}

func problem(code perdure.Code, header ...string) func(context.Context) *http.Response {
	p := api.NewProblem(code, "no", "")
	return says(p.Status, "application/problem+json", string(client.JSON(p)), header...)
}

const end = "id: 9\nevent: stream:end\ndata: {}\n\n"

// Each row is a series of answers of a server or network, and the values that Stream yields. Time
// is virtual.
func TestStreamWithScriptedAnswers(t *testing.T) {
	type answers = []func(context.Context) *http.Response
	for _, x := range []struct {
		name    string
		answers answers
		want    string        // events and errors
		cursors string        // of the requests
		least   time.Duration // least total time
		most    time.Duration // most total time
	}{
		{"an end", answers{streams(line(1) + line(2) + end)}, "1 2", "0", 0, 0},
		{"nothing more", answers{says(204, "", "")}, "", "0", 0, 0},
		{"cut between frames", answers{streams(line(1)), streams(line(2) + end)}, "1 2", "0 1", 1, time.Second},
		{"cut within a frame", answers{streams(line(1) + line(2)[:40]), streams(line(2) + end)}, "1 2", "0 1", 1,
			time.Second},
		{"an end that was cut", answers{streams(line(1) + end[:len(end)-1]), says(204, "", "")}, "1", "0 1", 1,
			time.Second},
		{"cut before anything", answers{streams(""), streams(""), streams(line(1) + end)}, "1", "0 0 0", 1,
			time.Second},
		{"told twice", answers{streams(line(1) + line(2)), streams(line(1) + line(2) + line(3) + end)}, "1 2 3", "0 2",
			1, time.Second},
		{"a gap", answers{streams("id: 4\nevent: stream:gap\ndata: {\"from\":1,\"to\":4}\n\n" + line(5) + end)},
			"gap 1-4 5", "0", 0, 0},
		{"a gap, then a cut", answers{streams("id: 4\nevent: stream:gap\ndata: {\"from\":1,\"to\":4}\n\n"),
			streams(line(5) + end)}, "gap 1-4 5", "0 4", 1, time.Second},
		{"a jump is a gap", answers{streams(line(1) + line(4) + end)}, "1 gap 2-3 4", "0", 0, 0},
		{"frames that nobody knows",
			answers{streams("data: hello\n\nevent: stream:news\ndata: hello\n\n: hb\n" + line(1) + end)}, "1", "0", 0,
			0},
		{"silence", answers{drips(line(1)), drips(": hb\n"), streams(line(2) + end)}, "1 2", "0 1 1", 40 * time.Second,
			45 * time.Second},
		{"no answer at all", answers{never, streams(line(1) + end)}, "1", "0 0", 20 * time.Second, 25 * time.Second},
		{"no room", answers{problem(perdure.CodeUnavailable, "Retry-After", "7"), streams(line(1) + end)}, "1", "0 0",
			7 * time.Second, 8 * time.Second},
		{"going down", answers{problem(api.CodeShuttingDown), says(502, "text/html", "bad gateway"),
			streams(line(1) + end)}, "1", "0 0 0", 1, time.Second},
		{"a refusal", answers{problem(perdure.CodeNotFound)}, "not_found", "0", 0, 0},
		{"a refusal after a cut", answers{streams(line(1)), problem(api.CodeUnauthorized)}, "1 unauthorized", "0 1", 1,
			time.Second},
		{"something else", answers{says(200, "text/html", "<html>")}, `error`, "0", 0, 0},
		{"something worse", answers{streams("event: x:line\ndata: {\n\n")}, `error`, "0", 0, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: x.answers}
				c := client.New("http://perdure", "key", client.Options{Transport: s})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				var got []string
				for e, err := range c.Stream(ctx, "r", 0) {
					var gap *client.StreamGapError
					switch {
					case errors.As(err, &gap):
						got = append(got, fmt.Sprintf("gap %d-%d", gap.From, gap.To))
					case client.CodeOf(err) != "":
						got = append(got, string(client.CodeOf(err)))
					case err != nil:
						got = append(got, "error")
					default:
						got = append(got, fmt.Sprint(e.Seq))
					}
				}
				if told := strings.Join(got, " "); told != x.want {
					t.Errorf("yielded %q, want %q", told, x.want)
				}
				if cursors := strings.Join(s.cursors, " "); cursors != x.cursors {
					t.Errorf("cursors of the requests: %q, want %q", cursors, x.cursors)
				}
				if took := time.Since(begin); took < x.least || took > x.most {
					t.Errorf("it took %s, want %s to %s", took, x.least, x.most)
				}
			})
		})
	}
}

func TestStreamEndsWithItsContext(t *testing.T) {
	for name, answers := range map[string][]func(context.Context) *http.Response{
		"attached":                 {drips(line(1))},
		"while the server is away": {streams(line(1))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := client.New("http://perdure", "key", client.Options{Transport: &script{answers: answers}})
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begin := time.Now()
				var last error
				lines := 0
				for _, err := range c.Stream(ctx, "r", 0) {
					if last = err; err == nil {
						lines++
					}
				}
				if lines != 1 || !errors.Is(last, context.DeadlineExceeded) || time.Since(begin) != 10*time.Second {
					t.Errorf("%d events, %v, after %s, want 1 and the deadline after 10s", lines, last,
						time.Since(begin))
				}
			})
		})
	}
}

// The time that a caller takes for an event does not count as silence of the server.
func TestSlowCallerKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []func(context.Context) *http.Response{drips(line(1), line(2), end)}}
		c := client.New("http://perdure", "key", client.Options{Transport: s})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		lines := 0
		for _, err := range c.Stream(ctx, "r", 0) {
			if err != nil {
				t.Fatalf("after %d events: %v", lines, err)
			}
			lines++
			time.Sleep(time.Hour)
		}
		if lines != 2 || len(s.cursors) != 1 {
			t.Errorf("%d events over %d connections, want 2 over 1", lines, len(s.cursors))
		}
	})
}

func TestStreamBacksOffWhileServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		c := client.New("http://perdure", "key", client.Options{Transport: s})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, err := range c.Stream(ctx, "r", 0) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Stream: %v, want context.DeadlineExceeded", err)
			}
		}
		if n := len(s.at); n < 10 || n > 40 {
			t.Errorf("%d requests in a minute, want 10 to 40", n)
		}
	})
}

func TestStoppedIterationClosesItsConnection(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		closed := make(chan struct{})
		x := w.Client(func(next http.RoundTripper) http.RoundTripper {
			return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
				context.AfterFunc(r.Context(), func() { close(closed) })
				return next.RoundTrip(r)
			})
		})
		for range x.Stream(ctx, run.RunID, 0) {
			break
		}
		select {
		case <-closed:
		case <-ctx.Done():
			t.Error("the connection stays open after the loop has ended")
		}
	})
}
