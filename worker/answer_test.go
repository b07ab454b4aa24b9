package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/worker"
)

// A diary keeps what a worker logs.
type diary struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *diary) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(b)
}

func (d *diary) logger() *slog.Logger { return slog.New(slog.NewTextHandler(d, nil)) }

// says counts the lines that have a text in them.
func (d *diary) says(what string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Count(d.text.String(), what)
}

// setQuota bounds the tenant's live runs.
type setQuota int64

func (setQuota) Needs() []store.Ref { return nil }

func (q setQuota) Do(tx *store.Tx) error {
	tx.SetQuota(embedded.DefaultTenant, int64(q))
	return nil
}

// quota bounds the live runs of a virtual world. Only an operator can do that, so it is done while the server is down.
func (w *world) quota(n int64) {
	w.t.Helper()
	w.srv.Close()
	st, err := store.Open(store.Options{Path: filepath.Join(w.dir, "perdure.db")})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := errors.Join(st.Do(w.ctx, setQuota(n)), st.Close()); err != nil {
		w.t.Fatal(err)
	}
	w.srv = w.serve()
}

// within waits for a run's end, and minds how long that takes.
func (w *world) within(limit time.Duration, id perdure.RunID, want perdure.State) *api.Run {
	w.t.Helper()
	began := time.Now()
	run := w.end(id)
	if took := time.Since(began); took > limit || run.State != want || run.Attempt != 1 {
		w.t.Errorf("%s is %s, %+v, attempt %d, after %s", run.Kind, run.State, run.Error, run.Attempt, took)
	}
	return run
}

// stepper is an agent of five steps.
func stepper(ctx *agent.Context, _ int) (int, error) {
	for n := range 5 {
		if _, err := agent.Step(ctx, "step", func(context.Context) (int, error) { return n, nil }); err != nil {
			return 0, err
		}
	}
	return 5, nil
}

// What an agent has to commit when its function returns may still be refused. The run has failed then.
func TestNoRunCompletesWithoutWhatItsAgentCommits(t *testing.T) {
	for _, behind := range []int{0, 600 << 10} { // with the outcome, and in a commit before it
		t.Run(fmt.Sprint(behind), func(t *testing.T) {
			t.Parallel()
			w := open(t, false, nil)
			thread, err := w.c.CreateThread(w.ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			wk := worker.New(w.c, worker.Options{})
			worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
				agent.Message(ctx, "assistant", "first")
				agent.Spawn[int](ctx, "kid", nil, agent.Options{ThreadID: ctx.ThreadID(), Outlive: true}) // its parent has the thread
				agent.Message(ctx, "assistant", strings.Repeat("x", behind))
				return "all is well", nil
			})
			w.work(wk)
			run := w.end(w.start(perdure.Submission{Kind: "agent", ThreadID: thread.ThreadID}))
			if run.State != perdure.Failed || run.Error.Code != perdure.CodeThreadBusy || run.Attempt != 1 {
				t.Errorf("%s, attempt %d: %+v, %s", run.State, run.Attempt, run.Error, run.Result)
			}
			said, err := w.c.Messages(w.ctx, thread.ThreadID, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range said.Messages {
				if string(m.Content) == `"first"` {
					t.Error("a part of what was refused is there")
				}
			}
		})
	}
}

// A child that can't be made is no lease that is lost.
func TestAChildOnAThreadThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.c, worker.Options{})
	worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (int, error) {
		return agent.Spawn[int](ctx, "kid", nil, agent.Options{ThreadID: "01990000-0000-7000-8000-000000000000"}).Join(ctx)
	})
	w.work(wk)
	if run := w.end(w.start(perdure.Submission{Kind: "agent"})); run.State != perdure.Failed || run.Error.Code != perdure.CodeNotFound || run.Attempt != 1 {
		t.Errorf("%s, attempt %d: %+v", run.State, run.Attempt, run.Error)
	}
}

// A run whose children find no room waits, and nobody else does.
func TestARunOverItsQuotaHoldsUpNoOther(t *testing.T) {
	virtual(t, func(w *world) {
		w.quota(3)
		var log diary
		wk := worker.New(w.c, worker.Options{Logger: log.logger()})
		leave := make(chan struct{})
		worker.Handle(wk, "sitter", func(context.Context, int) (int, error) { <-leave; return 1, nil })
		worker.Handle(wk, "kid", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "stepper", stepper)
		worker.Agent(wk, "greedy", func(ctx *agent.Context, _ int) (int, error) {
			got, err := agent.JoinAll(ctx, agent.Spawn[int](ctx, "kid", 0), agent.Spawn[int](ctx, "kid", 0))
			return len(got), err
		})
		w.work(wk)
		sitter := w.start(perdure.Submission{Kind: "sitter"})
		greedy := w.start(perdure.Submission{Kind: "greedy"})
		time.Sleep(20 * time.Second)
		for range 5 {
			w.within(time.Second, w.start(perdure.Submission{Kind: "stepper"}), perdure.Completed)
			time.Sleep(3 * time.Second)
		}
		if waits, away := log.says("waits for its tenant's quota"), log.says("does not answer"); waits != 1 || away != 0 {
			t.Errorf("said %d times that a run waits for its quota, and %d times that the server does not answer", waits, away)
		}
		close(leave)
		w.within(10*time.Second, sitter, perdure.Completed)
		w.within(10*time.Second, greedy, perdure.Completed)
	})
}

