package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// A client submits runs and acts on them: signals, callbacks, cancels, retries, groups.
type client struct {
	s    *sim
	name string
}

// act does something random.
func (c *client) act() {
	s := c.s
	if s.faultsStopped {
		return
	}
	if !s.reachable() && s.work.chance(0.9) { // mostly it waits until a server is up
		s.after(s.work.between(s.cfg.tempo, 20*s.cfg.tempo), c.act)
		return
	}
	s.after(s.work.between(s.cfg.tempo/10, 2*s.cfg.tempo), c.act)
	if s.defect.chance(0.3) {
		c.endHold()
	}
	if s.selects.chance(0.3) {
		c.message()
	}
	id, any := s.someRun()
	x := s.work.Float64()
	switch {
	case !any || (x < 0.40 && s.model.submitted < s.cfg.runs):
		if s.many.chance(0.15) {
			c.submitMany()
		} else {
			c.submit()
		}
	case x < 0.55:
		c.signal(id)
	case x < 0.63:
		c.callback()
	case x < 0.70:
		s.sendOnce(func() kernel.Op { return &life.Cancel{Tenant: tenant, RunID: id, Reason: "changed my mind"} })
	case x < 0.75:
		key, from := s.name("y"), pick(s.work, retryFrom...)
		if ended := s.endedWithSteps(); len(ended) > 0 && s.work.chance(0.8) {
			id = pick(s.work, ended...)
		}
		if s.model.submitted < 2*s.cfg.runs {
			s.model.submitted++
			s.sendUntilAnswered(func() kernel.Op {
				return &life.Retry{Tenant: tenant, RunID: id, From: from, Key: key}
			}, nil)
		}
	case x < 0.78:
		s.model.submitted++
		from := pick(s.work, retryFrom...)
		s.sendOnce(func() kernel.Op {
			return &upkeep.Redrive{Tenant: tenant, RunID: s.someRunIn(perdure.Failed), From: from}
		})
	case x < 0.83:
		c.adopt()
	case x < 0.88:
		c.group()
	case x < 0.92:
		c.outside(id)
	case x < 0.97:
		c.waitFor(id)
	default:
		if len(s.model.threads) > 0 {
			th := pick(s.work, s.model.threads...)
			s.sendOnce(func() kernel.Op {
				return &life.AppendMessage{Tenant: tenant, ThreadID: th,
					Message: perdure.Message{Role: "user", Content: json.RawMessage(`"and?"`)}}
			})
		} else {
			c.thread()
		}
	}
}

// endHold releases a run that is on hold, or gives it up.
func (c *client) endHold() {
	s := c.s
	var held []perdure.RunID
	for _, id := range s.model.order {
		if s.model.rows[id].OnHold() {
			held = append(held, id)
		}
	}
	if len(held) == 0 {
		return
	}
	id := pick(s.defect, held...)
	if s.defect.chance(0.7) {
		s.sendOnce(func() kernel.Op { return &life.ReleaseHold{Tenant: tenant, RunID: id} })
	} else {
		s.sendOnce(func() kernel.Op { return &life.DeadLetterRun{Tenant: tenant, RunID: id} })
	}
}

// message appends a message of a user to a thread, mostly one whose run is suspended.
func (c *client) message() {
	s := c.s
	var threads []perdure.ThreadID
	for _, id := range s.model.order {
		if r := s.model.rows[id]; r.State == perdure.Suspended && r.ThreadID != "" {
			threads = append(threads, r.ThreadID)
		}
	}
	if len(threads) == 0 || s.selects.chance(0.2) {
		threads = s.model.threads
	}
	if len(threads) == 0 {
		return
	}
	s.appendMessage(pick(s.selects, threads...))
}

// appendMessage appends a message of a user to a thread, once.
func (s *sim) appendMessage(th perdure.ThreadID) {
	key, content := s.name("m"), json.RawMessage(fmt.Sprintf("%q", s.name("p")))
	s.sendUntilAnswered(func() kernel.Op {
		return &life.AppendMessage{Tenant: tenant, ThreadID: th, Key: key,
			Message: perdure.Message{Role: perdure.RoleUser, Content: content}}
	}, nil)
}

// retryFrom are the places at which retries begin. The last is the key of a stage, which not every
// run has.
var retryFrom = []string{"", "", life.FromJournal, life.FromJournal, life.FromStart, "st1"}

