package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/worker"
)

// say reports a text in each of the three ways.
func say(ctx *agent.Context, text string) error {
	return errors.Join(agent.Message(ctx, "assistant", text), agent.Emit(ctx, "x:line", text),
		agent.Delta(ctx, text+" "))
}

// said checks that exactly these texts were said, in this order and in each of the three ways.
func (w *scene) said(id perdure.RunID, thread perdure.ThreadID, want string) {
	w.t.Helper()
	var messages, lines []string
	for _, m := range w.messages(thread) {
		role, content, _ := strings.Cut(m, " ")
		if role != "assistant" {
			continue // a note of the server
		}
		messages = append(messages, unquote(w.t, content))
	}
	for _, line := range w.lines(id, "x:line") {
		lines = append(lines, unquote(w.t, string(line)))
	}
	text := ""
	for _, line := range w.lines(id, perdure.LineDelta) {
		text += perdure.DeltaText(perdure.Value(line))
	}
	for what, got := range map[string]string{"messages": strings.Join(messages, " "), "lines": strings.Join(lines, " "),
		"text": strings.TrimSpace(text)} {
		if got != want {
			w.t.Errorf("run %s: %s = %q, want %q", id, what, got, want)
		}
	}
}

func unquote(t *testing.T, text string) (out string) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s is no string: %v", text, err)
	}
	return out
}

// talk returns an agent that executes steps and says things in order: "say:x" says x, "uuid:x" and
// "now:x" ask for values, "wait" and "sleep" wait, and other words are steps.
func talk(done *tally, words ...string) code {
	return func(ctx *agent.Context, in int) (string, error) {
		var out []string
		for _, word := range words {
			what, name, _ := strings.Cut(word, ":")
			var err error
			switch what {
			case "say":
				err = say(ctx, name)
			case "uuid":
				out = append(out, name+" "+agent.UUID(ctx, name))
			case "now":
				out = append(out, name+" "+agent.Now(ctx, name).Format(time.RFC3339Nano))
			case "wait":
				err = wait(ctx)
			case "sleep":
				err = agent.Sleep(ctx, time.Millisecond)
			default:
				err = done.do(ctx, word)
			}
			if err != nil {
				return "", err
			}
		}
		return strings.Join(out, ", "), nil
	}
}

// An attempt that fails has said something. The next one succeeds and says something else: both are
// said, the answer too.
func TestAnswerAfterFailedAttemptIsSaid(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, first, again, want string }{
		{"another text", "busy", "answer", "hello busy answer end"},
		{"the same text", "hm", "hm", "hello hm hm end"}, // once after the error, and once after the result
		{"nothing before", "", "answer", "hello answer end"},
		{"nothing after", "busy", "", "hello busy end"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			w.work(func(wk *worker.Worker) {
				worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (string, error) {
					speak := func(text string) error {
						if text == "" {
							return nil
						}
						return say(ctx, text)
					}
					if err := speak("hello"); err != nil {
						return "", err
					}
					answer, err := done.failsOnce(ctx, "model")
					if err != nil {
						return "", errors.Join(speak(row.first), err)
					}
					if err := errors.Join(speak(row.again), agent.Sleep(ctx, time.Millisecond)); err != nil {
						return "", err
					}
					return answer, speak("end")
				})
			})
			thread := w.thread()
			id := w.start(perdure.Submission{Kind: "chat", ThreadID: thread})
			completed(t, w.end(id), `"model"`)
			w.said(id, thread, row.want)
		})
	}
}

// An error that the agent goes past is a fact. A message about it, from before the error was recorded, is
// said once.
func TestReportAboutRecordedErrorIsSaidOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (string, error) {
			if _, err := done.failsOnce(ctx, "model"); err != nil {
				if err := say(ctx, "busy"); err != nil {
					return "", err
				}
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return "", err
			}
			if done.add("execution") < 4 {
				return "", errors.New("crash")
			}
			return "", errors.Join(agent.Sleep(ctx, time.Millisecond), say(ctx, "end"))
		})
	})
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "chat", ThreadID: thread, MaxAttempts: 10})
	run := w.end(id)
	reached(t, run, perdure.Completed)
	if run.Attempt == 1 {
		t.Errorf("run %s: one attempt, want several", id)
	}
	w.said(id, thread, "busy end")
}

