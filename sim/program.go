package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/perdure/perdure"
)

// A plan is what a run does. It is drawn from the number in the run's input, so every worker and
// every attempt has the same plan. A worker knows the progress only from the journal and the inbox,
// because its memory is lost with it.
type plan struct {
	n             uint64
	stages        []stage
	end           string // complete, continue, fail, reject, flaky, unhandled
	fails         int    // attempts that fail, for flaky
	onCancel      int    // its reaction to a cancel request
	extras        extras
	withoutThread bool            // the thread for a child was busy, so it is spawned without
	plain         bool            // the unique key of a child was taken, so it is spawned without
	anew          json.RawMessage // the input of the run that goes on for it, instead of a plain complete
}

// Reactions to a cancel request.
const (
	obeys = iota
	cleansUp
	ignores
	breaks
	onCancelCount
)

// A stage is one step of a plan. It is over when it is in the journal.
type stage struct {
	do    string // step, say, spawn, wait, select
	kids  []perdure.Spawn
	waits []perdure.WaitSpec
	named bool // the suspend names only the first wait
	early bool // the waits are opened before the suspend
	split bool // the children are spawned before the waits are opened
	peek  bool // the inbox is read before the suspend
}

type input struct {
	N     uint64 `json:"n"`
	Depth int    `json:"d"`
}

// planOf returns the plan for a run's input. A continuation has another input, and just completes.
func planOf(raw perdure.Value, kind string, tempo time.Duration, threads []perdure.ThreadID) *plan {
	var in input
	if err := json.Unmarshal([]byte(raw), &in); err != nil || in.N == 0 {
		return &plan{end: "complete"}
	}
	r := stream{rand.New(rand.NewPCG(in.N, 7))}
	p := &plan{n: in.N, onCancel: r.IntN(onCancelCount), end: "complete"}
	switch x := r.Float64(); {
	case x < 0.06:
		p.end = "fail"
	case x < 0.09:
		p.end = "reject"
	case x < 0.25:
		p.end, p.fails = "flaky", r.IntN(4)+1
	case x < 0.30:
		p.end = "unhandled"
	case x < 0.55:
		p.end = "continue"
	}
	if kind == "agent" {
		p.extras = drawExtras(in.N)
		if p.extras.ask {
			defer p.addApproval(tempo)
		}
	}
	if kind != "agent" {
		for range r.IntN(2) {
			p.stages = append(p.stages, stage{do: "step"})
		}
		return p
	}
	for i := range r.IntN(4) + 1 {
		p.stages = append(p.stages, drawStage(r, i, in, tempo, threads))
	}
	// Selects have a stream of their own, so that the other stages are as they were without.
	sel := stream{rand.New(rand.NewPCG(in.N, 8))}
	var selects []stage
	for i := range sel.IntN(3) {
		selects = append(selects, drawSelect(sel, i, in, tempo))
	}
	if sel.chance(0.6) {
		p.stages = append(selects, p.stages...)
	} else {
		p.stages = append(p.stages, selects...)
	}
	return p
}

// drawSelect draws a stage that waits for the first of several: a child, a message, a signal, a timer.
// One in four waits only for a message.
func drawSelect(r stream, i int, in input, tempo time.Duration) stage {
	st := stage{do: "select", early: r.chance(0.3), peek: r.chance(0.3)}
	add := func(w perdure.WaitSpec) {
		w.ID = fmt.Sprintf("select%d.%d", i, len(st.waits))
		st.waits = append(st.waits, w)
	}
	if r.chance(0.25) {
		add(perdure.WaitSpec{Type: perdure.WaitMessage, Timeout: perdure.Duration(r.between(tempo, 12*tempo))})
		return st
	}
	add(perdure.WaitSpec{Type: perdure.WaitMessage, Timeout: perdure.Never})
	if r.chance(0.6) {
		k := perdure.Spawn{Key: fmt.Sprintf("selected%d", i), Kind: "job"}
		k.Input, _ = json.Marshal(input{r.Uint64()>>12 + 1, in.Depth + 1})
		st.kids = append(st.kids, k)
		add(perdure.WaitSpec{Type: perdure.WaitChildren, Mode: perdure.ModeAny, Keys: []string{k.Key},
			Timeout: perdure.Never})
	}
	if r.chance(0.6) {
		add(perdure.WaitSpec{Type: perdure.WaitSignal, Name: pick(r, "go", "stop"), Timeout: perdure.Never})
	}
	if r.chance(0.7) {
		add(perdure.WaitSpec{Type: perdure.WaitTimer, Timeout: perdure.Duration(r.between(tempo/8, 6*tempo))})
	}
	return st
}