// sendOnce sends a request without retries.
func (s *sim) sendOnce(make func() kernel.Op) { s.send(make, func(reply) {}) }

// sendUntilAnswered repeats an idempotent request until it is answered.
func (s *sim) sendUntilAnswered(make func() kernel.Op, then func(reply)) {
	tries := 0
	var again func()
	again = func() {
		s.send(make, func(r reply) {
			if r.unsure() {
				if tries++; tries < 6 || s.faultsStopped {
					s.sometimes("a call was repeated because its outcome was unknown")
					s.after(s.work.between(time.Second, 10*time.Second)<<min(tries, 6), again)
				}
				return
			}
			if then != nil {
				then(r)
			}
		})
	}
	again()
}

// someRun returns a random run, recent ones more often.
func (s *sim) someRun() (perdure.RunID, bool) {
	n := len(s.model.order)
	if n == 0 {
		return "", false
	}
	if s.work.chance(0.6) {
		return s.model.order[n-1-s.work.IntN(min(n, 8))], true
	}
	return pick(s.work, s.model.order...), true
}

func (s *sim) someRunIn(want perdure.State) perdure.RunID {
	var found []perdure.RunID
	for _, id := range s.model.order {
		if s.model.rows[id].State == want {
			found = append(found, id)
		}
	}
	if len(found) == 0 {
		return "nobody"
	}
	return found[len(found)-1]
}

// endedWithSteps returns the ended runs that have recorded steps.
func (s *sim) endedWithSteps() (found []perdure.RunID) {
	for _, id := range s.model.order {
		if s.model.rows[id].State.Terminal() && len(s.model.journals[id]) > 0 {
			found = append(found, id)
		}
	}
	return found
}

func (c *client) thread() {
	s := c.s
	s.send(func() kernel.Op { return &life.CreateThread{Tenant: tenant} }, func(r reply) {
		if !r.lost && r.err == nil {
			s.model.threads = append(s.model.threads, r.op.(*life.CreateThread).Thread.ID)
		}
	})
}

func (c *client) submit() {
	s := c.s
	if len(s.model.threads) < 2 || s.work.chance(0.05) {
		c.thread()
	}
	s.model.submitted++
	n := s.work.Uint64()>>12 + 1
	sub := perdure.Submission{Kind: pick(s.work, "job", "job", "agent", "agent", "agent"), Priority: s.work.IntN(5) - 2,
		Queue: pick(s.work, "default", "default", "other")}
	sub.Input, _ = json.Marshal(input{n, 0})
	if s.work.chance(0.15) {
		sub.Delay = perdure.Duration(s.work.between(0, 5*s.cfg.tempo))
	}
	if s.work.chance(0.3) {
		sub.Timeout = perdure.Duration(s.work.between(s.cfg.tempo, 40*s.cfg.tempo))
	}
	if s.work.chance(0.2) {
		sub.MaxAttempts = s.work.IntN(5) + 1
	}
	if s.work.chance(0.1) {
		sub.Webhook = "https://example.org/hook"
	}
	switch {
	case len(s.model.threads) > 0 && sub.Kind == "agent" && s.work.chance(0.75):
		sub.ThreadID = pick(s.work, s.model.threads...)
		sub.MultitaskStrategy = pick(s.work, "", "", perdure.MultitaskEnqueue, perdure.MultitaskReject,
			perdure.MultitaskInterrupt)
		if s.work.chance(0.5) {
			sub.Messages = []perdure.Message{{Role: "user", Content: json.RawMessage(`"hello"`)}}
		}
	case sub.Kind == "job" && s.work.chance(0.2):
		sub.Class = perdure.Process
	}
	if s.work.chance(0.3) {
		sub.Foreground = true
	}
	s.flow.dress(&sub)
	if s.work.chance(0.1) { // without a key it is sent once and may be lost
		s.model.asked(n, "")
		s.sendOnce(func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: sub} })
		return
	}
	key := s.name("s")
	s.model.asked(n, key)
	mk := func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: sub, Key: key} }
	s.sendUntilAnswered(mk, func(r reply) {
		if r.err == nil && sub.Foreground {
			c.waitFor(r.op.(*life.Submit).Run.ID)
		}
	})
	if s.work.chance(0.1) { // the same request again, much later
		s.after(s.work.between(0, 30*s.cfg.tempo), func() { s.sendOnce(mk) })
	}
	if s.work.chance(0.05) { // another body with the same key
		other := sub
		other.Priority++
		s.after(s.work.between(s.cfg.tempo, 10*s.cfg.tempo), func() {
			if s.model.keys[key] != "" {
				s.sendOnce(func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: other, Key: key} })
			}
		})
	}
}