// The items of a Parallel are steps: after its error comes another report than after its results.
func TestAnswerAfterFailedParallelIsSaid(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (string, error) {
			_, err := agent.Parallel(ctx, "look", []int{1, 2}, func(_ context.Context, n int) (int, error) {
				if n == 2 && done.add("look") == 1 {
					return 0, errors.New("away")
				}
				return n, nil
			})
			if err := say(ctx, "looked"); err != nil {
				return "", err
			}
			if err != nil {
				return "", err
			}
			return "", errors.Join(agent.Sleep(ctx, time.Millisecond), say(ctx, "end"))
		})
	})
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "chat", ThreadID: thread})
	reached(t, w.end(id), perdure.Completed)
	w.said(id, thread, "looked looked end")
}

// An agent that fails and says something new each time makes no progress: its attempts end.
func TestNewReportsGiveNoAttemptsBack(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "fails", func(ctx *agent.Context, _ struct{}) (string, error) {
			return "", errors.Join(say(ctx, fmt.Sprint("try", done.add("try"))), errors.New("busy"))
		})
	})
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "fails", ThreadID: thread, MaxAttempts: 3})
	failed(t, w.end(id), perdure.Failed, perdure.CodeFailed, 3)
	w.said(id, thread, "try1 try2 try3")
}

// Texts of any length and many of them are said once, and the journal has some bytes for each.
func TestManyAndLongTextsAreSaidOnce(t *testing.T) {
	t.Parallel()
	const many = 1500 // more than a commit takes
	w := open(t)
	var done tally
	long := strings.Repeat("ä", 10_000)
	before := func(end string) code {
		return func(ctx *agent.Context, _ int) (string, error) {
			if err := done.do(ctx, "think"); err != nil {
				return "", err
			}
			for n := range many {
				if err := agent.Delta(ctx, fmt.Sprint(n, ";")); err != nil {
					return "", err
				}
			}
			return "", errors.Join(agent.Delta(ctx, long+end), wait(ctx))
		}
	}
	id := changes(w, before("|"), before("!"))
	reached(t, w.end(id), perdure.Completed)
	var want strings.Builder
	for n := range many {
		fmt.Fprint(&want, n, ";")
	}
	want.WriteString(long + "|" + long + "!") // a text with another end is another one, all of it
	got := ""
	for _, line := range w.lines(id, perdure.LineDelta) {
		got += perdure.DeltaText(perdure.Value(line))
	}
	if got != want.String() {
		t.Errorf("text has %d bytes, want %d, each part once", len(got), want.Len())
	}
	size := 0
	for after := int64(0); ; {
		page, err := w.c.Steps(w.ctx, id, after, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			size += len(e.Key) + e.Size
		}
		if after = page.NextAfter; after == 0 {
			break
		}
	}
	if size > 12*many {
		t.Errorf("the journal has %d bytes for %d texts, want at most 12 each", size, many)
	}
}

// Other goroutines have no order. Their lines are written once all the same.
func TestLinesOfGoroutinesAreWrittenOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "crowd", func(ctx *agent.Context, _ struct{}) (string, error) {
			late := make(chan bool)
			said := make(chan error)
			for _, text := range []string{"one", "two"} {
				go func() {
					<-late
					said <- agent.Emit(ctx, "x:line", text)
				}()
			}
			if done.add("execution") == 1 { // once before the step, and once after it
				close(late)
				if err := errors.Join(<-said, <-said); err != nil {
					return "", err
				}
			}
			if err := done.do(ctx, "a"); err != nil {
				return "", err
			}
			if done.of("execution") > 1 {
				close(late)
				if err := errors.Join(<-said, <-said); err != nil {
					return "", err
				}
			}
			return "", agent.Sleep(ctx, time.Millisecond)
		})
	})
	id := w.start(perdure.Submission{Kind: "crowd"})
	reached(t, w.end(id), perdure.Completed)
	if lines := w.lines(id, "x:line"); len(lines) != 2 {
		t.Errorf("lines = %s, want two", lines)
	}
}

