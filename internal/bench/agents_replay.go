package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

const (
	resumes     = 7                // of each journal
	recorded    = 10 * time.Minute // the longest one is by then
	whatSteeper = "ten times the steps"
	whatGarbage = "allocated"

	talkTokens = 2000 // of each call, what the model says and what the tool answers
	talkShare  = 4    // a fourth of them is the model's
	whatLater  = "calls 76 to 100 against 26 to 50"
	whatTimes  = "store against text"
)

// talks are conversations, by how often a tool is called in them.
var talks = []int{25, 50, 75, 100}

// journals are the numbers of steps that are replayed: powers of ten.
func (b *Bench) journals() (out []int) {
	for n := 10; n <= max(b.Steps, 10); n *= 10 {
		out = append(out, n)
	}
	return out
}

// benchAgentReplay has agents record steps and then wait for signals. It measures from when a signal is sent until the
// step behind it begins: the signal is durable, the run is leased, its journal has come to the worker and was replayed, and
// the signal's arrival is recorded. What is allocated meanwhile is that of the worker and, in process, of the server.
func measureAgentReplay(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	arrived := make(chan time.Time, 1)
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Agent(w, agentKind, func(ctx *agent.Context, n int) (string, error) {
			for i := range n {
				if _, err := agent.Step(ctx, "look", func(context.Context) (string, error) { b.did(1); return aToken(i), nil }); err != nil {
					return "", err
				}
			}
			for range resumes {
				if _, err := agent.Signal[int](ctx, "go", 0); err != nil {
					return "", err
				}
				if _, err := agent.Step(ctx, "arrive", func(context.Context) (int, error) { arrived <- time.Now(); return 0, nil }); err != nil {
					return "", err
				}
			}
			return "done", nil
		})
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	var before, last float64
	for _, n := range b.journals() {
		b.phase("recording %d steps", n)
		took, bytes, err := a.resume(n, arrived)
		if err != nil {
			return nil, err
		}
		what := fmt.Sprintf("%d steps", n)
		f = append(f, took.latencies(what, closedLoops), Figure{What: named(what, whatGarbage), Value: bytes / 1e3, Unit: unitKilobytes})
		before, last = last, took.spread().P50
	}
	if before > 0 {
		f = append(f, Figure{What: whatSteeper, Value: last / before, Unit: unitTimes})
	}
	return f, nil
}

// resume has a run record so many steps, and wakes it again and again. It tells how long each took, and what each
// allocated.
func (a *agents) resume(n int, arrived <-chan time.Time) (s *samples, bytes float64, err error) {
	run, err := a.c.Start(a.ctx, anAgent(n))
	if err != nil {
		return nil, 0, err
	}
	s = &samples{}
	for range resumes {
		err := await(a.ctx, "the run waits for a signal", recorded, func() (bool, error) {
			now, err := a.c.Get(a.ctx, run.RunID)
			if err == nil && now.State.Terminal() {
				err = fmt.Errorf("the run is %s: %+v", now.State, now.Error)
			}
			return err == nil && now.State == perdure.Suspended, err
		})
		if err != nil {
			return nil, 0, err
		}
		allocated, sent := allocatedBytes(), time.Now()
		if _, err := a.c.Signal(a.ctx, run.RunID, "go", []byte("1")); err != nil {
			return nil, 0, err
		}
		select {
		case at := <-arrived:
			bytes += float64(allocatedBytes()-allocated) / resumes
			s.add(at.Sub(sent))
		case <-time.After(lastRuns):
			return nil, 0, fmt.Errorf("a run was not resumed within %s", lastRuns)
		case <-a.ctx.Done():
			return nil, 0, context.Cause(a.ctx)
		}
	}
	_, _, err = a.c.Join(a.ctx, run.RunID, lastRuns)
	return s, bytes, err
}

// allocatedBytes is what this process has allocated so far.
func allocatedBytes() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// benchAgentConversation has an agent talk with a model that calls a tool again and again, each conversation on data of its own, and
// looks at how much the store has grown by. Both answers of a call are recorded as steps and appended to the thread.
func measureAgentConversation(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	grown := make([]float64, len(talks))
	var text int
	for i, calls := range talks {
		b.phase("%d calls of a tool", calls)
		var bytes int64
		if bytes, text, err = b.talk(ctx, p, target, calls); err != nil {
			return nil, err
		}
		grown[i] = float64(bytes)
		f = append(f, Figure{What: fmt.Sprintf("%d calls", calls), Count: calls, Value: grown[i] / 1e3, Unit: unitKilobytes})
	}
	return append(f,
		Figure{What: whatText, Value: float64(text) / 1e3, Unit: unitKilobytes},
		Figure{What: whatTimes, Value: grown[3] / float64(text), Unit: unitTimes},
		Figure{What: whatLater, Value: (grown[3] - grown[2]) / (grown[1] - grown[0]), Unit: unitTimes}), nil
}

// talk has one conversation in a new place, and tells how much the store has grown by and how long the text is.
func (b *Bench) talk(ctx context.Context, p *place, target string, calls int) (grown int64, text int, err error) {
	q, err := b.newPlace(ctx, p.from())
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, q.remove(context.WithoutCancel(ctx))) }()
	before, err := q.size(ctx)
	if err != nil {
		return 0, 0, err
	}
	a, err := q.agents(ctx, target, b.talker)
	if err != nil {
		return 0, 0, err
	}
	text, err = a.talk(calls)
	if err := errors.Join(err, a.close()); err != nil {
		return 0, 0, err
	}
	after, err := q.size(ctx)
	return after - before, text, err
}

func (a *agents) talk(calls int) (text int, err error) {
	thread, err := a.c.CreateThread(a.ctx, nil)
	if err != nil {
		return 0, err
	}
	sub := anAgent(calls)
	sub.ThreadID = thread.ThreadID
	run, err := a.do(sub)
	if err != nil {
		return 0, err
	}
	return client.Result[int](run)
}

// talker registers the agent that has the conversation. It results in how many bytes were said.
func (b *Bench) talker(w *worker.Worker) {
	worker.Agent(w, agentKind, func(ctx *agent.Context, calls int) (bytes int, err error) {
		for n := range calls {
			for _, turn := range []struct {
				who          string
				from, tokens int
			}{{"assistant", 0, talkTokens / talkShare}, {"tool", talkTokens / talkShare, talkTokens - talkTokens/talkShare}} {
				text, err := agent.Step(ctx, turn.who, func(context.Context) (string, error) { return aText(n*talkTokens+turn.from, turn.tokens), nil })
				if err != nil {
					return 0, err
				}
				if err := agent.Message(ctx, turn.who, text); err != nil {
					return 0, err
				}
				bytes += len(text)
			}
			b.did(1)
		}
		said, err := ctx.History()
		if err == nil && len(said) != 2*calls {
			err = fmt.Errorf("%d messages were said, and %d are there", 2*calls, len(said))
		}
		return bytes, err
	})
}

// aText is some tokens of a text that says nothing twice.
func aText(from, tokens int) string {
	var text strings.Builder
	for n := range tokens {
		text.WriteString(aToken(from + n))
	}
	return text.String()
}
