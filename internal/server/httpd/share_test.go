package httpd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// A shareStep is a step of a call with its share. It takes a part, and gives back others.
type shareStep struct {
	name  string
	do    func(context.Context, *share) error
	takes part // parts: none
	gives []part
}

// gives makes a step that takes nothing and can't fail.
func gives(name string, do func(*share), gives ...part) shareStep {
	return shareStep{name, func(_ context.Context, h *share) error { do(h); return nil }, parts, gives}
}

var shareSteps = []shareStep{
	{"enter", func(ctx context.Context, h *share) error { return h.enter(ctx) }, callPart, nil},
	{"body", func(ctx context.Context, h *share) error { return h.reserveBody(ctx, smallBody+1) }, bodyPart, nil},
	{"answer", func(ctx context.Context, h *share) error { return h.reserveAnswer(ctx, smallAnswer+1) },
		answerPart, nil},
	{"turn", func(ctx context.Context, h *share) error {
		_, err := h.turn(ctx, smallBody+1)
		return err
	}, turnPart, nil},
	{"woken", func(ctx context.Context, h *share) error {
		h.woken(h.of.wakeOne(ctx, h.tenant))
		return nil
	}, wokenPart, nil},
	{"block", func(_ context.Context, h *share) error { return h.block(stream.Wait) }, blockedPart,
		[]part{turnPart, wokenPart, answerPart, bodyPart, callPart}},
	gives("unblock", (*share).unblock, blockedPart),
	gives("release the answer", (*share).releaseAnswer, answerPart),
	gives("end the turn", (*share).endTurn, turnPart),
	gives("encoded", (*share).encoded, turnPart, wokenPart),
	gives("move to a stream", func(h *share) { *h = h.move() }),
	gives("release", (*share).release, turnPart, wokenPart, answerPart, bodyPart, callPart, blockedPart),
}

// heldUnits returns the units of each part that calls hold.
func heldUnits(s *shares) (used [parts]int64) {
	used[turnPart], used[wokenPart] = s.turns.Used(), s.woken.Used()
	used[answerPart], used[bodyPart], used[callPart] = s.answers.Used(), s.bodies.Used(), s.calls.Used()
	by, _ := s.limiter.Attached()
	for _, n := range by {
		used[blockedPart] += n
	}
	return used
}

// checkUnheld fails unless the calls of tenant a hold nothing: of the node, and of a's own limits.
func checkUnheld(t *testing.T, s *shares, way any) {
	t.Helper()
	time.Sleep(maxTurnRest) // in virtual time: a turn is held for longer than its work
	if used := heldUnits(s); used != [parts]int64{} {
		t.Fatalf("%v: units %v are held after the call, want none", way, used)
	}
	if own := s.of("a"); own.calls.Used() != 0 || own.streams.Used() != 0 {
		t.Fatalf("%v: a's own limits count %d calls and %d streams after the call, want none", way, own.calls.Used(),
			own.streams.Used())
	}
}

// A call takes and gives back the parts of its share in any order, dies after any step, and the node
// then holds nothing of it.
func TestShareLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(&Options{})
		s.set("a", perdure.TenantLimits{MaxCalls: 1, MaxStreams: 1})
		const length = 4
		all := 1
		for range length {
			all *= len(shareSteps)
		}
		for n := range all {
			var way []string
			func() {
				h := s.share("a")
				defer func() {
					if p := recover(); p != "it dies" {
						t.Fatalf("%v: %v", way, p)
					}
				}()
				defer h.release()
				defer h.release() // once more does no harm
				var holds [parts]bool
				for i, rest := 0, n; i < length; i, rest = i+1, rest/len(shareSteps) {
					step := &shareSteps[rest%len(shareSteps)]
					way = append(way, step.name)
					s.called("b", time.Now()) // beside another tenant, a needs turns
					if err := step.do(t.Context(), &h); err != nil {
						t.Fatalf("%v: %v", way, err)
					}
					if step.takes != blockedPart || !holds[blockedPart] { // one that blocks already gives nothing back
						for _, p := range step.gives {
							holds[p] = false
						}
					}
					if step.takes != parts {
						holds[step.takes] = true
					}
					used := heldUnits(s)
					for p := range parts {
						has := h.held[p] != nil
						if has != holds[p] || has != (used[p] > 0) && (has || p != turnPart) { // a turn has its rest
							t.Fatalf("%v: the share has part %d = %t and %d units of it are held, want %t", way, p, has,
								used[p], holds[p])
						}
					}
				}
				panic("it dies")
			}()
			checkUnheld(t, s, way)
		}
	})
}

// A call that is refused a part has no more than before. All places are taken by another call.
func TestRefusedPartLeavesNothing(t *testing.T) {
	for _, step := range shareSteps {
		if step.takes == parts || step.takes == wokenPart { // nothing is refused, and a crowd does not wait for turns
			continue
		}
		t.Run(step.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShares(&Options{Streams: 1})
				s.set("a", perdure.TenantLimits{MaxCalls: 1, MaxStreams: 2})
				var others []func()
				for p, g := range map[part]interface {
					TryEnter(perdure.TenantID, int64) (func(), bool)
				}{callPart: s.calls, bodyPart: s.bodies, answerPart: s.answers, turnPart: s.turns} {
					leave, ok := g.TryEnter("a", 1<<40) // its share
					if !ok {
						t.Fatalf("the gate of part %d is not empty", p)
					}
					others = append(others, leave)
				}
				stream1 := s.share("a")
				if err := stream1.block(stream.SSE); err != nil {
					t.Fatal(err)
				}
				others = append(others, stream1.release)
				before := heldUnits(s)
				h := s.share("a")
				s.called("b", time.Now())
				var refused *perdure.Error
				if err := step.do(t.Context(), &h); !errors.As(err, &refused) {
					t.Errorf("the error is %v, want a refusal", err)
				}
				if used := heldUnits(s); used != before {
					t.Errorf("units %v are held after the refusal, want %v", used, before)
				}
				h.release()
				for _, leave := range others {
					leave()
				}
				checkUnheld(t, s, step.name)
			})
		})
	}
}

// A call that has changed something is answered without memory, and one that has not is refused.
func TestChangedCallIsAnsweredWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(&Options{})
		leave, _ := s.answers.TryEnter("a", maxAnswers)
		defer leave()
		for _, changed := range []bool{false, true} {
			h := s.share("a")
			h.changed = changed
			if err := h.reserveAnswer(t.Context(), largeRun); (err == nil) != changed {
				t.Errorf("a call that has changed something = %t: error %v", changed, err)
			}
			h.release()
		}
	})
}