// withoutMessages replaces waits for messages, for a run without a thread.
func (p *plan) withoutMessages() {
	for i := range p.stages {
		for j := range p.stages[i].waits {
			if w := &p.stages[i].waits[j]; w.Type == perdure.WaitMessage {
				w.Type, w.Name = perdure.WaitSignal, "go"
			}
		}
	}
}

func drawStage(r stream, i int, in input, tempo time.Duration, threads []perdure.ThreadID) stage {
	st := stage{do: pick(r, "step", "say", "spawn", "wait", "wait", "wait", "wait"), named: r.chance(0.4),
		early: r.chance(0.3),
		split: r.chance(0.3), peek: r.chance(0.3)}
	var keys []string
	if st.do == "spawn" || (st.do == "wait" && r.chance(0.65)) {
		for j := range r.IntN(3) + 1 {
			k := perdure.Spawn{Key: fmt.Sprintf("kid%d.%d", i, j), Kind: "job", Priority: r.IntN(3) - 1}
			if in.Depth < 1 && r.chance(0.3) {
				k.Kind, k.Class = "agent", perdure.Agent
				// The draw must not depend on the existing threads, so that the plan is the same
				// each time.
				if r.chance(0.4) && len(threads) > 0 {
					k.ThreadID = threads[int(in.N%uint64(len(threads)))]
				}
			}
			k.Input, _ = json.Marshal(input{r.Uint64()>>12 + 1, in.Depth + 1})
			if r.chance(0.25) {
				k.OnParentEnd = perdure.DispositionContinue
			}
			if r.chance(0.15) {
				k.Delay = perdure.Duration(r.between(0, 4*tempo))
			}
			if r.chance(0.2) {
				k.Timeout = perdure.Duration(r.between(tempo, 10*tempo))
			}
			st.kids = append(st.kids, k)
			keys = append(keys, k.Key)
		}
	}
	if st.do != "wait" {
		return st
	}
	timeout := func() perdure.Duration {
		switch x := r.Float64(); {
		case x < 0.15:
			return perdure.Never
		case x < 0.4:
			return 0
		}
		return perdure.Duration(r.between(tempo/4, 12*tempo))
	}
	if len(keys) > 0 {
		st.waits = append(st.waits,
			perdure.WaitSpec{Type: perdure.WaitChildren, Keys: keys, Timeout: timeout(), OnStall: r.chance(0.2),
				Mode: pick(r, perdure.ModeAll, perdure.ModeAllOK, perdure.ModeAny, perdure.ModeAnyOK)})
	}
	for len(st.waits) == 0 || r.chance(0.3) {
		w := perdure.WaitSpec{Type: pick(r, perdure.WaitSignal, perdure.WaitTimer, perdure.WaitCallback),
			Timeout: timeout()}
		switch w.Type {
		case perdure.WaitSignal:
			w.Name = pick(r, "go", "stop")
		case perdure.WaitTimer:
			w.Timeout = perdure.Duration(r.between(tempo/8, 6*tempo))
		}
		st.waits = append(st.waits, w)
	}
	for j := range st.waits {
		st.waits[j].ID = fmt.Sprintf("w%d.%d", i, j)
	}
	return st
}

// next returns the next commit of a task, according to its journal and inbox.
func (t *task) next() *perdure.Commit {
	c := &perdure.Commit{ID: t.w.s.name("k"), RunID: t.run, Epoch: t.epoch}
	if t.cancel && t.plan.onCancel != ignores {
		if undo := t.undo(); undo != nil && t.plan.onCancel != breaks {
			return undo
		}
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeCancelled}
		if t.plan.onCancel == breaks {
			c.Outcome = &perdure.Outcome{Type: perdure.OutcomeFail,
				Error: &perdure.Failure{Code: "broke", Message: "while it was to stop"}}
		}
		return c
	}
	for i := range t.plan.stages {
		if key := fmt.Sprintf("st%d", i); !t.journal[key] {
			t.stage(c, &t.plan.stages[i], i, key)
			t.leave(c)
			return c
		}
	}
	t.finish(c)
	return c
}

