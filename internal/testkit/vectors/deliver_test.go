package vectors

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// This file has the events from outside of a run, for the turns of stories.

// signal sends a signal. The oldest open wait for it ends.
func (s *server) signal(name, data string) {
	i := perdure.Item{Type: perdure.ItemSignal, Name: name, Data: perdure.Value(data)}
	s.claim(&i, perdure.WaitSignal, name)
	s.add(i)
}

// message appends a message of the user to the thread.
func (s *server) message(text string) {
	content := json.RawMessage(marshal(s.t, text))
	s.post(perdure.Message{Role: perdure.RoleUser, Content: content}, "")
	i := perdure.Item{Type: perdure.ItemMessage, Data: perdure.Value(content), MessageSeq: int64(len(s.thread))}
	s.claim(&i, perdure.WaitMessage, "")
	s.add(i)
}

// claim gives an item to the oldest open wait for it.
func (s *server) claim(i *perdure.Item, typ perdure.WaitType, name string) {
	for _, id := range s.openWaits() {
		if w := s.waits[id]; w.spec.Type == typ && w.spec.Name == name {
			s.over(id)
			i.WaitID, i.Outcome = id, ""
			return
		}
	}
}

// fire lets time pass until a wait has reached its timeout. A timer is satisfied by that.
func (s *server) fire(id string) {
	w := s.over(id)
	time.Sleep(time.Until(w.until))
	s.at = time.Now()
	if w.spec.Type == perdure.WaitTimer {
		s.add(perdure.Item{Type: perdure.ItemTimer, WaitID: id, Outcome: perdure.WaitSatisfied})
		return
	}
	data := perdure.Object("code", string(perdure.CodeToolTimeout), "message", "nothing came in time for wait "+id)
	s.add(perdure.Item{Type: perdure.ItemTimeout, WaitID: id, Name: w.spec.Name, Outcome: perdure.WaitTimedOut,
		Data: data})
}

// completes ends a child with a result.
func (s *server) completes(key, result string) { s.ends(key, perdure.Completed, result) }

// fails ends a child without a result.
func (s *server) fails(key string, state perdure.State, code string) {
	s.ends(key, state, string(perdure.Object("reason", code, "message", "the child says why")))
}

// ends ends a child, and the waits that its end satisfies.
func (s *server) ends(key string, state perdure.State, data string) {
	if how, ok := s.children[key]; !ok || how != "" {
		s.t.Errorf("%s: there is no child %s that could end", s.of.name, key)
	}
	s.children[key] = string(state)
	s.add(perdure.Item{Type: perdure.ItemChild, Name: key, From: childID(key), Outcome: string(state),
		Data: perdure.Value(data)})
	for _, id := range s.openWaits() {
		s.endIfSatisfied(id)
	}
}

// stalls makes a child look stuck.
func (s *server) stalls(key string) {
	for _, id := range s.openWaits() {
		if s.waits[id].spec.OnStall {
			s.over(id)
			s.add(perdure.Item{Type: perdure.ItemWait, WaitID: id, Name: key, From: childID(key),
				Outcome: perdure.WaitStalled})
		}
	}
}

// late adopts the late result of a child.
func (s *server) late(key, data string) {
	s.add(perdure.Item{Type: perdure.ItemLate, Name: key, From: childID(key), Data: perdure.Value(data)})
}

// answers answers a callback, with {"result":…} or {"error":…}.
func (s *server) answers(id, body string) {
	s.over(id)
	s.add(perdure.Item{Type: perdure.ItemCallback, WaitID: id, Name: id, Data: perdure.Value(body)})
}

// decides decides an approval.
func (s *server) decides(id string, d perdure.DecisionKind) {
	w := s.over(id)
	hash, err := perdure.ActionHash(w.spec.Approval.Action)
	if err != nil {
		s.t.Error(err)
	}
	data := perdure.Object("approval_id", "approval", "decision", d, "comment", "by a person", "action_hash", hash)
	s.add(perdure.Item{Type: perdure.ItemApproval, WaitID: id, Name: w.spec.Name, Outcome: perdure.WaitSatisfied,
		Data: data})
}

// passes lets time pass.
func (s *server) passes(d time.Duration) {
	time.Sleep(d)
	s.at = time.Now()
}

// retry begins a retry of the run: with the entries before the one that its failure follows from, or
// with all. Epochs and the numbers of inbox items go on.
func (s *server) retry(epoch int64) {
	last := s.commits[len(s.commits)-1].Outcome
	if last == nil || last.Error == nil {
		s.t.Fatalf("%s: the run has not failed", s.of.name)
	}
	for n, e := range s.journal {
		if e.Key == last.Error.CauseKey {
			s.journal = s.journal[:n:n]
			break
		}
	}
	s.inbox, s.waits, s.order = nil, map[string]wait{}, nil
	s.children, s.spawned, s.firstEpoch = map[string]string{}, nil, epoch
}

// anew begins the run that goes on for the one before: with the input that its outcome has, an empty journal,
// and the signals and messages that were not acknowledged, which are counted from 1.
func (s *server) anew() {
	last := s.commits[len(s.commits)-1].Outcome
	if last == nil || last.ContinueWith == nil {
		s.t.Fatalf("%s: the run does not go on anew", s.of.name)
	}
	items := s.inbox
	*s.state = state{waits: map[string]wait{}, children: map[string]string{}, thread: s.thread,
		input: last.ContinueWith.Input, at: s.at}
	for _, i := range items {
		if i.Type == perdure.ItemSignal || i.Type == perdure.ItemMessage || i.Type == perdure.ItemContinue {
			s.add(perdure.Item{Type: i.Type, Name: i.Name, Data: i.Data, MessageSeq: i.MessageSeq})
		}
	}
}

// An execution is the one that the agent of a story is in, as it knows it.
type execution struct {
	s *server
	// number counts the executions of the story, from 1.
	number int
}

// cancel asks the run to stop, while a step's function is called.
func (x execution) cancel() {
	x.s.cancel = true
	x.s.stop(errCancelled)
}

// errNotYet is the error of a step that may succeed the next time.
func errNotYet(what string) error { return fmt.Errorf("%s is not there yet", what) }