// submitMany submits several runs in one call. Those whose outcome is unknown are sent again, each by
// itself.
func (c *client) submitMany() {
	s := c.s
	s.sometimes("runs were submitted together")
	var make []func() kernel.Op
	var then []func(reply)
	for range s.many.IntN(5) + 2 {
		s.model.submitted++
		n, key := s.many.Uint64()>>12+1, s.name("s")
		s.model.asked(n, key)
		sub := perdure.Submission{Kind: pick(s.many, "job", "agent"), Priority: s.many.IntN(5) - 2,
			Queue: pick(s.many, "default", "other")}
		sub.Input, _ = json.Marshal(input{n, 0})
		again := s.many.between(time.Second, 10*time.Second)
		submit := func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: sub, Key: key} }
		make, then = append(make, submit), append(then, func(r reply) {
			if r.unsure() {
				s.after(again, func() { s.sendUntilAnswered(submit, nil) })
			}
		})
		if s.many.chance(0.2) { // the same key twice in one call
			make, then = append(make, submit), append(then, func(reply) {})
		}
	}
	s.sendTogether(make, then)
}

func (c *client) signal(id perdure.RunID) {
	s := c.s
	name, payload := pick(s.work, "go", "stop"), json.RawMessage(fmt.Sprintf(`{"s":%q}`, s.name("p")))
	if s.work.chance(0.2) {
		s.model.unkeyed[string(payload)] = true
		s.sendOnce(func() kernel.Op { return &life.Signal{Tenant: tenant, RunID: id, Name: name, Data: payload} })
		return
	}
	key := s.name("g")
	s.sendUntilAnswered(func() kernel.Op {
		return &life.Signal{Tenant: tenant, RunID: id, Name: name, Data: payload, Key: key}
	}, nil)
}

func (c *client) callback() {
	s := c.s
	if len(s.model.tokens) == 0 {
		return
	}
	token, body := pick(s.work, s.model.tokens...), json.RawMessage(fmt.Sprintf(`{"v":%d}`, s.work.IntN(2)))
	s.sendUntilAnswered(func() kernel.Op { return &life.Callback{Token: token, Result: body} }, nil)
}

func (c *client) adopt() {
	s := c.s
	for i := range s.model.order {
		id := s.model.order[len(s.model.order)-1-i]
		if r := s.model.rows[id]; r.Late > 0 {
			n, discard := s.work.IntN(r.Late)+1, s.work.chance(0.4)
			s.sendOnce(func() kernel.Op { return &life.Adopt{Tenant: tenant, RunID: id, N: n, Discard: discard} })
			return
		}
	}
}

func (c *client) group() {
	s := c.s
	op := life.CreateGroup{Tenant: tenant,
		Mode:     pick(s.work, perdure.ModeAll, perdure.ModeAllOK, perdure.ModeAny, perdure.ModeAnyOK),
		OnLosers: pick(s.work, "", perdure.DispositionContinue, perdure.DispositionCancel)}
	if s.work.chance(0.5) {
		op.Timeout = perdure.Duration(s.work.between(s.cfg.tempo, 20*s.cfg.tempo))
	}
	for range s.work.IntN(4) + 1 {
		id, _ := s.someRun()
		op.RunIDs = append(op.RunIDs, id)
	}
	s.sendOnce(func() kernel.Op { again := op; return &again })
}

func (c *client) outside(id perdure.RunID) {
	s := c.s
	if s.model.rows[id].ThreadID == "" {
		return
	}
	job := s.name("j")
	s.model.submitted++
	s.sendUntilAnswered(func() kernel.Op {
		return &life.Continue{Tenant: tenant, RunID: id, Trigger: "ci", JobID: job, Status: "ok", Summary: "green"}
	}, nil)
}

