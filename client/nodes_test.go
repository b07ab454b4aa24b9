package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/wire/session"
)

// A fleet has servers of which some don't work. It counts the calls of each host.
type fleet struct {
	srv *servertest.Server
	mu  sync.Mutex
	// calls is what each host got.
	calls map[string]int
}

func openFleet(t *testing.T) *fleet {
	t.Helper()
	return &fleet{srv: servertest.Open(t, embedded.Options{Clock: time.Now}), calls: make(map[string]int)}
}

// RoundTrip sends a call to a host: refused, hung, busy, full, gateway, or one that works.
func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.calls[r.URL.Host]++
	f.mu.Unlock()
	answer := func(status int, header http.Header, body string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)),
			Request: r}, nil
	}
	problem := http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"30"}}
	switch r.URL.Host {
	case "refused":
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	case "reset":
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	case "hung":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case "busy":
		return answer(http.StatusServiceUnavailable, problem,
			`{"code":"shutting_down","detail":"the server shuts down"}`)
	case "gateway":
		return answer(http.StatusBadGateway, http.Header{}, "no upstream")
	case "limited":
		return answer(http.StatusTooManyRequests, problem, `{"code":"too_many_requests","detail":"slow down"}`)
	}
	return f.srv.Transport().RoundTrip(r)
}

func (f *fleet) client(addresses string, opt client.Options) *client.Client {
	opt.Transport = f
	return client.New(addresses, f.srv.Key(), opt)
}

// got returns how many calls a host got.
func (f *fleet) got(host string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[host]
}

// Every kind of call gets its answer from the server that works, and later calls go there at once.
func TestNextServerAnswers(t *testing.T) {
	calls := map[string]func(ctx context.Context, c *client.Client, run perdure.RunID) error{
		"start": func(ctx context.Context, c *client.Client, _ perdure.RunID) error {
			_, err := c.Start(ctx, perdure.Submission{Kind: "other", Queue: "elsewhere"})
			return err
		},
		"get": func(ctx context.Context, c *client.Client, run perdure.RunID) error {
			_, err := c.Get(ctx, run)
			return err
		},
		"artifact": func(ctx context.Context, c *client.Client, run perdure.RunID) error {
			body, _, err := c.Artifact(ctx, run, "note.txt")
			if err != nil {
				return err
			}
			defer body.Close()
			b, err := io.ReadAll(body)
			if err == nil && string(b) != "hello" {
				err = fmt.Errorf("artifact = %q, want hello", b)
			}
			return err
		},
		"stream": func(ctx context.Context, c *client.Client, run perdure.RunID) error {
			for e, err := range c.Stream(ctx, run, 0) {
				if err != nil || e.Type == perdure.LineCreated {
					return err
				}
			}
			return errors.New("the stream had no event")
		},
		"events": func(ctx context.Context, c *client.Client, run perdure.RunID) error {
			for e, err := range c.Events(ctx, run, 0) {
				if err != nil || e.Type == perdure.LineCreated {
					return err
				}
			}
			return errors.New("there was no event")
		},
	}
	// within is how long a call may take, by a fake clock. The long poll for events waits for 30 s.
	for bad, within := range map[string]time.Duration{"refused": 0, "reset": 0, "busy": 0, "gateway": 0,
		"hung": 46 * time.Second} {
		for name, do := range calls {
			t.Run(name+" with a server that is "+bad, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := openFleet(t)
					direct := f.client("http://perdure", client.Options{})
					run := ok[*api.Run](t)(direct.Start(t.Context(), perdure.Submission{Kind: "job"}))
					polled := ok[*api.Polled](t)(session.Of(direct).Poll(t.Context(), "w", api.Poll{Slots: 1,
						Start: true}))
					lease := api.Lease{RunID: run.RunID, Epoch: polled.Runs[0].Epoch}
					ok[*perdure.Artifact](t)(session.Of(direct).PutArtifact(t.Context(), lease, "note.txt",
						"text/plain",
						strings.NewReader("hello")))
					before := f.got("perdure")

					c := f.client(" http://"+bad+"/ ,http://refused,,http://perdure", client.Options{})
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					began := time.Now()
					if err := do(ctx, c, run.RunID); err != nil {
						t.Fatalf("error %v, want the answer of the server that works", err)
					}
					if took := time.Since(began); took > within {
						t.Errorf("the call took %s, want at most %s", took, within)
					}
					for range 3 {
						if err := do(ctx, c, run.RunID); err != nil {
							t.Fatal(err)
						}
					}
					if n := f.got("perdure") - before; f.got(bad) > 2 || n < 4 {
						t.Errorf("calls = %v, want all but the first at the server that works", f.calls)
					}
				})
			})
		}
	}
}

