package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/worker"
)

// defect waits until a run is held, or has ended because its server holds none, and checks the code.
// It returns the message.
func (w *scene) defect(id perdure.RunID, code perdure.Code) (message string) {
	w.t.Helper()
	var got perdure.Failure
	eventually.True(w.t, "run "+string(id)+" is held or ends", func() bool {
		if held := w.lines(id, "run:held"); len(held) > 0 {
			if err := json.Unmarshal(held[0], &got); err != nil {
				w.t.Fatal(err)
			}
			return true
		}
		run, err := w.c.Get(w.ctx, id)
		if err != nil {
			w.t.Fatal(err)
		}
		if run.Error != nil {
			got = *run.Error
		}
		return run.State.Terminal()
	})
	if got.Code != code {
		w.t.Errorf("run %s: code %q (%s), want it held with %q", id, got.Code, got.Message, code)
	}
	return got.Message
}

// An edit of the code under a running agent is found before anything new is executed, and the error
// says which step, what is recorded and what was asked.
func TestEditsUnderRunningAgentAreFound(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name, before, after string
		says                []string
	}{
		{"a rename", "a b wait c", "a bee wait c", []string{"bee#1", "does not have this step", "the step b#1"}},
		{"a removal", "a b wait c", "b wait c", []string{"c#1", "the step a#1"}},
		{"a removal and nothing new", "a b wait", "b wait", []string{"a#1", "returns"}},
		{"a step before", "a b wait c", "new a b wait c", []string{"new#1", "the step a#1"}},
		{"a step between", "a b wait c", "a new b wait c", []string{"new#1", "the step b#1"}},
		{"a step before a wait", "a wait c", "a new wait c", []string{"new#1", "the wait signal:go on#1"}},
		{"the same name before a wait", "a wait c", "a a wait c", []string{"a#2", "the wait signal:go on#1"}},
		{"one of the same name is gone", "a a wait c", "a wait c", []string{"c#1", "the step a#2"}},
		{"a child before", "a join:one wait b", "join:two a join:one wait b",
			[]string{"two#1", "this child", "the step a#1"}},
		{"a child is gone", "a join:one wait b", "a wait b", []string{"b#1", "the child one#1"}},
		{"another kind", "a join:one wait b", "a join:two wait b", []string{"two#1", "the child one#1"}},
		{"a wait is gone", "a wait b sleep", "a sleep", []string{"sleep:1000#1", "the wait signal:go on#1"}},
		{"a wait before", "a wait b", "sleep a wait b", []string{"sleep:1000#1", "this wait", "the step a#1"}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := openHeld(t)
			var done tally
			w.children12(&done)
			before := strings.Fields(row.before)
			message, run := w.rollsBack(steps(&done, before...), steps(&done, strings.Fields(row.after)...))
			contains(t, message, row.says...)
			reached(t, run, perdure.Completed)
			effects := map[string]int{}
			for _, word := range before {
				if name := strings.TrimPrefix(word, "join:"); name != "wait" && name != "sleep" {
					effects[name]++
				}
			}
			for _, what := range done.all() {
				if n := done.of(what); n != effects[what] {
					t.Errorf("%q was executed %d times, want %d: the run was held before, and goes on under the "+
						"build before", what, n, effects[what])
				}
			}
		})
	}
}

// children12 serves the kinds one and two.
func (w *scene) children12(done *tally) {
	w.work(func(wk *worker.Worker) {
		for _, kind := range []string{"one", "two"} {
			worker.Handle(wk, kind, func(context.Context, struct{}) (string, error) {
				return fmt.Sprint(kind, " ", done.add(kind)), nil
			})
		}
	})
}

// A declared removal is not missed, whatever was removed.
func TestRemovedIsNotMissed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ before, removed, after, want string }{
		{"a b wait c", "a", "b wait c", "b 1, c 1"},
		{"a a b wait c", "a", "b wait c", "b 1, c 1"},
		{"a b wait", "a", "b wait", "b 1"},
		{"a join:one wait c", "one", "a wait c", "a 1, c 1"},
		{"a wait c", "go on", "a c", "a 1, c 1"},
		{"a wait c", "signal:go on", "a c", "a 1, c 1"},
		{"sleep wait c", "sleep:1000", "wait c", "c 1"},
	} {
		t.Run(row.before+" without "+row.removed, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			w.children12(&done)
			after := steps(&done, strings.Fields(row.after)...)
			id := changes(w, steps(&done, strings.Fields(row.before)...),
				func(ctx *agent.Context, in int) (string, error) {
					agent.Removed(ctx, row.removed)
					return after(ctx, in)
				})
			completed(t, w.end(id), fmt.Sprintf("%q", row.want))
		})
	}
}

