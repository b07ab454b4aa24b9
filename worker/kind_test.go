package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

type question struct {
	Topic string `json:"topic"`
	Depth int    `json:"depth,omitempty"`
}

func ask(context.Context, question) (string, error) { return "answer", nil }

// announced waits until the registry has a kind.
func (w *world) announced(kind string) (k *api.Kind) {
	w.T.Helper()
	eventually.True(w.T, "the kind "+kind+" is announced", func() (ok bool) {
		k, _ = w.C.Kind(w.Ctx, kind)
		return k != nil
	})
	return k
}

func TestWorkerAnnouncesItsKinds(t *testing.T) {
	both(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "ask", ask, worker.Kind{Description: "answers questions", Timeout: 7 * time.Minute,
			MaxAttempts: 9,
			Backoff:     time.Second, MaxBackoff: time.Minute, NotRetried: []perdure.Code{"nonsense"}})
		worker.Agent(wk, "research", func(*agent.Context, question) ([]string, error) { return nil, nil })
		w.Work(wk)

		k := w.announced("ask")
		if k.Class != perdure.Task || k.Description != "answers questions" ||
			k.Timeout != perdure.Duration(7*time.Minute) ||
			k.Retry == nil || k.Retry.MaxAttempts != 9 || len(k.Retry.NotRetried) != 1 {
			t.Errorf("announced: %+v, retry %+v, want what was registered", k.KindDef, k.Retry)
		}
		const in = `{"properties":{"depth":{"type":"integer"},"topic":{"type":"string"}},"required":["topic"],` +
			`"type":"object"}`
		if string(k.InputSchema) != in || string(k.OutputSchema) != `{"type":"string"}` {
			t.Errorf("schemas = %s and %s, want those of the function's types", k.InputSchema, k.OutputSchema)
		}
		if k := w.announced("research"); k.Class != perdure.Agent {
			t.Errorf("class of an agent = %q, want agent", k.Class)
		}

		// A submission that says nothing takes the defaults.
		run := w.startRun(perdure.Submission{Kind: "ask", Input: json.RawMessage(`{"topic":"x"}`)})
		if run.MaxAttempts != 9 || run.DeadlineAt.Sub(run.CreatedAt) != 7*time.Minute {
			t.Errorf("run: %d attempts, deadline after %s; want 9 and 7m", run.MaxAttempts,
				run.DeadlineAt.Sub(run.CreatedAt))
		}
		if run := w.startRun(perdure.Submission{Kind: "research"}); run.Class != perdure.Agent {
			t.Errorf("class of the run = %s, want agent, as its kind", run.Class)
		}
		eventually.True(t, "the kind is served", func() bool { return w.announced("ask").Served })
	})
}

func (w *world) startRun(sub perdure.Submission) *api.Run {
	w.T.Helper()
	run, err := w.C.Start(w.Ctx, sub)
	if err != nil {
		w.T.Fatal(err)
	}
	return run
}

// A syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestWorkerWorksWithServerWithoutRegistry(t *testing.T) {
	w := open(t, false, nil)
	var log syncBuffer
	old := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasPrefix(r.URL.Path, "/api/v1/kinds/") {
			r.URL.Path = "/api/v1/unknown"
		}
		return w.Wire.RoundTrip(r)
	})
	wk := worker.New(client.New(w.URL, w.Key(), client.Options{Transport: old}),
		worker.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	worker.Handle(wk, "ask", ask)
	worker.Handle(wk, "ask-again", ask)
	stop := w.Work(wk)
	got, err := client.Call[string](w.Ctx, w.C, "ask", question{})
	if err != nil || got != "answer" {
		t.Errorf("Call = %q, %v, want answer", got, err)
	}
	eventually.True(t, "it is logged", func() bool { return strings.Contains(log.String(), "no registry of kinds") })
	stop()
	if n := strings.Count(log.String(), "no registry of kinds"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

func TestAnnouncementWaitsForServer(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		var back atomic.Bool
		flaky := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			if !back.Load() && r.Method == http.MethodPut {
				return nil, errors.New("unplugged")
			}
			return w.Wire.RoundTrip(r)
		})
		wk := worker.New(client.New(w.URL, w.Key(), client.Options{Transport: flaky}), worker.Options{})
		worker.Handle(wk, "ask", ask)
		w.Work(wk)
		run := w.startRun(perdure.Submission{Kind: "ask", Input: json.RawMessage(`{"topic":"x"}`)})
		time.Sleep(time.Hour)
		if run, err := w.C.Get(w.Ctx, run.RunID); err != nil || run.State != perdure.Completed {
			t.Errorf("run while the kind can't be announced: %v, %v; want completed", run, err)
		}
		if k, err := w.C.Kind(w.Ctx, "ask"); err == nil {
			t.Fatalf("the kind is announced: %+v", k)
		}
		back.Store(true)
		time.Sleep(time.Minute)
		if _, err := w.C.Kind(w.Ctx, "ask"); err != nil {
			t.Errorf("the kind after the server is back: %v", err)
		}
	})
}

