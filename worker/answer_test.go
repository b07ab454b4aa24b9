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
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// A diary collects a worker's log.
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

// says counts the occurrences of a text in the log.
func (d *diary) says(what string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Count(d.text.String(), what)
}

// setQuota is a store operation that limits the tenant's live runs.
type setQuota int64

func (setQuota) Needs() []store.Ref { return nil }

func (q setQuota) Do(tx *store.Tx) error {
	tx.Tenants.SetQuota(embedded.DefaultTenant, int64(q))
	return nil
}

// quota limits the live runs of a virtual world, while its server is down.
func (w *world) quota(n int64) {
	w.T.Helper()
	w.Close()
	st, err := store.Open(store.Options{Path: filepath.Join(w.dir, "perdure.db")})
	if err != nil {
		w.T.Fatal(err)
	}
	if err := errors.Join(st.Do(w.Ctx, setQuota(n)), st.Close()); err != nil {
		w.T.Fatal(err)
	}
	w.Reopen()
}

// within waits for a run's end and checks its state, its attempt and the time that it took.
func (w *world) within(limit time.Duration, id perdure.RunID, want perdure.State) *api.Run {
	w.T.Helper()
	began := time.Now()
	run := w.End(id)
	if took := time.Since(began); took > limit || run.State != want || run.Attempt != 1 {
		w.T.Errorf("run of %s: %s, %+v, attempt %d, after %s, want %s in attempt 1 within %s",
			run.Kind, run.State, run.Error, run.Attempt, took, want, limit)
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

// A commit that an agent leaves when its function returns can still be refused. The run then fails.
func TestRunFailsWhenItsLastCommitIsRefused(t *testing.T) {
	for _, behind := range []int{0, 600 << 10} { // with the outcome, and in a commit before it
		t.Run(fmt.Sprint(behind), func(t *testing.T) {
			t.Parallel()
			w := open(t, false, nil)
			thread, err := w.C.CreateThread(w.Ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			wk := worker.New(w.C, worker.Options{})
			worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
				for range perdure.MaxOpenWaits + 1 { // more than the server keeps
					agent.Callback[int](ctx, "door", time.Hour)
				}
				agent.Message(ctx, "assistant", "first")
				agent.Message(ctx, "assistant", strings.Repeat("x", behind))
				return "all is well", nil
			})
			w.Work(wk)
			run := w.End(w.Start(perdure.Submission{Kind: "agent", ThreadID: thread.ThreadID}))
			if run.State != perdure.Failed || run.Error.Code != perdure.CodeOverBound || run.Attempt != 1 {
				t.Errorf("%s, attempt %d: %+v, result %s, want failed with %s in attempt 1",
					run.State, run.Attempt, run.Error, run.Result, perdure.CodeOverBound)
			}
			said, err := w.C.Messages(w.Ctx, thread.ThreadID, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range said.Messages {
				if string(m.Content) == `"first"` {
					t.Error("a message of the refused commit is in the thread")
				}
			}
		})
	}
}

// The refusal of a child is the child's failure, not a lost lease.
func TestSpawnOnUnknownThreadFailsTheChild(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{})
	worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (int, error) {
		return agent.Spawn[int](ctx, "kid", nil,
			agent.Options{ThreadID: "01990000-0000-7000-8000-000000000000"}).Join(ctx)
	})
	w.Work(wk)
	run := w.End(w.Start(perdure.Submission{Kind: "agent"}))
	if run.State != perdure.Failed || run.Error.Code != agent.CodeTaskFailed || run.Attempt != 1 ||
		!strings.Contains(run.Error.Message, string(perdure.CodeNotFound)) {
		t.Errorf("%s, attempt %d: %+v, want failed with %s because of %s in attempt 1",
			run.State, run.Attempt, run.Error, agent.CodeTaskFailed, perdure.CodeNotFound)
	}
}

