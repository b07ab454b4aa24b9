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
	resumes     = 7                // resumes of each journal
	recorded    = 10 * time.Minute // limit for recording the longest journal
	whatSteeper = "ten times the steps"
	whatGarbage = "allocated"

	talkTokens = 2000 // tokens of each call, of the model and the tool together
	talkShare  = 4    // a fourth of them is of the model
	whatLater  = "calls 76 to 100 against 26 to 50"
	whatTimes  = "store against text"
)

// talks has the numbers of tool calls of the conversations.
var talks = []int{25, 50, 75, 100}

// journals returns the numbers of steps that are replayed: powers of ten.
func (b *Bench) journals() (out []int) {
	for n := 10; n <= max(b.Steps, 10); n *= 10 {
		out = append(out, n)
	}
	return out
}

// measureAgentReplay runs agents that record steps and then wait for signals. It measures from when
// a signal is sent until the next step begins. By then the signal is durable, the run is leased,
// the worker has read and replayed the journal, and the signal is recorded in it. Allocated bytes
// are those of the worker and, as target process, of the server.
func measureAgentReplay(ctx context.Context, b *Bench, p *place, target string) (f []Figure, err error) {
	arrived := make(chan time.Time, 1)
	a, err := p.agents(ctx, target, func(w *worker.Worker) {
		worker.Agent(w, agentKind, func(ctx *agent.Context, n int) (string, error) {
			for i := range n {
				if _, err := agent.Step(ctx, "look", func(context.Context) (string, error) {
					b.did(1)
					return token(i), nil
				}); err != nil {
					return "", err
				}
			}
			for range resumes {
				if _, err := agent.Signal[int](ctx, "go", 0); err != nil {
					return "", err
				}
				if _, err := agent.Step(ctx, "arrive", func(context.Context) (int, error) {
					arrived <- time.Now()
					return 0, nil
				}); err != nil {
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
		f = append(f, took.latencies(what, closedLoops),
			Figure{What: named(what, whatGarbage), Value: bytes / 1e3, Unit: unitKilobytes})
		before, last = last, took.spread().P50
	}
	if before > 0 {
		f = append(f, Figure{What: whatSteeper, Value: last / before, Unit: unitTimes})
	}
	return f, nil
}

// resume runs an agent that records n steps, and wakes it several times. It returns how long each
// resume took, and how much it allocated.
func (a *agents) resume(n int, arrived <-chan time.Time) (s *samples, bytes float64, err error) {
	run, err := a.c.Start(a.ctx, agentRun(n))
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

// allocatedBytes returns how much this process has allocated so far.
func allocatedBytes() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// measureAgentConversation measures how much the store grows by conversations of different lengths,
// each on data of its own. In a conversation a model calls a tool again and again. Both answers of
// a call are recorded as steps and appended to the thread.
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
		f = append(f, Figure{What: fmt.Sprintf("%d calls", calls), Count: calls, Value: grown[i] / 1e3,
			Unit: unitKilobytes})
	}
	return append(f,
		Figure{What: whatText, Value: float64(text) / 1e3, Unit: unitKilobytes},
		Figure{What: whatTimes, Value: grown[3] / float64(text), Unit: unitTimes},
		Figure{What: whatLater, Value: (grown[3] - grown[2]) / (grown[1] - grown[0]), Unit: unitTimes}), nil
}

// talk runs one conversation in a new place. It returns how much the store grew and the length of
// the text.
func (b *Bench) talk(ctx context.Context, p *place, target string, calls int) (grown int64, text int, err error) {
	q, err := b.newPlace(ctx, p.template())
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
	sub := agentRun(calls)
	sub.ThreadID = thread.ThreadID
	run, err := a.do(sub)
	if err != nil {
		return 0, err
	}
	return client.Result[int](run)
}

// talker registers the agent of the conversation. Its result is the number of bytes of the text.
func (b *Bench) talker(w *worker.Worker) {
	worker.Agent(w, agentKind, func(ctx *agent.Context, calls int) (bytes int, err error) {
		for n := range calls {
			for _, turn := range []struct {
				who          perdure.Role
				from, tokens int
			}{
				{perdure.RoleAssistant, 0, talkTokens / talkShare},
				{perdure.RoleTool, talkTokens / talkShare, talkTokens - talkTokens/talkShare},
			} {
				text, err := agent.Step(ctx, string(turn.who), func(context.Context) (string, error) {
					return sampleText(n*talkTokens+turn.from, turn.tokens), nil
				})
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

// sampleText returns tokens of a text without repetitions.
func sampleText(from, tokens int) string {
	var text strings.Builder
	for n := range tokens {
		text.WriteString(token(from + n))
	}
	return text.String()
}