// waitFor waits for a run for a while. It renews its waiter, leaves, or disappears with its node.
func (c *client) waitFor(id perdure.RunID) {
	s := c.s
	where := pick(s.work, "A", "B")
	left := s.work.IntN(4)
	var renew func()
	renew = func() {
		s.sendOnce(func() kernel.Op { return &life.Attach{Tenant: tenant, Node: where, RunIDs: []perdure.RunID{id}} })
		if left--; left > 0 {
			s.after(s.cfg.policy.WaiterTTL/3, renew)
			return
		}
		if s.work.chance(0.6) {
			reason := pick(s.work, "timeout", "disconnect", "detached")
			s.after(s.work.between(0, s.cfg.policy.WaiterTTL), func() {
				s.sendOnce(func() kernel.Op {
					return &life.Defer{Tenant: tenant, RunID: id, Node: where, Reason: reason}
				})
			})
		}
	}
	renew()
}

// interference returns a random operation on a run that is possible at any time.
func (s *sim) interference(id perdure.RunID) kernel.Op {
	r := s.model.rows[id]
	if r == nil {
		return nil
	}
	switch s.fault.IntN(7) {
	case 0, 1:
		payload := fmt.Sprintf(`{"s":%q}`, s.name("p"))
		return &life.Signal{Tenant: tenant, RunID: id, Name: pick(s.fault, "go", "stop"),
			Data: json.RawMessage(payload), Key: s.name("g")}
	case 2:
		if s.fault.chance(0.3) {
			return &life.Cancel{Tenant: tenant, RunID: id, Reason: "at the worst moment"}
		}
		return &life.Attach{Tenant: tenant, Node: "B", RunIDs: []perdure.RunID{id}}
	case 3:
		return &life.Defer{Tenant: tenant, RunID: id, Reason: "detached"}
	case 4:
		if r.ThreadID != "" {
			return &life.Continue{Tenant: tenant, RunID: id, Trigger: "ci", JobID: s.name("j")}
		}
		return &life.CreateGroup{Tenant: tenant, RunIDs: []perdure.RunID{id}, Mode: perdure.ModeAny}
	case 5:
		if r.Late > 0 {
			return &life.Adopt{Tenant: tenant, RunID: id, N: r.Late, Discard: s.fault.chance(0.5)}
		}
		return &dispatch.Claim{Tenant: tenant, Worker: "passer-by", Slots: 1, Queues: []string{r.Queue},
			Start: s.fault.chance(0.5)}
	default:
		// A child ends at this moment on the other node. The parent must not miss it.
		for _, kid := range s.model.order {
			if k := s.model.rows[kid]; k.ParentID == id && k.State == perdure.Queued {
				return &life.Cancel{Tenant: tenant, RunID: kid, Reason: "not needed"}
			}
		}
		return &life.Attach{Tenant: tenant, Node: "A", RunIDs: []perdure.RunID{id}}
	}
}

// answerAllWaits answers every wait, after the faults have stopped.
func (s *sim) answerAllWaits() {
	type open struct {
		id   perdure.RunID
		name string
	}
	var signals []open
	var threads []perdure.ThreadID
	s.view(func(v *store.View) error {
		for _, id := range s.model.order {
			if s.model.rows[id].State != perdure.Suspended {
				continue
			}
			waits, err := v.Waits.List(tenant, id)
			if err != nil {
				return err
			}
			for _, w := range waits {
				if w.State == perdure.WaitOpen && w.Type == perdure.WaitSignal {
					signals = append(signals, open{id, w.Name})
				}
				if w.State == perdure.WaitOpen && w.Type == perdure.WaitMessage {
					threads = append(threads, s.model.rows[id].ThreadID)
				}
			}
		}
		return nil
	})
	for _, o := range signals {
		key, payload := s.name("g"), json.RawMessage(fmt.Sprintf(`{"s":%q}`, s.name("p")))
		s.sendUntilAnswered(func() kernel.Op {
			return &life.Signal{Tenant: tenant, RunID: o.id, Name: o.name, Data: payload, Key: key}
		}, nil)
	}
	for _, th := range threads {
		s.appendMessage(th)
	}
	for _, id := range s.openApprovals() {
		s.decide(id, perdure.Approve)
	}
	for _, token := range s.model.tokens {
		s.sendUntilAnswered(func() kernel.Op {
			return &life.Callback{Token: token, Result: json.RawMessage(`{"v":0}`)}
		}, nil)
	}
	s.model.tokens = nil
}