// A run whose children exceed the quota waits, and other runs do not.
func TestRunOverQuotaDelaysNoOther(t *testing.T) {
	virtual(t, func(w *world) {
		w.quota(3)
		var log diary
		wk := worker.New(w.C, worker.Options{Logger: log.logger()})
		leave := make(chan struct{})
		worker.Handle(wk, "sitter", func(context.Context, int) (int, error) { <-leave; return 1, nil })
		worker.Handle(wk, "kid", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "stepper", stepper)
		worker.Agent(wk, "greedy", func(ctx *agent.Context, _ int) (int, error) {
			got, err := agent.JoinAll(ctx, agent.Spawn[int](ctx, "kid", 0), agent.Spawn[int](ctx, "kid", 0))
			return len(got), err
		})
		w.Work(wk)
		sitter := w.Start(perdure.Submission{Kind: "sitter"})
		greedy := w.Start(perdure.Submission{Kind: "greedy"})
		time.Sleep(20 * time.Second)
		for range 5 {
			w.within(time.Second, w.Start(perdure.Submission{Kind: "stepper"}), perdure.Completed)
			time.Sleep(3 * time.Second)
		}
		waits, away := log.says("waits for its tenant's quota"), log.says("does not answer")
		if waits != 1 || away != 0 {
			t.Errorf("%d log lines about the quota and %d about a missing server, want 1 and 0", waits, away)
		}
		close(leave)
		w.within(10*time.Second, sitter, perdure.Completed)
		w.within(10*time.Second, greedy, perdure.Completed)
	})
}

func TestCancelEndsTheWaitForQuota(t *testing.T) {
	virtual(t, func(w *world) {
		w.quota(1)
		wk := worker.New(w.C, worker.Options{})
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
		w.Work(wk)
		for _, kind := range []string{"joins", "returns"} {
			id := w.Start(perdure.Submission{Kind: kind})
			time.Sleep(time.Minute)
			if _, err := w.C.Cancel(w.Ctx, id, "enough", 0); err != nil {
				t.Fatal(err)
			}
			w.within(2*time.Second, id, perdure.Cancelled)
		}
	})
}

// A defect answers some commits with an internal error: with status 500 if the commit is alone in
// its call, otherwise in its result.
type defect struct {
	next  http.RoundTripper
	hits  func(*perdure.Commit) bool
	takes time.Duration // duration of a call, so that commits collect meanwhile
	alone atomic.Int64  // errors with status 500
	among atomic.Int64  // errors in a result
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
			refusal := &api.Refusal{Code: problem.Code, Detail: problem.Detail}
			all.Results = append(all.Results, api.CommitResult{RunID: c.RunID, Error: refusal})
			continue
		}
		all.Results = append(all.Results, out.Results[0])
		out.Results = out.Results[1:]
	}
	return reply(r, http.StatusOK, all), nil
}

// reply returns an answer as the server writes it.
func reply(r *http.Request, status int, body any) *http.Response {
	b, _ := json.Marshal(body)
	typ := "application/json"
	if status != http.StatusOK {
		typ = "application/problem+json"
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {typ}}, Request: r,
		Body: io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b))}
}