// A saga whose undo fails at first executes its body again. Nothing is said twice, although the calls
// of the body return other errors than the first time.
func TestUndoneSagaSaysEverythingOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	var first string
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
			err := agent.Saga(ctx, "book", func() error {
				undo := agent.Undo(func(context.Context, string) error {
					if done.add("undo") < 6 {
						return perdure.Permanent(errors.New("not yet"))
					}
					return nil
				})
				if err := done.do(ctx, "flight", undo); err != nil {
					return err
				}
				if err := say(ctx, "booked"); err != nil {
					return err
				}
				_, err := agent.Step(ctx, "hotel", func(context.Context) (int, error) { return 0, errors.New("full") })
				text := strings.ReplaceAll(fmt.Sprint("sorry: ", err), " ", "_")
				if done.add("body") == 1 {
					first = text
				} else if text == first {
					t.Error("the body gets the same error again, so this test shows nothing")
				}
				return errors.Join(say(ctx, text), fmt.Errorf("no hotel: %w", err))
			})
			if err != nil && strings.Contains(err.Error(), "not undone") {
				return "", err
			}
			if err := say(ctx, "undone"); err != nil {
				return "", err
			}
			return "sorry", agent.Sleep(ctx, time.Millisecond)
		})
	})
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "trip", ThreadID: thread, MaxAttempts: 10})
	completed(t, w.end(id), `"sorry"`)
	if n := done.of("undo"); n != 6 {
		t.Errorf("the undo was called %d times, want 6", n)
	}
	w.said(id, thread, "booked "+first+" undone")
}

// A run that is asked to stop says what it has said before once, and says that it stops.
func TestCancelledAgentSaysItsLastWordOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "stops", func(ctx *agent.Context, _ struct{}) (string, error) {
			if err := say(ctx, "waiting"); err != nil {
				return "", err
			}
			err := wait(ctx)
			if errors.Is(err, agent.ErrCancelled) {
				err = errors.Join(err, say(ctx, "stopped"))
			}
			return agent.UUID(ctx, "of the end"), err // nobody is accused of a value that is asked for now
		})
	})
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "stops", ThreadID: thread})
	w.waits(id, "signal:go on#1")
	if _, err := w.c.Cancel(w.ctx, id, "", 0); err != nil {
		t.Fatal(err)
	}
	reached(t, w.end(id), perdure.Cancelled)
	w.said(id, thread, "waiting stopped")
}

// A retry begins with the journal of its original. It does not repeat what the original said on the
// thread, and says what comes after.
func TestRetryFromJournalRepeatsNoMessage(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (string, error) {
			id := agent.UUID(ctx, "order")
			if err := errors.Join(agent.Message(ctx, "assistant", "hello"), done.do(ctx, "a"),
				agent.Message(ctx, "assistant", "working on "+id)); err != nil {
				return "", err
			}
			if _, err := done.failsOnce(ctx, "model"); err != nil {
				return "", errors.Join(agent.Message(ctx, "assistant", "busy"), err)
			}
			return id, agent.Message(ctx, "assistant", "answer")
		})
	})
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "chat", ThreadID: thread, MaxAttempts: 1})
	failed(t, w.end(id), perdure.Failed, "busy", 1)
	run := w.retry(id, "journal")
	reached(t, run, perdure.Completed)
	got := slices.DeleteFunc(w.messages(thread), func(m string) bool { return !strings.HasPrefix(m, "assistant") })
	order := unquote(t, string(run.Result))
	want := []string{`assistant "hello"`, fmt.Sprintf(`assistant "working on %s"`, order), `assistant "busy"`,
		`assistant "answer"`}
	if !slices.Equal(got, want) {
		t.Errorf("messages = %q, want %q", got, want)
	}
}

