package worker_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// A notebook collects lines from several goroutines.
type notebook struct {
	mu    sync.Mutex
	lines []string
}

func (n *notebook) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

func (n *notebook) read() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

type whoKey struct{}

// The first middleware is the outermost. Each gets the run and the error, and can add to the
// context.
func TestMiddlewareWrapsEveryExecution(t *testing.T) {
	both(t, func(w *world) {
		var book notebook
		wk := worker.New(w.C, worker.Options{})
		for _, name := range []string{"outer", "inner"} {
			wk.Use(func(ctx context.Context, run worker.RunInfo, next func(context.Context) error) error {
				before, _ := ctx.Value(whoKey{}).(string)
				book.note("%s begins %s, attempt %d", name, run.Kind, run.Attempt)
				err := next(context.WithValue(ctx, whoKey{}, before+name+" "))
				book.note("%s ends: %v", name, err)
				return err
			})
		}
		worker.Handle(wk, "task", func(ctx context.Context, _ int) (any, error) { return ctx.Value(whoKey{}), nil })
		worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (any, error) {
			return agent.Step(ctx, "who", func(ctx context.Context) (any, error) { return ctx.Value(whoKey{}), nil })
		})
		worker.Handle(wk, "failing", func(context.Context, int) (int, error) {
			return 0, perdure.Permanent(errors.New("no"))
		})
		w.Work(wk)
		for _, row := range []struct {
			kind, result, err string
			state             perdure.State
		}{
			{"task", `"outer inner "`, "<nil>", perdure.Completed},
			{"agent", `"outer inner "`, "<nil>", perdure.Completed},
			{"failing", "", "no", perdure.Failed},
		} {
			run := w.End(w.Start(perdure.Submission{Kind: row.kind}))
			if run.State != row.state || string(run.Result) != row.result {
				w.T.Errorf("%s: %s with result %s, want %s with %s", row.kind, run.State, run.Result, row.state,
					row.result)
			}
			got := book.read()
			want := []string{"outer begins " + row.kind + ", attempt 1", "inner begins " + row.kind + ", attempt 1",
				"inner ends: " + row.err, "outer ends: " + row.err}
			if !slices.Equal(got[len(got)-4:], want) {
				w.T.Errorf("%s: the middleware did %q, want %q at the end", row.kind, got, want)
			}
		}
	})
}

// The error that a middleware returns decides the outcome, but there is no success without a
// result.
func TestMiddlewareDecidesTheOutcome(t *testing.T) {
	both(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		wk.Use(func(ctx context.Context, run worker.RunInfo, next func(context.Context) error) error {
			switch run.Kind {
			case "refused":
				return perdure.Permanent(worker.Fail("closed", "not today"))
			case "translated":
				return perdure.Permanent(worker.Fail("translated", "%v", next(ctx)))
			case "swallowed":
				_ = next(ctx)
				return nil
			case "skipped":
				return nil
			case "again", "agent again":
				if err := next(ctx); err == nil {
					return errors.New("the first call succeeded")
				}
				return next(ctx)
			case "in time":
				ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				return next(ctx)
			case "panics":
				panic("in the middle")
			}
			return next(ctx)
		})
		called := make(map[string]int)
		for _, kind := range []string{"refused", "translated", "swallowed", "skipped", "again", "in time", "panics"} {
			worker.Handle(wk, kind, func(ctx context.Context, _ int) (int, error) {
				called[kind]++
				switch {
				case kind == "again" && called[kind] == 2:
					return 7, nil
				case kind == "in time":
					<-ctx.Done()
					return 0, perdure.Permanent(ctx.Err())
				}
				return 0, errors.New("no")
			})
		}
		worker.Agent(wk, "agent again", func(*agent.Context, int) (int, error) { return 0, errors.New("no") })
		w.Work(wk)
		for _, row := range []struct {
			kind  string
			state perdure.State
			code  perdure.Code
			says  string
		}{
			{"refused", perdure.Failed, "closed", "not today"},
			{"translated", perdure.Failed, "translated", "no"},
			{"swallowed", perdure.Failed, perdure.CodeFailed, "no result"},
			{"skipped", perdure.Failed, perdure.CodeFailed, "no result"},
			{"again", perdure.Completed, "", "7"},
			{"agent again", perdure.Failed, perdure.CodeFailed, "a second time"},
			{"in time", perdure.Failed, perdure.CodeFailed, "deadline"},
			{"panics", perdure.Failed, worker.CodePanic, "middleware_test.go"},
		} {
			run := w.End(w.Start(perdure.Submission{Kind: row.kind, MaxAttempts: 1}))
			said, code := string(run.Result), perdure.Code("")
			if run.Error != nil {
				said, code = run.Error.Message, run.Error.Code
			}
			if run.State != row.state || code != row.code || !strings.Contains(said, row.says) {
				w.T.Errorf("%s: %s, code %q, %.200s, want %s, code %q, with %q",
					row.kind, run.State, code, said, row.state, row.code, row.says)
			}
		}
	})
}