// A step before recorded ones is announced by Version. A run that was past it goes the old way.
func TestVersionAnnouncesNewStep(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	id := changes(w, steps(&done, "a", "b", "wait", "c"), func(ctx *agent.Context, in int) (string, error) {
		if agent.Version(ctx, "look up first", 1) >= 1 {
			return steps(&done, "new", "a", "bee", "wait", "c")(ctx, in)
		}
		return steps(&done, "a", "b", "wait", "c")(ctx, in)
	})
	completed(t, w.end(id), `"a 1, b 1, c 1"`)
	fresh := w.start(perdure.Submission{Kind: "changes"})
	w.signal(fresh, "go on", nil)
	completed(t, w.end(fresh), `"new 1, a 2, bee 1, c 2"`)
}

// A step whose name differs in each execution is executed once, and not once in each execution.
func TestChangingNameIsFound(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "clock", func(ctx *agent.Context, _ struct{}) (string, error) {
			n := done.add("execution")
			if err := done.do(ctx, fmt.Sprint("call at ", n)); err != nil {
				return "", err
			}
			return "", agent.Sleep(ctx, time.Millisecond)
		})
	})
	message := w.defect(w.start(perdure.Submission{Kind: "clock"}), perdure.CodeNondeterminism)
	if !strings.Contains(message, "the step call at 1#1") {
		t.Errorf("message = %q, want it to name the recorded step", message)
	}
	if done.of("call at 1") != 1 || done.of("call at 2") != 0 {
		t.Errorf("effects = %v, want the first call alone", done.all())
	}
}

// Children that several branches spawn keep their results, although the order of the branches differs in
// each execution.
func TestChildrenOfBranchesKeepTheirResults(t *testing.T) {
	t.Parallel()
	w := open(t)
	const n = 8
	var executions tally
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "kid", func(_ context.Context, i int) (int, error) { return i, nil })
		worker.Agent(wk, "crowd", func(ctx *agent.Context, _ struct{}) (string, error) {
			back := executions.add("execution")%2 == 0
			own := agent.Spawn[int](ctx, "kid", 100)
			var fs [n]*agent.Future[int]
			turn := make([]chan int, n+1)
			for i := range turn {
				turn[i] = make(chan int)
			}
			var branches [n]*agent.Branch
			for i := range n {
				branches[i] = agent.Go(ctx, fmt.Sprint("part ", i), func(ctx *agent.Context) error {
					at := i // in order, and in the opposite order the next time
					if back {
						at = n - 1 - i
					}
					<-turn[at]
					fs[i] = agent.Spawn[int](ctx, "kid", i)
					close(turn[at+1])
					return nil
				})
			}
			other := agent.Spawn[int](ctx, "kid", 200)
			close(turn[0])
			for _, b := range branches {
				if err := b.Join(ctx); err != nil {
					return "", err
				}
			}
			last := agent.Spawn[int](ctx, "kid", 300)
			for i, f := range append(fs[:], own, other, last) {
				v, err := f.Join(ctx)
				if want := append([]int{0, 1, 2, 3, 4, 5, 6, 7}, 100, 200, 300)[i]; err != nil || v != want {
					return "", perdure.Permanent(fmt.Errorf("child %d gave %d, %w", want, v, err))
				}
			}
			return "in place", nil
		})
	})
	completed(t, w.ends("crowd", nil), `"in place"`)
}

// A branch that the code no longer has is missed when the agent begins something, or completes.
func TestRemovedBranchIsFound(t *testing.T) {
	t.Parallel()
	var done tally
	first := func(ctx *agent.Context, _ int) (string, error) {
		side := agent.Go(ctx, "left", func(ctx *agent.Context) error { return done.do(ctx, "side") })
		if err := side.Join(ctx); err != nil {
			return "", err
		}
		return "", wait(ctx)
	}
	for name, second := range map[string]code{
		"completes": steps(&done, "wait"),
		"goes on":   steps(&done, "wait", "effect"),
		"is first":  steps(&done, "effect", "wait"),
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			id := changes(w, first, second)
			if message := w.defect(id, perdure.CodeNondeterminism); !strings.Contains(message, "the branch left#1") {
				t.Errorf("message = %q, want it to name the branch", message)
			}
		})
	}
	if done.of("effect") > 0 {
		t.Errorf("effects = %v, want none before the hold", done.all())
	}
}

// shape types of a step's result, before and after an edit.
type (
	priced  struct{ Amount, Tax int }
	renamed struct{ Sum, Tax int }
	lost    struct{ Amount int }
	gained  struct {
		Amount, Tax int
		Currency    string
	}
	pair  struct{ At []int }
	texts struct{ Of string }
	blobs struct{ Of []byte }
	fixed struct{ At [2]int }
	// writesMore writes a field that it does not read.
	writesMore struct{ Amount int }
	// readsAll reads anything.
	readsAll struct{ text string }
)

func (w writesMore) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]int{"Amount": w.Amount, "Double": 2 * w.Amount})
}

func (r *readsAll) UnmarshalJSON(b []byte) error { r.text = string(b); return nil }

// measure is an agent whose step gives a value of some type.
func measure[T any](v T) code {
	return func(ctx *agent.Context, _ int) (string, error) {
		got, err := agent.Step(ctx, "measure", func(context.Context) (T, error) { return v, nil })
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%+v", got), wait(ctx)
	}
}

