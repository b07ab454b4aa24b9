package client_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A caller whose context ends before the wait gets a deferral in time, with the run's id.
func TestContextDeadlineShortensTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servertest.Open(t, embedded.Options{Clock: time.Now}).C
		run := ok[*api.Run](t)(c.Start(t.Context(), perdure.Submission{Kind: "nobody", Class: perdure.Agent}))
		group := ok[*api.Group](t)(c.CreateGroup(t.Context(), api.CreateGroup{RunIDs: []perdure.RunID{run.RunID}}))
		for name, wait := range map[string]func(ctx context.Context) (found, deferred bool, err error){
			"run": func(ctx context.Context) (bool, bool, error) {
				run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "nobody", Class: perdure.Agent}, 0)
				return run != nil && run.RunID != "", deferred, err
			},
			"join": func(ctx context.Context) (bool, bool, error) {
				run, deferred, err := c.Join(ctx, run.RunID, time.Hour)
				return run != nil && run.RunID != "", deferred, err
			},
			"join a group": func(ctx context.Context) (bool, bool, error) {
				group, open, err := c.JoinGroup(ctx, group.GroupID, 0)
				return group != nil && group.GroupID != "", open, err
			},
		} {
			for _, within := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 5 * time.Second,
				20 * time.Minute} {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				began := time.Now()
				found, deferred, err := wait(ctx)
				took := time.Since(began)
				if err != nil || !found || !deferred || ctx.Err() != nil {
					t.Errorf("%s within %s: found %v, deferred %v, %v after %s, want a deferral in time",
						name, within, found, deferred, err, took)
				}
				if most := min(within, client.DefaultWait); took < most/2 {
					t.Errorf("%s within %s took %s, want at least %s", name, within, took, most/2)
				}
				cancel()
			}
		}
	})
}

// A server that dies, or no longer answers, does not lengthen a wait.
func TestWaitEndsWithoutAServer(t *testing.T) {
	for name, fault := range map[string]func(*http.Request) error{
		"refused": func(*http.Request) error { return &net.OpError{Op: "dial", Err: errors.New("connection refused")} },
		"frozen": func(r *http.Request) error {
			<-r.Context().Done()
			return r.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := servertest.Open(t, embedded.Options{Clock: time.Now})
				wire := &faulty{next: srv.Transport()}
				c := srv.Via(wire)
				run := ok[*api.Run](t)(c.Start(t.Context(), perdure.Submission{Kind: "nobody", Class: perdure.Agent}))
				group := ok[*api.Group](t)(c.CreateGroup(t.Context(),
					api.CreateGroup{RunIDs: []perdure.RunID{run.RunID}}))
				wire.fault.Store(&fault)
				for name, wait := range map[string]func(time.Duration) error{
					"run": func(d time.Duration) error {
						_, _, err := c.Run(t.Context(), perdure.Submission{Kind: "nobody"}, d)
						return err
					},
					"join": func(d time.Duration) error {
						_, _, err := c.Join(t.Context(), run.RunID, d)
						return err
					},
					"join a group": func(d time.Duration) error {
						_, _, err := c.JoinGroup(t.Context(), group.GroupID, d)
						return err
					},
					"cancel": func(d time.Duration) error {
						_, err := c.Cancel(t.Context(), run.RunID, "", d)
						return err
					},
				} {
					for _, d := range []time.Duration{time.Millisecond, time.Second, 3 * time.Second,
						10 * time.Second} {
						began := time.Now()
						err := wait(d)
						if took := time.Since(began); !client.Transient(err) ||
							took > max(d, time.Second)+2*time.Second {
							t.Errorf("%s for %s: %v after %s, want a transient error in time", name, d, err, took)
						}
					}
				}
			})
		})
	}
}

// A faulty transport fails its calls once fault is set.
type faulty struct {
	next  http.RoundTripper
	fault atomic.Pointer[func(*http.Request) error]
}

func (f *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	if fault := f.fault.Load(); fault != nil {
		return nil, (*fault)(r)
	}
	return f.next.RoundTrip(r)
}

// A call that could not be sent has the code unavailable, not unknown_outcome.
func TestUnsentCallIsUnavailable(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // hides the handshake error
	defer secure.Close()
	for name, url := range map[string]string{
		"HTTPS to a plain server":  strings.Replace(plain.URL, "http://", "https://", 1),
		"an untrusted certificate": secure.URL,
		"a closed port":            "http://127.0.0.1:1",
	} {
		c := client.New(url, "key", client.Options{Retries: -1})
		defer c.Close()
		if _, err := c.Start(t.Context(),
			perdure.Submission{Kind: "x"}); client.CodeOf(err) != perdure.CodeUnavailable {
			t.Errorf("%s: %v, want %s", name, err, perdure.CodeUnavailable)
		}
	}
}