// When an agent begins to wait, the middleware's deferred calls run, and next does not return.
func TestSuspendingAgentRunsDeferredCallsOfMiddleware(t *testing.T) {
	both(t, func(w *world) {
		var book notebook
		wk := worker.New(w.C, worker.Options{})
		wk.Use(func(ctx context.Context, run worker.RunInfo, next func(context.Context) error) error {
			if run.Kind == "parent" {
				defer book.note("%d left", run.Epoch)
				err := next(ctx)
				book.note("%d returned", run.Epoch)
				return err
			}
			return next(ctx)
		})
		worker.Handle(wk, "child", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "parent", func(ctx *agent.Context, _ int) (int, error) {
			return agent.Spawn[int](ctx, "child", 1).Join(ctx)
		})
		w.Work(wk)
		run := w.End(w.Start(perdure.Submission{Kind: "parent"}))
		if run.State != perdure.Completed || string(run.Result) != "1" {
			w.T.Errorf("parent: %s with result %s, want completed with 1", run.State, run.Result)
		}
		// The second execution can end before the deferred calls of the first have run.
		eventually.True(w.T, "both executions have left the middleware", func() bool { return len(book.read()) >= 3 })
		got := book.read()
		slices.SortStableFunc(got, func(a, b string) int { return cmp.Compare(a[:1], b[:1]) }) // by epoch
		if want := []string{"1 left", "2 returned", "2 left"}; !slices.Equal(got, want) {
			w.T.Errorf("the middleware did %q, want %q", got, want)
		}
	})
}

// A run is executed before the mistake, so that Run has certainly started.
func TestMisuseOfRunningWorkerEndsIt(t *testing.T) {
	t.Parallel()
	noop := func(context.Context, int) (int, error) { return 0, nil }
	for name, misuse := range map[string]func(wk *worker.Worker){
		"Use":    func(wk *worker.Worker) { wk.Use() },
		"Handle": func(wk *worker.Worker) { worker.Handle(wk, "late", noop) },
	} {
		w := open(t, false, nil)
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "job", noop)
		ended := make(chan error, 1)
		go func() { ended <- wk.Run(w.Ctx) }()
		w.End(w.Start(perdure.Submission{Kind: "job"}))
		misuse(wk)
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "before Run") {
				t.Errorf("%s after the start: Run = %v, want an error that says \"before Run\"", name, err)
			}
		case <-w.Ctx.Done():
			t.Fatalf("%s after the start: Run goes on, want an error", name)
		}
	}
}