// Sleeps and timers had Go's text of a duration in their ids. A run that waits for such a one goes on.
func TestSleepersOfTheOldFormAreContinued(t *testing.T) {
	t.Parallel()
	w := open(t)
	at := time.Now().Add(-time.Minute)
	for _, c := range []struct {
		wait, frame string
		agent       func(ctx *agent.Context) error
	}{
		{"sleep:1ms#1", `{"opened":["sleep:1ms#1"]}`, func(ctx *agent.Context) error {
			return agent.Sleep(ctx, time.Millisecond)
		}},
		{"sleep:" + at.UTC().Format(time.RFC3339Nano) + "#1", "", func(ctx *agent.Context) error {
			return agent.SleepUntil(ctx, at)
		}},
		{"after:1h0m0s#1", fmt.Sprintf(`{"opened":["after:1h0m0s#1"],"due":{"after:1h0m0s#1":%d}}`, at.UnixNano()),
			func(ctx *agent.Context) error {
				_, err := agent.Select(ctx, agent.OnSignal[int](ctx, "never"), agent.After(ctx, time.Hour))
				return err
			}},
	} {
		if c.frame == "" {
			c.frame = fmt.Sprintf(`{"opened":[%q]}`, c.wait)
		}
		id := w.start(perdure.Submission{Kind: "sleeper"})
		polled, err := session.Of(w.c).Poll(w.ctx, "by hand", api.Poll{Slots: 1, Start: true, Confirms: true})
		if err != nil || len(polled.Runs) != 1 {
			t.Fatalf("polled %+v (%v), want a run", polled, err)
		}
		g := polled.Runs[0]
		results, err := session.Of(w.c).Commit(w.ctx, "by hand", perdure.Commit{ID: "c", RunID: id, Epoch: g.Epoch,
			Journal: []perdure.JournalEntry{
				{Key: fmt.Sprintf("_frame:%d.1", g.Epoch), Value: json.RawMessage(c.frame)}},
			Waits: []perdure.WaitSpec{
				{ID: c.wait, Type: perdure.WaitTimer, Timeout: perdure.Duration(time.Millisecond)}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		if err != nil || results[0].Error != nil {
			t.Fatalf("commit: %+v (%v)", results, err)
		}
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "sleeper", func(ctx *agent.Context, _ any) (string, error) {
				if err := c.agent(ctx); err != nil {
					return "", err
				}
				return agent.Step(ctx, "after", func(context.Context) (string, error) { return "awake", nil })
			})
		})
		completed(t, w.end(id), `"awake"`)
		stop()
	}
}

// Frames of the release before count messages and lines, and have times and ids without names. Runs
// with such a journal go on as that release would have.
func TestJournalOfTheOldFormIsContinued(t *testing.T) {
	t.Parallel()
	w := open(t)
	thread := w.thread()
	id := w.start(perdure.Submission{Kind: "old", ThreadID: thread})
	polled, err := session.Of(w.c).Poll(w.ctx, "by hand", api.Poll{Slots: 1, Start: true, Confirms: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("polled %+v (%v), want a run", polled, err)
	}
	g := polled.Runs[0]
	results, err := session.Of(w.c).Commit(w.ctx, "by hand", perdure.Commit{ID: "c", RunID: id, Epoch: g.Epoch,
		Journal: []perdure.JournalEntry{
			{Key: fmt.Sprintf("_frame:%d.1", g.Epoch), Value: json.RawMessage(
				`{"messages":1,"lines":2,"times":[1700000000123456789],"uuids":["first","second"]}`)},
			{Key: "a#1", Value: json.RawMessage(`{"ok":"a"}`)},
			{Key: fmt.Sprintf("_frame:%d.2", g.Epoch), Value: json.RawMessage(
				`{"messages":1,"lines":2,"opened":["signal:go on#1"]}`)},
		},
		Messages: []perdure.Message{{Role: "assistant", Content: client.JSON("x")},
			{Role: "assistant", Content: client.JSON("y")}},
		Events: []perdure.Emitted{{Type: "x:line", Data: client.JSON("x")},
			{Type: perdure.LineDelta, Data: client.JSON(map[string]string{"text": "x "})},
			{Type: "x:line", Data: client.JSON("y")},
			{Type: perdure.LineDelta, Data: client.JSON(map[string]string{"text": "y "})}},
		Waits: []perdure.WaitSpec{{ID: "signal:go on#1", Type: perdure.WaitSignal, Name: "go on",
			Timeout: perdure.Never}},
		Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
	if err != nil || results[0].Error != nil {
		t.Fatalf("commit: %+v (%v)", results, err)
	}
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "old", func(ctx *agent.Context, in int) (string, error) {
			out, err := talk(&done, strings.Fields("uuid:one now:began say:x uuid:one a say:y wait say:z "+
				"uuid:one sleep say:end")...)(ctx, in)
			if parts := strings.Split(out, ", "); err == nil && len(parts) == 4 {
				done.add("third " + parts[3])
				out = strings.Join(parts[:3], ", ")
			}
			return out, err
		})
	})
	w.signal(id, "go on", nil)
	at := time.Unix(0, 1700000000123456789).Format(time.RFC3339Nano)
	completed(t, w.end(id), fmt.Sprintf("%q", "one first, began "+at+", one second"))
	w.said(id, thread, "x y z end")
	if done.of("a") != 0 {
		t.Error("a recorded step was executed again")
	}
}