// A commit with an internal error is retried for a while. If the error stays, its run fails. Other
// runs are not delayed.
func TestInternalErrorAffectsOnlyItsRun(t *testing.T) {
	for _, beside := range []bool{false, true} {
		t.Run(fmt.Sprintf("beside others %v", beside), func(t *testing.T) {
			virtual(t, func(w *world) {
				var passes atomic.Int64
				x := &defect{next: w.Wire, hits: func(c *perdure.Commit) bool {
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
				wk := worker.New(w.Via(x), worker.Options{})
				worker.Handle(wk, "job", func(_ context.Context, s string) (string, error) { return s, nil })
				worker.Handle(wk, "chatter", func(ctx context.Context, _ int) (int, error) {
					for context.Cause(ctx) == nil {
						worker.Emit(ctx, "x:chatter", 1)
						time.Sleep(10 * time.Millisecond)
					}
					return 1, nil
				})
				worker.Agent(wk, "stepper", stepper)
				w.Work(wk)
				if beside {
					x.takes = 300 * time.Millisecond
					id := w.Start(perdure.Submission{Kind: "chatter"})
					defer func() {
						w.C.Cancel(w.Ctx, id, "enough", time.Minute)
					}()
				}
				passing := w.Start(perdure.Submission{Kind: "job", Input: client.JSON("passes")})
				w.within(10*time.Second, passing, perdure.Completed)
				staying := w.Start(perdure.Submission{Kind: "job", Input: client.JSON("stays")})
				time.Sleep(5 * time.Second)
				w.within(time.Second+12*x.takes, w.Start(perdure.Submission{Kind: "stepper"}), perdure.Completed)
				run := w.within(time.Minute, staying, perdure.Failed)
				if run.Error == nil || run.Error.Code != worker.CodeRefused {
					t.Errorf("error of the run with the lasting defect: %+v, want %s", run.Error, worker.CodeRefused)
				}
				if !beside && x.alone.Load() < 10 || beside && x.among.Load() == 0 {
					t.Errorf("%d errors alone and %d among others: the test did not exercise the case beside=%v",
						x.alone.Load(), x.among.Load(), beside)
				}
			})
		})
	}
}

func TestWorkerHonoursRetryAfter(t *testing.T) {
	virtual(t, func(w *world) {
		var calls atomic.Int64
		busy := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			if path.Base(r.URL.Path) != "commit" || calls.Add(1) > 1 {
				return w.Wire.RoundTrip(r)
			}
			res := reply(r, http.StatusServiceUnavailable, api.NewProblem(perdure.CodeUnavailable, "busy", ""))
			res.Header.Set("Retry-After", "30")
			return res, nil
		})
		wk := worker.New(w.Via(busy), worker.Options{})
		worker.Handle(wk, "job", func(context.Context, int) (int, error) { return 1, nil })
		w.Work(wk)
		began := time.Now()
		w.within(32*time.Second, w.Start(perdure.Submission{Kind: "job"}), perdure.Completed)
		if took := time.Since(began); took < 30*time.Second || calls.Load() != 2 {
			t.Errorf("%d calls in %s, want 2 in at least 30s", calls.Load(), took)
		}
	})
}

// Together, the lines of an agent and of its steps can exceed the limit of one commit.
func TestLinesOverTheCommitLimitAreSplit(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{})
	worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
		_, _ = agent.Step(ctx, "step", func(ctx context.Context) (string, error) {
			for range 900 {
				if err := agent.Emit(ctx, "x:in", 1); err != nil {
					return "", perdure.Permanent(err)
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
	w.Work(wk)
	id := w.Start(perdure.Submission{Kind: "agent"})
	run := w.End(id)
	if run.State != perdure.Completed || run.Attempt != 1 {
		t.Errorf("run %s: %s, attempt %d: %+v, want completed in attempt 1", id, run.State, run.Attempt, run.Error)
	}
	if lines := w.lines(id); lines["x:in"] != 900 || lines["x:out"] != 900 {
		t.Errorf("run %s: %d x:in and %d x:out lines, want 900 each", id, lines["x:in"], lines["x:out"])
	}
}

// A run can be resumed and granted to the same worker before the answer to its suspend arrives.
// That answer must not affect the new lease.
func TestResumeBeforeTheAnswerToItsSuspend(t *testing.T) {
	virtual(t, func(w *world) {
		slow := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			res, err := w.Wire.RoundTrip(r)
			if path.Base(r.URL.Path) == "commit" {
				time.Sleep(20 * time.Second)
			}
			return res, err
		})
		var log diary
		opt := worker.Options{Logger: log.logger(), AgentSlots: 20, HeartbeatEvery: 3 * time.Second}
		wk := worker.New(w.Via(slow), opt)
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
		w.Work(wk)
		var ids []perdure.RunID
		for range 5 {
			ids = append(ids, w.Start(perdure.Submission{Kind: "agent"}))
		}
		for _, id := range ids {
			w.within(3*time.Minute, id, perdure.Completed)
		}
		if lost.Load() > 0 || log.says("lease is lost") > 0 {
			t.Errorf("%d handlers lost their lease, and %d log lines say so, want none", lost.Load(),
				log.says("lease is lost"))
		}
	})
}