// Every log line about a run has its id, its kind and its attempt.
func TestLogLinesNameTheirRun(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	var text locked
	wk := worker.New(w.C, worker.Options{Logger: slog.New(slog.NewJSONHandler(&text, nil))})
	worker.Handle(wk, "says", func(ctx context.Context, _ int) (int, error) {
		worker.Logger(ctx).Info("hello")
		return 1, nil
	})
	worker.Handle(wk, "fails", func(context.Context, int) (int, error) {
		return 0, perdure.Permanent(errors.New("no"))
	})
	worker.Handle(wk, "panics", func(context.Context, int) (int, error) { panic("no") })
	worker.Agent(wk, "agent", func(*agent.Context, int) (int, error) { return 0, perdure.Permanent(errors.New("no")) })
	stop := w.Work(wk)
	kinds := []string{"says", "fails", "panics", "agent"}
	for _, kind := range kinds {
		id := w.Start(perdure.Submission{Kind: kind})
		w.End(id)
		if want := fmt.Sprintf(`"run":%q,"kind":%q,"attempt":1`, id, kind); strings.Count(text.String(), want) != 1 {
			t.Errorf("want exactly one log line with %s, got:\n%s", want, text.String())
		}
	}
	stop()
	if worker.Logger(w.Ctx) != slog.Default() {
		t.Error("Logger outside a handler is not slog.Default()")
	}
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// echo registers a kind whose result is its input.
func echo[T any](wk *worker.Worker, kind string) {
	worker.Handle(wk, kind, func(_ context.Context, in T) (T, error) { return in, nil })
}

func TestInputsAndResultsOfAnyType(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	wk := worker.New(w.C, worker.Options{})
	echo[struct{}](wk, "nothing")
	echo[json.RawMessage](wk, "raw")
	echo[*disk](wk, "pointer")
	echo[any](wk, "any")
	echo[[]int](wk, "slice")
	echo[map[string]*int](wk, "map")
	echo[time.Duration](wk, "number")
	echo[string](wk, "string")
	worker.Handle(wk, "bad raw", func(context.Context, int) (json.RawMessage, error) {
		return json.RawMessage("{"), nil
	})
	worker.Handle(wk, "loop", func(context.Context, int) (any, error) {
		m := map[string]any{}
		m["m"] = m
		return m, nil
	})
	w.Work(wk)
	for _, row := range []struct{ kind, input, result, code string }{
		{"nothing", ``, `{}`, ""}, {"nothing", `null`, `{}`, ""}, {"nothing", `{"a":1}`, `{}`, ""},
		{"nothing", `[1]`, ``, "invalid_input"},
		{"raw", ``, `null`, ""}, {"raw", `null`, `null`, ""}, {"raw", `{"a":[1,"x"]}`, `{"a":[1,"x"]}`, ""},
		{"pointer", ``, `null`, ""}, {"pointer", `null`, `null`, ""},
		{"pointer", `{"Host":"cube"}`, `{"Host":"cube"}`, ""}, {"pointer", `3`, ``, "invalid_input"},
		{"any", ``, `null`, ""}, {"any", `[true,null,"é"]`, `[true,null,"é"]`, ""},
		{"slice", ``, `null`, ""}, {"slice", `[]`, `[]`, ""}, {"slice", `[3,4]`, `[3,4]`, ""},
		{"slice", `[3.5]`, ``, "invalid_input"},
		{"map", `{"a":1,"b":null}`, `{"a":1,"b":null}`, ""}, {"number", `5000`, `5000`, ""},
		{"string", `"\u0001x"`, `"\u0001x"`, ""},
		{"bad raw", `1`, ``, "invalid_result"}, {"loop", `1`, ``, "invalid_result"},
	} {
		run := w.End(w.Start(perdure.Submission{Kind: row.kind, Input: json.RawMessage(row.input)}))
		code := ""
		if run.Error != nil {
			code = string(run.Error.Code)
		}
		if string(run.Result) != row.result || code != row.code || run.Attempt != 1 {
			t.Errorf("%s(%s): result %s, code %q, attempt %d, want %s, code %q, attempt 1",
				row.kind, row.input, run.Result, code, run.Attempt, row.result, row.code)
		}
	}
}