// stage adds the next part of a stage to a commit.
func (t *task) stage(c *perdure.Commit, st *stage, i int, key string) {
	over := perdure.JournalEntry{Key: key, Value: json.RawMessage(fmt.Sprint(i))}
	switch st.do {
	case "say":
		if t.thread {
			c.Messages = []perdure.Message{{Role: "assistant", Content: json.RawMessage(`"working"`)}}
		}
		c.Events = []perdure.Emitted{{Type: perdure.LineProgress,
			Data: json.RawMessage(fmt.Sprintf(`{"stage":%d}`, i))}}
		fallthrough
	case "step":
		c.Journal = []perdure.JournalEntry{over}
		return
	case "spawn":
		c.Children, c.Journal = t.kids(st), []perdure.JournalEntry{over}
		return
	}
	if item := t.ended(st); item != nil {
		if st.do == "select" {
			t.choose(c, st, key, item)
			return
		}
		if item.Type == perdure.ItemTimeout && t.plan.end == "unhandled" {
			c.Outcome = &perdure.Outcome{Type: perdure.OutcomeFail,
				Error: &perdure.Failure{Code: perdure.CodeWaitTimeout, Message: "nobody answered"}}
			return
		}
		c.Journal, c.Ack = []perdure.JournalEntry{over}, t.acks(nil)
		for _, w := range st.waits {
			c.Close = append(c.Close, w.ID)
		}
		return
	}
	half := fmt.Sprintf("half%d", i)
	switch {
	case st.split && len(st.kids) > 0 && !t.journal[half]:
		c.Children, c.Journal = t.kids(st), []perdure.JournalEntry{{Key: half, Value: json.RawMessage("1")}}
		return
	case st.early && !t.opened[i]:
		c.Children, c.Waits = t.kids(st), append([]perdure.WaitSpec(nil), st.waits...)
		t.opened[i] = true
		return
	}
	c.Children, c.Waits = t.kids(st), append([]perdure.WaitSpec(nil), st.waits...)
	c.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend}
	if st.named {
		c.Outcome.Waits = []string{st.waits[0].ID}
	}
}

// choose ends a select. One commit records the winner, acknowledges what it got, and closes the waits
// of the others. That gives back the signals and messages that had come for them.
func (t *task) choose(c *perdure.Commit, st *stage, key string, won *perdure.Item) {
	t.w.s.checkWinner(t, key, won)
	c.Journal = []perdure.JournalEntry{{Key: key, Value: winnerEntry(won.WaitID)}}
	c.Ack = t.acks(won)
	for _, w := range st.waits {
		if w.ID != won.WaitID {
			c.Close = append(c.Close, w.ID)
		}
	}
}

// winnerEntry is the journal entry of a select.
func winnerEntry(wait string) json.RawMessage { return json.RawMessage(fmt.Sprintf("%q", wait)) }

// kids returns the children of a stage.
func (t *task) kids(st *stage) []perdure.Spawn {
	out := append([]perdure.Spawn(nil), st.kids...)
	for i := range out {
		if t.plan.withoutThread {
			out[i].ThreadID = ""
		}
		if t.w.s.flow.dressSpawn(&out[i]); t.plan.plain {
			out[i].Unique = nil
		}
	}
	return out
}

// ended returns the inbox item with which a wait of the stage ended. If several did, it is the one that
// came first: the winner of a select.
func (t *task) ended(st *stage) *perdure.Item {
	for i := range t.inbox {
		for _, w := range st.waits {
			if t.inbox[i].WaitID == w.ID && (!st.named || w.ID == st.waits[0].ID) {
				return &t.inbox[i]
			}
		}
	}
	return nil
}

// acks returns the items that the program no longer needs. won is the winner of a select, or nil.
func (t *task) acks(won *perdure.Item) []int64 {
	var out []int64
	for _, i := range t.inbox {
		returns := i.Type == perdure.ItemSignal || i.Type == perdure.ItemMessage
		if returns && (i.WaitID == "" || won != nil && i.Seq != won.Seq) {
			continue // a later wait may need it
		}
		if i.Type == perdure.ItemContinue && t.plan.n%2 == 0 {
			continue // left to a continuation
		}
		out = append(out, i.Seq)
	}
	return out
}

// finish adds the outcome of a plan to its last commit.
func (t *task) finish(c *perdure.Commit) {
	result := func() {
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeComplete,
			Result: json.RawMessage(fmt.Sprintf(`{"n":%d,"by":%q}`, t.plan.n, c.ID)), Summary: "done"}
	}
	no := false
	switch p := t.plan; {
	case p.end == "fail":
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeFail,
			Error: &perdure.Failure{Code: "broken", Message: "for good"}, Retryable: &no}
		if n := len(p.stages); n > 0 && p.n%2 == 0 { // as if the last stage had recorded the error
			c.Outcome.Error.CauseKey = fmt.Sprintf("st%d", n-1)
		}
	case p.end == "reject":
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "not mine"}
	case p.end == "flaky" && t.attempt <= p.fails:
		c.Outcome = &perdure.Outcome{Type: perdure.OutcomeFail,
			Error: &perdure.Failure{Code: "flaky", Message: "try again"}}
	case p.end == "continue" && t.thread:
		result()
		for i := range p.stages {
			if t.theirs[fmt.Sprintf("st%d", i)] {
				continue // the children are the original's
			}
			for _, k := range p.stages[i].kids {
				c.Outcome.ContinueOn = append(c.Outcome.ContinueOn, k.Key)
			}
		}
	default:
		result()
		if p.anew != nil {
			c.Outcome.ContinueWith = &perdure.ContinueWith{Input: p.anew}
		}
	}
}
