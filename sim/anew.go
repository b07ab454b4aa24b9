package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// Runs that go on anew.
//
// With Options.Anew an agent that would complete goes on as a new run in three of five cases: its outcome
// has continue_with. The new run has a plan of its own, and may go on anew, too. Ended runs of such a chain
// are deleted while a later one lives.
//
// What each run of a chain has taken from its inbox is noted after every batch, while the run lives. When it
// has gone on, everything else is in the inbox of the next one, in its order and once.

// maxRounds bounds how often a run goes on anew.
const maxRounds = 3

// anews is what a simulation with Options.Anew knows about chains of runs.
type anews struct {
	s    *sim
	dice stream
	left int // runs to submit
	// taken has the inbox items that were done while their run lived.
	taken map[perdure.RunID]map[int64]bool
	// asked are the runs that were asked to be deleted, kept those of them that were needed then, and gone
	// those that were deleted.
	asked, kept, gone map[perdure.RunID]bool
}

// addAnew adds runs that go on anew, if the options have them. Such a simulation is shorter.
func (s *sim) addAnew(have bool) {
	if have {
		s.cfg.budget /= 3
		s.anews = &anews{s: s, dice: newStream(s.seed, "anew"), left: 20, taken: make(map[perdure.RunID]map[int64]bool),
			asked: make(map[perdure.RunID]bool), kept: make(map[perdure.RunID]bool), gone: make(map[perdure.RunID]bool)}
	}
}

// begin begins to act.
func (a *anews) begin() {
	if a != nil {
		a.s.after(a.dice.between(0, a.s.cfg.tempo), a.act)
	}
}

// act sends something to a live agent that it may not take, or deletes a run that has gone on anew.
func (a *anews) act() {
	s := a.s
	if s.faultsStopped {
		return
	}
	s.after(a.dice.between(s.cfg.tempo/10, s.cfg.tempo/2), a.act)
	if !s.reachable() {
		return
	}
	if a.dice.chance(0.5) {
		a.delete()
		return
	}
	var live []*row
	for _, id := range s.model.order {
		if r := s.model.rows[id]; r.State.Leased() && r.Kind == "agent" {
			live = append(live, r)
		}
	}
	if len(live) < 2 && a.left > 0 {
		a.left--
		a.submit()
	}
	if len(live) == 0 {
		return
	}
	r := pick(a.dice, live...)
	id, key := r.ID, s.name("g")
	switch x := a.dice.Float64(); {
	case x < 0.08:
		s.sendOnce(func() kernel.Op { return &life.Cancel{Tenant: tenant, RunID: id, Reason: "no longer needed"} })
	case x < 0.55 && r.ThreadID != "":
		s.appendMessage(r.ThreadID)
	case x < 0.75 && r.ThreadID != "":
		s.sendUntilAnswered(func() kernel.Op {
			return &life.Continue{Tenant: tenant, RunID: id, Trigger: "ci", JobID: key, Status: "ok"}
		}, nil)
	default:
		payload := json.RawMessage(fmt.Sprintf(`{"s":%q}`, s.name("p")))
		s.sendUntilAnswered(func() kernel.Op {
			return &life.Signal{Tenant: tenant, RunID: id, Name: "go", Data: payload, Key: key}
		}, nil)
	}
}

// submit starts an agent, mostly on a thread.
func (a *anews) submit() {
	s := a.s
	n, key := a.dice.Uint64()>>12+1, s.name("s")
	s.model.submitted++
	s.model.asked(n, key)
	sub := perdure.Submission{Kind: "agent"}
	sub.Input, _ = json.Marshal(input{n, 0})
	if len(s.model.threads) > 0 && a.dice.chance(0.8) {
		sub.ThreadID = pick(a.dice, s.model.threads...)
	}
	s.sendUntilAnswered(func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: sub, Key: key} }, nil)
}