// A poll is not sent twice, unless it did not arrive. The next one goes to the next server.
func TestPollGoesOnToTheNextServer(t *testing.T) {
	for bad, polls := range map[string]int{"refused": 1, "busy": 2, "reset": 2, "hung": 2} {
		synctest.Test(t, func(t *testing.T) {
			f := openFleet(t)
			ok[*api.Run](t)(f.client("http://perdure", client.Options{}).Start(t.Context(),
				perdure.Submission{Kind: "job"}))
			c := f.client("http://"+bad+",http://perdure", client.Options{})
			sent := 0
			for range 3 {
				sent++
				polled, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Slots: 1,
					Wait: perdure.Duration(time.Second)})
				if err == nil {
					if len(polled.Runs) != 1 {
						t.Errorf("%s: poll = %+v, want the run", bad, polled)
					}
					break
				}
			}
			if sent != polls || f.got(bad) != 1 {
				t.Errorf("%s: %d polls and calls %v, want %d", bad, sent, f.calls, polls)
			}
		})
	}
}

// An upload whose body can't be read again is sent again only if nothing of it was sent.
func TestUploadGoesOnToTheNextServer(t *testing.T) {
	for bad, want := range map[string]bool{"refused": true, "busy": false, "reset": false} {
		synctest.Test(t, func(t *testing.T) {
			f := openFleet(t)
			direct := f.client("http://perdure", client.Options{})
			run := ok[*api.Run](t)(direct.Start(t.Context(), perdure.Submission{Kind: "job"}))
			polled := ok[*api.Polled](t)(session.Of(direct).Poll(t.Context(), "w", api.Poll{Slots: 1, Start: true}))
			lease := api.Lease{RunID: run.RunID, Epoch: polled.Runs[0].Epoch}
			c := f.client("http://"+bad+",http://perdure", client.Options{})
			a, err := session.Of(c).PutArtifact(t.Context(), lease, "a", "", io.MultiReader(strings.NewReader("once")))
			if (err == nil) != want || err == nil && a.Size != 4 {
				t.Errorf("%s: upload = %+v (error %v), want success %v", bad, a, err, want)
			}
			a, err = session.Of(c).PutArtifact(t.Context(), lease, "b", "", bytes.NewReader([]byte("twice")))
			if err != nil || a.Size != 5 {
				t.Errorf("%s: upload that can be repeated = %+v (error %v)", bad, a, err)
			}
		})
	}
}

// With no server that works the call ends as it does with one address, and each is tried before a
// pause.
func TestNoServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := openFleet(t)
		c := f.client("http://refused,http://busy", client.Options{Retries: 2})
		_, err := c.Get(t.Context(), "r")
		if client.CodeOf(err) != api.CodeShuttingDown && client.CodeOf(err) != perdure.CodeUnavailable {
			t.Errorf("error %v, want that of the last server", err)
		}
		if f.got("refused") != 3 || f.got("busy") != 3 {
			t.Errorf("calls = %v, want three rounds", f.calls)
		}
		// A limit is about the caller. Another server would refuse it, too.
		c = f.client("http://limited,http://perdure", client.Options{Retries: 1})
		if _, err := c.Get(t.Context(), "r"); client.CodeOf(err) != api.CodeRate || f.got("perdure") != 0 {
			t.Errorf("error %v and calls %v, want the limit's, and no other server", err, f.calls)
		}
		// A call whose caller gives up says nothing about the server.
		c = f.client("http://hung,http://perdure", client.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		c.Get(ctx, "r")
		if _, err := c.Get(t.Context(), "r"); f.got("hung") != 2 || client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("calls = %v (error %v), want the same server again, and then the next", f.calls, err)
		}
	})
}

func TestEveryAddressIsChecked(t *testing.T) {
	for _, addresses := range []string{"", ",", "http://a,b:7373", "ftp://a"} {
		c := client.New(addresses, "k", client.Options{Transport: &fleet{}})
		if _, err := c.Get(t.Context(), "r"); client.CodeOf(err) != perdure.CodeInvalid {
			t.Errorf("address %q: error %v, want %s", addresses, err, perdure.CodeInvalid)
		}
	}
}

// A server that dies in the middle of a stream costs no event, and none comes twice.
func TestStreamGoesOnAtAnotherServer(t *testing.T) {
	w := open(t, true, nil)
	second := httptest.NewServer(w.Server.Handler())
	t.Cleanup(second.Close)
	ctx := within(t)
	direct := w.Client()
	run := ok[*api.Run](t)(direct.Start(ctx, perdure.Submission{Kind: "job"}))
	first := httptest.NewServer(w.Server.Handler())
	c := client.New(first.URL+","+second.URL, w.Key(), client.Options{})
	worked := make(chan struct{})
	var seqs []int64
	for e, err := range c.Stream(ctx, run.RunID, 0) {
		if err != nil {
			t.Fatalf("Stream: %v", err)
		}
		if seqs = append(seqs, e.Seq); e.Type == perdure.LineCreated {
			first.CloseClientConnections()
			first.Listener.Close()
			go func() { defer close(worked); emit(t, direct, 30) }()
		}
	}
	<-worked
	first.CloseClientConnections()
	first.Close()
	if len(seqs) != 34 {
		t.Fatalf("the stream yielded %v, want 34 events", seqs)
	}
	for i, seq := range seqs {
		if seq != int64(i+1) {
			t.Fatalf("the stream yielded %v, want 1 to 34", seqs)
		}
	}
}