// A run that waits for room is asked to stop, and does.
func TestACancelEndsTheWaitForAQuota(t *testing.T) {
	virtual(t, func(w *world) {
		w.quota(1)
		wk := worker.New(w.c, worker.Options{})
		for kind, joins := range map[string]bool{"joins": true, "returns": false} {
			worker.Agent(wk, kind, func(ctx *agent.Context, _ int) (string, error) {
				kid := agent.Spawn[int](ctx, "kid", 0)
				if joins {
					_, err := kid.Join(ctx)
					return "", err
				}
				return "fine", nil
			})
		}
		w.work(wk)
		for _, kind := range []string{"joins", "returns"} {
			id := w.start(perdure.Submission{Kind: kind})
			time.Sleep(time.Minute)
			if _, err := w.c.Cancel(w.ctx, id, "enough", 0); err != nil {
				t.Fatal(err)
			}
			w.within(2*time.Second, id, perdure.Cancelled)
		}
	})
}

// A defect makes a server refuse some commits, as one whose code fails on them: alone with a 500, among others in
// their results.
type defect struct {
	next  http.RoundTripper
	hits  func(*perdure.Commit) bool
	takes time.Duration // a call, so that others gather meanwhile
	alone atomic.Int64
	among atomic.Int64
}

func (d *defect) RoundTrip(r *http.Request) (*http.Response, error) {
	if path.Base(r.URL.Path) != "commit" {
		return d.next.RoundTrip(r)
	}
	time.Sleep(d.takes)
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var in, healthy api.Commits
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, err
	}
	hit := make([]bool, len(in.Commits))
	for i := range in.Commits {
		if hit[i] = d.hits(&in.Commits[i]); !hit[i] {
			healthy.Commits = append(healthy.Commits, in.Commits[i])
		}
	}
	problem := api.NewProblem(perdure.CodeInternal, "a defect", "")
	var out api.CommitResults
	if len(healthy.Commits) > 0 {
		r = r.Clone(r.Context())
		b, _ = json.Marshal(healthy)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		res, err := d.next.RoundTrip(r)
		if err != nil || len(healthy.Commits) == len(in.Commits) || res.StatusCode != http.StatusOK {
			return res, err
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
			return nil, err
		}
	} else if len(in.Commits) == 1 {
		d.alone.Add(1)
		return reply(r, http.StatusInternalServerError, problem), nil
	}
	d.among.Add(1)
	all := api.CommitResults{}
	for i, c := range in.Commits {
		if hit[i] {
			all.Results = append(all.Results, api.CommitResult{RunID: c.RunID, Error: &api.Refusal{Code: problem.Code, Detail: problem.Detail}})
			continue
		}
		all.Results = append(all.Results, out.Results[0])
		out.Results = out.Results[1:]
	}
	return reply(r, http.StatusOK, all), nil
}

// reply is an answer of the server's kind.
func reply(r *http.Request, status int, body any) *http.Response {
	b, _ := json.Marshal(body)
	typ := "application/json"
	if status != http.StatusOK {
		typ = "application/problem+json"
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {typ}}, Body: io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b)), Request: r}
}