// A recorded value that does not fit the step's type is found, fields that the type does not have
// included.
func TestRecordedValueFitsItsType(t *testing.T) {
	t.Parallel()
	before := measure(priced{7, 1})
	for name, row := range map[string]struct {
		before, after code
		want          string   // result
		says          []string // or what the defect says
	}{
		"the same": {before, before, "{Amount:7 Tax:1}", nil},
		"a field is renamed": {before, measure(renamed{}), "", []string{"measure#1", "Amount, Tax", "renamed",
			`"Amount"`}},
		"a field is gone": {before, measure(lost{}), "", []string{"measure#1", "lost", `"Tax"`}},
		"a field is new":  {before, measure(gained{}), "{Amount:7 Tax:1 Currency:}", nil},
		"another type": {before, measure(""), "", []string{"measure#1", "an object with Amount, Tax",
			"string"}},
		"a pointer": {before, measure(&lost{}), "", []string{"measure#1"}},
		"nested":    {measure([]priced{{7, 1}}), measure([]lost{}), "", []string{"an array", "lost"}},
		"a map":     {before, measure(map[string]int{}), "map[Amount:7 Tax:1]", nil},
		"anything":  {before, measure[any](nil), "map[Amount:7 Tax:1]", nil},
		"raw": {before, measure(json.RawMessage("1")),
			"[123 34 65 109 111 117 110 116 34 58 55 44 34 84 97 120 34 58 49 125]", nil},
		"a reader of its own":    {before, measure(readsAll{}), `{text:{"Amount":7,"Tax":1}}`, nil},
		"null was, and can be":   {measure[*priced](nil), measure[map[string]int](nil), "map[]", nil},
		"null was, and can't be": {measure[*priced](nil), measure(priced{}), "", []string{"measure#1", "null"}},
		"an array of another length": {measure([]int{7, 8, 9}), measure([2]int{}), "", []string{"measure#1", "an array",
			"[2]int"}},
		"a longer array":          {measure([]int{1}), measure([2]int{}), "", []string{"measure#1", "length"}},
		"an array of that length": {measure([]int{1, 2}), measure([2]int{}), "[1 2]", nil},
		"an array in a field": {measure(pair{[]int{1, 2, 3}}), measure(fixed{}), "", []string{"measure#1",
			"length"}},
		"an array, and it fits":     {measure(fixed{[2]int{1, 2}}), measure(fixed{}), "{At:[1 2]}", nil},
		"a string is bytes now":     {measure("abcd"), measure([]byte(nil)), "", []string{"measure#1", "is bytes now"}},
		"bytes are a string now":    {measure([]byte("hi")), measure(""), "", []string{"measure#1", "is a string now"}},
		"bytes are bytes":           {measure([]byte("hi")), measure([]byte(nil)), "[104 105]", nil},
		"a string like bytes":       {measure("abcd"), measure(""), "abcd", nil},
		"a string in a field":       {measure(texts{"abcd"}), measure(blobs{}), "", []string{"Of has a string"}},
		"bytes in a field":          {measure(blobs{[]byte("hi")}), measure(texts{}), "", []string{"Of has bytes"}},
		"bytes are anything":        {measure([]byte("hi")), measure[any](nil), "aGk=", nil},
		"writes more than it reads": {measure(writesMore{7}), measure(writesMore{7}), "{Amount:7}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			id := changes(w, row.before, row.after)
			if row.says == nil {
				text, _ := json.Marshal(row.want)
				completed(t, w.end(id), string(text))
				return
			}
			message := w.defect(id, perdure.CodeNondeterminism)
			for _, says := range row.says {
				if !strings.Contains(message, says) {
					t.Errorf("message = %q, want it to contain %q", message, says)
				}
			}
			if strings.Contains(message, "7") {
				t.Errorf("message = %q, want none of the recorded content in it", message)
			}
		})
	}
}

// Signals and results of children may have more fields than the agent asks for.
func TestValuesFromOutsideMayHaveMoreFields(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "kid", func(context.Context, struct{}) (priced, error) { return priced{7, 1}, nil })
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
			kid, err := agent.Spawn[lost](ctx, "kid", nil).Join(ctx)
			if err != nil {
				return 0, err
			}
			word, err := agent.Signal[lost](ctx, "word", time.Minute)
			return kid.Amount + word.Amount, err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.signal(id, "word", priced{1, 2})
	completed(t, w.end(id), "8")
}

// An agent that was asked to stop may return early, without asking for all that is recorded.
func TestEarlyReturnOfCancelledAgentIsNotAccused(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "stops", func(ctx *agent.Context, _ struct{}) (string, error) {
			for range 2 {
				if ctx.Err() != nil {
					return "partly", nil
				}
				if err := done.do(ctx, "part"); err != nil {
					return "", err
				}
			}
			return "", wait(ctx)
		})
	})
	id := w.start(perdure.Submission{Kind: "stops"})
	w.waits(id, "signal:go on#1")
	if _, err := w.c.Cancel(w.ctx, id, "", 0); err != nil {
		t.Fatal(err)
	}
	completed(t, w.end(id), `"partly"`)
}
