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
	"github.com/perdure/perdure/internal/testkit/eventually"
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

// shape types of a step's result, before and after an edit.
type (
	priced  struct{ Amount, Tax int }
	renamed struct{ Sum, Tax int }
	lost    struct{ Amount int }
	pair    struct{ At []int }
	texts   struct{ Of string }
	blobs   struct{ Of []byte }
	fixed   struct{ At [2]int }
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
		"a pointer": {before, measure(&lost{}), "", []string{"measure#1"}},
		"nested":    {measure([]priced{{7, 1}}), measure([]lost{}), "", []string{"an array", "lost"}},
		"raw": {before, measure(json.RawMessage("1")),
			"[123 34 65 109 111 117 110 116 34 58 55 44 34 84 97 120 34 58 49 125]", nil},
		"a reader of its own":  {before, measure(readsAll{}), `{text:{"Amount":7,"Tax":1}}`, nil},
		"null was, and can be": {measure[*priced](nil), measure[map[string]int](nil), "map[]", nil},
		"an array of another length": {measure([]int{7, 8, 9}), measure([2]int{}), "", []string{"measure#1", "an array",
			"[2]int"}},
		"a longer array":          {measure([]int{1}), measure([2]int{}), "", []string{"measure#1", "length"}},
		"an array of that length": {measure([]int{1, 2}), measure([2]int{}), "[1 2]", nil},
		"an array in a field": {measure(pair{[]int{1, 2, 3}}), measure(fixed{}), "", []string{"measure#1",
			"length"}},
		"an array, and it fits":     {measure(fixed{[2]int{1, 2}}), measure(fixed{}), "{At:[1 2]}", nil},
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