// delete deletes a run that has gone on anew, while a later one lives.
func (a *anews) delete() {
	s := a.s
	var ended []perdure.RunID
	for _, id := range s.model.order {
		if next := a.next(id); next != nil && next.State.Live() && (!a.asked[id] || a.kept[id]) && !a.gone[id] {
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return
	}
	id, key := pick(a.dice, ended...), s.name("d")
	a.asked[id], a.kept[id] = true, false
	s.sendUntilAnswered(func() kernel.Op { return &upkeep.DeleteRun{Tenant: tenant, RunID: id, Key: key} },
		func(r reply) {
			a.kept[id] = r.err != nil // it is asked for again later
		})
}

// next returns the run that goes on for another one, or nil.
func (a *anews) next(id perdure.RunID) *row {
	if r := a.s.model.rows[id]; r != nil && r.State.Terminal() && r.ContinuedBy != "" {
		if next := a.s.model.rows[r.ContinuedBy]; next != nil && next.Options.Anew {
			return next
		}
	}
	return nil
}

// A round is the input of a run that has gone on anew.
type round struct {
	input
	Round int `json:"round"`
}

// roundOf returns the input with which a run goes on anew, or nil if it completes. It is drawn from the
// number in the run's input, so that every attempt does the same.
func roundOf(r *perdure.Run, raw perdure.Value) json.RawMessage {
	var in round
	if err := json.Unmarshal([]byte(raw), &in); err != nil || in.N == 0 || in.Round >= maxRounds ||
		r.Kind != "agent" || r.ParentID != "" && !r.MayOutlive() {
		return nil
	}
	dice := stream{rand.New(rand.NewPCG(in.N, 11))}
	if !dice.chance(0.6) {
		return nil
	}
	next, _ := json.Marshal(round{input{dice.Uint64()>>12 + 1, in.Depth}, in.Round + 1})
	return next
}

// hasRound tells whether a run goes on for another one, or repeats such a run.
func (a *anews) hasRound(g *dispatch.Grant) bool {
	var in round
	return a != nil && json.Unmarshal([]byte(g.Input), &in) == nil && in.Round > 0
}

// note notes what a live run has taken, and looks at one that has gone on.
func (a *anews) note(v *store.View, was perdure.State, r *perdure.Run) error {
	if a == nil || !was.Live() && was != "" || r.InboxSeq == 0 && r.ContinuedBy == "" {
		return nil
	}
	items, err := v.Inbox.List(tenant, r.ID)
	if err != nil {
		return err
	}
	if !r.State.Live() {
		return a.checkCarried(v, r, items)
	}
	taken := a.taken[r.ID]
	if taken == nil {
		taken = make(map[int64]bool)
		a.taken[r.ID] = taken
	}
	for _, i := range items {
		if i.Status != perdure.ItemPending && i.Status != perdure.ItemProcessing {
			taken[i.Seq] = true
		}
	}
	return nil
}

// carriedTypes names the types of the items that go with a run.
var carriedTypes = map[string]string{perdure.ItemSignal: "a signal", perdure.ItemMessage: "a message",
	perdure.ItemContinue: "a report of work outside"}

// carries tells whether an item goes with a run, if the run has not taken it.
func (a *anews) carries(r perdure.RunID, i *perdure.Item) bool {
	return carriedTypes[i.Type] != "" && !a.taken[r][i.Seq]
}

// carried tells whether an item of an ended run went with the run, and was not taken by it.
func (a *anews) carried(r *perdure.Run, i *perdure.Item) bool {
	return a != nil && a.next(r.ID) != nil && a.carries(r.ID, i)
}

// checkCarried checks a run that has ended: if it goes on anew, there is one such run, a tree of its own,
// and it has what the first one did not take, in its order (A1, A2).
func (a *anews) checkCarried(v *store.View, r *perdure.Run, items []perdure.Item) error {
	s := a.s
	if r.ContinuedBy == "" {
		return nil
	}
	next, ok, err := v.Runs.Get(tenant, r.ContinuedBy)
	if err != nil || ok && !next.Options.Anew {
		return err
	}
	if !ok || r.State != perdure.Completed || next.ContinuationOf != r.ID || next.RootID != next.ID ||
		next.ParentID != "" || next.Kind != r.Kind || next.ThreadID != r.ThreadID {
		s.violate("A1", "%s is continued by %s, which is there: %v, for %s, in the tree of %s", s.nameOf(r),
			r.ContinuedBy, ok, next.ContinuationOf, next.RootID)
		return nil
	}
	s.sometimes("a run went on anew")
	if r.Attempt > 1 {
		s.sometimes("a run went on anew in a later attempt")
	}
	if r.ParentID != "" {
		s.sometimes("a child went on anew")
	}
	got, err := v.Inbox.List(tenant, next.ID)
	if err != nil {
		return err
	}
	n := 0
	for _, i := range items {
		if !a.carries(r.ID, &i) {
			continue
		}
		s.sometimes(carriedTypes[i.Type] + " went with a run that goes on anew")
		if n == len(got) || !sameItem(&got[n], &i) || got[n].Seq != int64(n+1) || i.Status != perdure.ItemDone {
			s.violate("A2", "%s did not take item %d, a %s that is %s, and %s does not have it as item %d", s.nameOf(r),
				i.Seq, i.Type, i.Status, next.ID, n+1)
			return nil
		}
		n++
	}
	if n < len(got) {
		s.violate("A2", "%s has item %d, a %s, which %s had taken", next.ID, n+1, got[n].Type, s.nameOf(r))
	}
	return nil
}

// sameItem tells whether two items of different runs are the same signal, message or report.
func sameItem(x, y *perdure.Item) bool {
	return x.Type == y.Type && x.Name == y.Name && x.Data == y.Data && x.MessageSeq == y.MessageSeq &&
		x.CreatedAt == y.CreatedAt
}

// judge checks an answer that is about a run that goes on anew.
func (a *anews) judge(op kernel.Op, err error, stored bool) {
	if a == nil {
		return
	}
	s := a.s
	switch x := op.(type) {
	case *life.Commit:
		o := x.Commit.Outcome
		if o == nil || o.ContinueWith == nil {
			return
		}
		if perdure.CodeOf(err) == perdure.CodeCancelRequested {
			s.sometimes("a run that was asked to stop did not go on anew")
		}
		if stored && x.Refused == nil && !a.gone[x.Commit.RunID] && a.next(x.Commit.RunID) == nil {
			s.violate("A1", "%s was told that it goes on anew, and no run goes on for it", s.short(x.Commit.RunID))
		}
	case *upkeep.DeleteRun:
		if stored {
			a.deleted(x.RunID)
		}
		if perdure.CodeOf(err) == perdure.CodeInUse && strings.Contains(err.Error(), "tree") && !a.treeLives(x.RunID) {
			s.violate("A3", "%s can't be deleted, and no run of its tree is live: %v", s.short(x.RunID), err)
		}
	}
}

// treeLives tells whether a run of the tree of another one lives.
func (a *anews) treeLives(id perdure.RunID) bool {
	root := a.s.model.rows[id].RootID
	return slices.ContainsFunc(a.s.model.order, func(other perdure.RunID) bool {
		r := a.s.model.rows[other]
		return r.RootID == root && r.State.Live()
	})
}

// isGone tells whether a run was deleted.
func (a *anews) isGone(id perdure.RunID) bool { return a != nil && a.gone[id] }

// deleted tells whether a run that is not there was asked to be deleted, and notes that it is gone.
func (a *anews) deleted(id perdure.RunID) bool {
	if a == nil || a.s.model.rows[id] == nil || !a.asked[id] {
		return false
	}
	if next := a.next(id); !a.gone[id] && next != nil && next.State.Live() {
		a.s.sometimes("a run was deleted while the one that continues it lived")
	}
	a.gone[id] = true
	return true
}

// checkEnd checks at the end that every run is continued anew once at most, by the run that it names (A1),
// and that a signal was taken by one run of a chain at most (A2).
func (a *anews) checkEnd(v *store.View) error {
	if a == nil {
		return nil
	}
	s := a.s
	by, first := make(map[perdure.RunID]perdure.RunID), make(map[perdure.RunID]perdure.RunID)
	took := make(map[string]perdure.RunID)
	for _, id := range s.model.order {
		r := s.model.rows[id]
		first[id] = id
		if r.Options.Anew {
			if other, twice := by[r.ContinuationOf]; twice {
				s.violate("A1", "%s goes on for %s, and so does %s", s.short(id), s.short(r.ContinuationOf),
					s.short(other))
			}
			by[r.ContinuationOf], first[id] = id, first[r.ContinuationOf]
			if from := s.model.rows[r.ContinuationOf]; from.ContinuedBy != id || from.State != perdure.Completed {
				s.violate("A1", "%s goes on for %s, which is %s and continued by %q", s.short(id), s.short(from.ID),
					from.State, from.ContinuedBy)
			}
		}
		items, err := v.Inbox.List(tenant, id)
		if err != nil {
			return err
		}
		for _, i := range items {
			at := fmt.Sprintf("%s %s", first[id], i.Data)
			if i.Type != perdure.ItemSignal || !a.taken[id][i.Seq] || s.model.unkeyed[string(i.Data)] {
				continue
			}
			if other, twice := took[at]; twice {
				s.violate("A2", "signal %s was taken by %s and by %s", i.Data, s.short(other), s.short(id))
			}
			took[at] = id
		}
	}
	return nil
}