// A defect of the server that one run meets is waited out for a while, whoever commits beside it, and holds up no other.
func TestADefectIsOfTheRunThatMeetsIt(t *testing.T) {
	for _, beside := range []bool{false, true} {
		t.Run(fmt.Sprintf("beside others %v", beside), func(t *testing.T) {
			virtual(t, func(w *world) {
				var passes atomic.Int64
				x := &defect{next: w.wire, hits: func(c *perdure.Commit) bool {
					if c.Outcome == nil {
						return false
					}
					switch string(c.Outcome.Result) {
					case `"passes"`:
						return passes.Add(1) <= 4
					case `"stays"`:
						return true
					}
					return false
				}}
				wk := worker.New(w.client(x), worker.Options{})
				worker.Handle(wk, "job", func(_ context.Context, s string) (string, error) { return s, nil })
				worker.Handle(wk, "chatter", func(ctx context.Context, _ int) (int, error) {
					for context.Cause(ctx) == nil {
						worker.Emit(ctx, "x:chatter", 1)
						time.Sleep(10 * time.Millisecond)
					}
					return 1, nil
				})
				worker.Agent(wk, "stepper", stepper)
				w.work(wk)
				if beside {
					x.takes = 300 * time.Millisecond
					id := w.start(perdure.Submission{Kind: "chatter"})
					defer func() {
						w.c.Cancel(w.ctx, id, "enough", time.Minute)
					}()
				}
				passing := w.start(perdure.Submission{Kind: "job", Input: client.JSON("passes")})
				w.within(10*time.Second, passing, perdure.Completed)
				staying := w.start(perdure.Submission{Kind: "job", Input: client.JSON("stays")})
				time.Sleep(5 * time.Second)
				w.within(time.Second+12*x.takes, w.start(perdure.Submission{Kind: "stepper"}), perdure.Completed)
				run := w.within(time.Minute, staying, perdure.Failed)
				if run.Error == nil || run.Error.Code != worker.CodeRefused {
					t.Errorf("%+v", run.Error)
				}
				if !beside && x.alone.Load() < 10 || beside && x.among.Load() == 0 {
					t.Errorf("it was met %d times alone and %d times among others", x.alone.Load(), x.among.Load())
				}
			})
		})
	}
}

// A server that asks to be left alone is.
func TestAWorkerWaitsAsLongAsTheServerAsks(t *testing.T) {
	virtual(t, func(w *world) {
		var calls atomic.Int64
		busy := tripper(func(r *http.Request) (*http.Response, error) {
			if path.Base(r.URL.Path) != "commit" || calls.Add(1) > 1 {
				return w.wire.RoundTrip(r)
			}
			res := reply(r, http.StatusServiceUnavailable, api.NewProblem(perdure.CodeUnavailable, "busy", ""))
			res.Header.Set("Retry-After", "30")
			return res, nil
		})
		wk := worker.New(w.client(busy), worker.Options{})
		worker.Handle(wk, "job", func(context.Context, int) (int, error) { return 1, nil })
		w.work(wk)
		began := time.Now()
		w.within(32*time.Second, w.start(perdure.Submission{Kind: "job"}), perdure.Completed)
		if took := time.Since(began); took < 30*time.Second || calls.Load() != 2 {
			t.Errorf("%d calls in %s", calls.Load(), took)
		}
	})
}

// The lines of an agent and of its steps may be more than one commit takes.
func TestLinesThatAreTooManyTogether(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.c, worker.Options{})
	worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
		_, _ = agent.Step(ctx, "step", func(ctx context.Context) (string, error) {
			for range 900 {
				if err := agent.Emit(ctx, "x:in", 1); err != nil {
					return "", agent.Permanent(err)
				}
			}
			return "", errors.New("it may be better next time")
		})
		for range 900 {
			if err := agent.Emit(ctx, "x:out", 1); err != nil {
				return "", err
			}
		}
		return "fine", nil
	})
	w.work(wk)
	id := w.start(perdure.Submission{Kind: "agent"})
	run := w.end(id)
	if run.State != perdure.Completed || run.Attempt != 1 {
		t.Errorf("%s, attempt %d: %+v", run.State, run.Attempt, run.Error)
	}
	if lines := w.lines(id); lines["x:in"] != 900 || lines["x:out"] != 900 {
		t.Errorf("%d and %d lines", lines["x:in"], lines["x:out"])
	}
}

// A run may wake, and be granted to the same worker, before that has heard that it sleeps. What is said about the lease
// that is over is not about the new one.
func TestAWakeUpThatOvertakesTheAnswerToItsSuspend(t *testing.T) {
	virtual(t, func(w *world) {
		slow := tripper(func(r *http.Request) (*http.Response, error) {
			res, err := w.wire.RoundTrip(r)
			if path.Base(r.URL.Path) == "commit" {
				time.Sleep(20 * time.Second)
			}
			return res, err
		})
		var log diary
		wk := worker.New(w.client(slow), worker.Options{Logger: log.logger(), AgentSlots: 20, HeartbeatEvery: 3 * time.Second})
		var lost atomic.Int64
		worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
			if err := agent.Sleep(ctx, time.Second); err != nil {
				return "", err
			}
			select {
			case <-time.After(15 * time.Second):
			case <-ctx.Done():
				lost.Add(1)
			}
			return "fine", nil
		})
		w.work(wk)
		var ids []perdure.RunID
		for range 5 {
			ids = append(ids, w.start(perdure.Submission{Kind: "agent"}))
		}
		for _, id := range ids {
			w.within(3*time.Minute, id, perdure.Completed)
		}
		if lost.Load() > 0 || log.says("lease is lost") > 0 {
			t.Errorf("%d were told that they had lost their lease, and the log says so %d times", lost.Load(), log.says("lease is lost"))
		}
	})
}