func TestLaterDescriptionsReplaceFieldsOfEarlierOnes(t *testing.T) {
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{})
	worker.Handle(wk, "ask", ask, worker.Kind{Description: "first", MaxAttempts: 7}, worker.Kind{Description: "second"})
	w.Work(wk)
	eventually.True(t, "the kind is announced", func() bool {
		k, err := w.C.Kind(w.Ctx, "ask")
		return err == nil && k.Description == "second" && k.Retry != nil && k.Retry.MaxAttempts == 7
	})
}

// The worker's announcement takes a second, so a poll beside it would lease the run before.
func TestFirstRunOfANewKindHasTheClassOfItsWorker(t *testing.T) {
	virtual(t, func(w *world) {
		agents, tasks := perdure.Submission{Kind: "research"}, perdure.Submission{Kind: "ask"}
		agents.Input, tasks.Input = json.RawMessage(`{"topic":"x"}`), json.RawMessage(`{"topic":"x"}`)
		long, short := w.startRun(agents), w.startRun(tasks)
		for _, run := range []*api.Run{long, short} {
			if run.Class != perdure.Open || run.DeadlineAt.Sub(run.CreatedAt) != 24*time.Hour {
				t.Errorf("run of the unknown kind %s: class %s, deadline after %s; want open and a day", run.Kind,
					run.Class, run.DeadlineAt.Sub(run.CreatedAt))
			}
		}
		slow := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				time.Sleep(time.Second)
			}
			return w.Wire.RoundTrip(r)
		})
		wk := worker.New(client.New(w.URL, w.Key(), client.Options{Transport: slow}), worker.Options{})
		worker.Agent(wk, "research", func(*agent.Context, question) (string, error) { return "found", nil })
		worker.Handle(wk, "ask", ask)
		w.Work(wk)
		time.Sleep(time.Minute)
		for _, x := range []struct {
			run   *api.Run
			class perdure.Class
		}{{long, perdure.Agent}, {short, perdure.Task}} {
			got, err := w.C.Get(w.Ctx, x.run.RunID)
			if err != nil || got.Class != x.class || got.State != perdure.Completed {
				t.Errorf("run of kind %s: %+v, %v; want class %s, completed", x.run.Kind, got, err, x.class)
			}
		}
	})
}

func TestKindAnnouncesItsSignals(t *testing.T) {
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{})
	worker.Agent(wk, "research", func(ctx *agent.Context, _ question) (question, error) {
		return agent.Signal[question](ctx, "more", time.Hour)
	}, worker.Kind{Signals: map[string]any{"more": question{}, "any": nil,
		"own": json.RawMessage(`{"type":"integer"}`)}})
	w.Work(wk)
	k := w.announced("research")
	if len(k.Signals) != 3 || string(k.Signals["any"]) != `{}` || string(k.Signals["own"]) != `{"type":"integer"}` {
		t.Errorf("signals = %s, want more, any and own", k.Signals)
	}
	run := w.startRun(perdure.Submission{Kind: "research", Input: json.RawMessage(`{"topic":"x"}`)})
	_, err := w.C.Signal(w.Ctx, run.RunID, "more", json.RawMessage(`{"topic":7}`))
	if client.CodeOf(err) != perdure.CodeSignalInvalid {
		t.Errorf("signal that does not fit: %v, want %s", err, perdure.CodeSignalInvalid)
	}
	if _, err = w.C.Signal(w.Ctx, run.RunID, "more", json.RawMessage(`{"topic":"y"}`)); err != nil {
		t.Errorf("signal that fits: %v", err)
	}
}
