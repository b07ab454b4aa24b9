package vectors

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// A state is a run as a server knows it.
type state struct {
	journal []api.JournalEntry
	// inbox has the items that are not acknowledged. seq is the number of the last one.
	inbox []perdure.Item
	seq   int64
	// waits has all waits, and order their ids in the order in which they were opened.
	waits    map[string]wait
	order    []string
	children map[string]string // key → how it ended, or nothing
	spawned  []string          // keys in their order
	thread   []api.Message
	// firstEpoch is set in a retry.
	firstEpoch int64
	// input is that of a run that goes on for another one, and otherwise nil.
	input  json.RawMessage
	cancel bool
	// at is the time after the last commit.
	at time.Time
}

// A wait is a wait of the run.
type wait struct {
	spec  perdure.WaitSpec
	over  bool
	until time.Time
	item  int64 // the signal or message that ended it
}

func (s *state) clone() *state {
	out := *s
	out.journal, out.inbox = slices.Clone(s.journal), slices.Clone(s.inbox)
	out.order, out.spawned, out.thread = slices.Clone(s.order), slices.Clone(s.spawned), slices.Clone(s.thread)
	out.waits, out.children = maps.Clone(s.waits), maps.Clone(s.children)
	return &out
}

// A server stands in for worker and server. It keeps the state of one run, takes the commits of its
// executions and refuses what a server would refuse. A commit that is not urgent is kept until an
// urgent one comes, so the commits don't depend on a clock.
type server struct {
	t  *testing.T
	of *story
	*state

	grant  *api.Grant
	leased context.Context
	stop   context.CancelCauseFunc

	mu      sync.Mutex // guards what follows
	src     session.Source
	busy    bool
	again   bool
	commits []commit
	// asked has what steps have asked for, and full tells that their limits have no room.
	takes []asked
	full  bool
	// after has the state after each commit.
	after []*state
	// uuids has random ids, each followed by its placeholder.
	uuids []string
}

func newServer(t *testing.T, of *story) *server {
	return &server{t: t, of: of, state: &state{waits: map[string]wait{}, children: map[string]string{}, at: time.Now()}}
}

const (
	runID  = "run"
	thread = "thread"
)

// execute executes the agent once, as a worker does that is granted the run, and returns its commits.
func (s *server) execute(turn int, epoch int64) []commit {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	leased, lost := context.WithCancel(context.Background())
	defer lost()
	s.commits, s.after, s.src, s.stop, s.leased = nil, nil, nil, stop, leased
	s.takes = nil
	s.grant = &api.Grant{RunID: runID, Epoch: epoch, FirstEpoch: s.firstEpoch, Kind: "vector", Class: perdure.Agent,
		Input: s.inputNow(), Journal: slices.Clone(s.journal), Inbox: slices.Clone(s.inbox), Cancel: s.cancel}
	if s.of.thread {
		s.grant.ThreadID = thread
	}
	if s.cancel {
		stop(agent.ErrCancelled)
	}
	out := session.Execute(ctx, s, func(of any) (json.RawMessage, error) {
		v, err := s.of.agent(of.(*agent.Context), execution{s: s, number: turn})
		if err != nil {
			return nil, err
		}
		return perdure.Encode(v)
	})
	if out != nil {
		s.end(out)
	}
	return s.commits
}

// inputNow returns the input of the run.
func (s *server) inputNow() json.RawMessage {
	if s.input != nil {
		return s.input
	}
	return s.of.input
}

// end delivers an outcome, with the last of what the agent had to commit.
func (s *server) end(out *perdure.Outcome) {
	for more := true; more; {
		var part *perdure.Commit
		var answered func(*api.CommitResult)
		if s.src != nil {
			part, more, answered = s.src()
		} else {
			more = false
		}
		c := perdure.Commit{}
		if part != nil {
			c = *part
		}
		if !more {
			c.Outcome = out
		}
		res := s.take(&c)
		if answered != nil {
			answered(res)
		}
	}
}

// take records a commit and answers it.
func (s *server) take(c *perdure.Commit) *api.CommitResult {
	s.placeholders(c)
	refused := s.refuse(c)
	s.commits = append(s.commits, commitOf(c, refused))
	if refused != nil {
		s.after = append(s.after, s.clone())
		return &api.CommitResult{RunID: runID, Error: refused}
	}
	res := s.apply(c)
	s.after = append(s.after, s.clone())
	return res
}

// placeholders replaces the random ids of a commit. The n-th of a run ends with n.
func (s *server) placeholders(c *perdure.Commit) {
	given := 0
	for _, e := range s.journal {
		given += len(uuidsIn(e.Key, e.Value))
	}
	for n := range c.Journal {
		for _, id := range uuidsIn(c.Journal[n].Key, c.Journal[n].Value) {
			given++
			s.uuids = append(s.uuids, id, fmt.Sprintf("00000000-0000-4000-8000-%012d", given))
		}
	}
	if len(s.uuids) == 0 {
		return
	}
	r := strings.NewReplacer(s.uuids...)
	for n := range c.Journal {
		c.Journal[n].Value = json.RawMessage(r.Replace(string(c.Journal[n].Value)))
	}
	if c.Outcome != nil {
		c.Outcome.Result = json.RawMessage(r.Replace(string(c.Outcome.Result)))
	}
}

// uuidsIn returns the ids that a frame hands out, in the order of their keys.
func uuidsIn(key string, value json.RawMessage) (ids []string) {
	var f struct {
		UUID map[string]string `json:"uuid"`
	}
	if !strings.HasPrefix(key, "_frame:") || json.Unmarshal(value, &f) != nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(f.UUID)) {
		ids = append(ids, f.UUID[key])
	}
	return ids
}

// refuse returns why a commit is not taken, or nil.
func (s *server) refuse(c *perdure.Commit) *api.Refusal {
	var whole perdure.Commit // a copy, because Validate sets defaults
	if err := json.Unmarshal(marshal(s.t, c), &whole); err != nil {
		s.t.Fatal(err)
	}
	whole.ID, whole.RunID = "commit", runID
	if err := whole.Validate(); err != nil {
		s.t.Errorf("the commit %s is invalid: %v", marshal(s.t, c), err)
	}
	for n := range c.Children {
		if s.of.refuse != nil {
			if why := s.of.refuse(&c.Children[n]); why != nil {
				why.Field = fmt.Sprintf("commits[0].children[%d].thread_id", n)
				return why
			}
		}
	}
	if s.cancel && c.Outcome != nil && c.Outcome.Type == perdure.OutcomeSuspend {
		s.stop(agent.ErrCancelled)
		return &api.Refusal{Code: perdure.CodeCancelRequested, Detail: "the run is asked to stop"}
	}
	return nil
}

// apply adds a commit to the state.
func (s *server) apply(c *perdure.Commit) *api.CommitResult {
	res := &api.CommitResult{RunID: runID, OK: true}
	for _, e := range c.Journal {
		if n := slices.IndexFunc(s.journal, func(is api.JournalEntry) bool { return is.Key == e.Key }); n >= 0 {
			if string(s.journal[n].Value) != string(e.Value) {
				s.t.Errorf("%s: %s is recorded as %s, and now as %s", s.of.name, e.Key, s.journal[n].Value, e.Value)
			}
			continue // the same once more is nothing new
		}
		s.journal = append(s.journal, api.JournalEntry{Seq: int64(len(s.journal) + 1), Key: e.Key, Value: e.Value})
	}
	for _, child := range c.Children {
		if _, ok := s.children[child.Key]; !ok {
			s.children[child.Key] = ""
			s.spawned = append(s.spawned, child.Key)
		}
		res.Children = append(res.Children, api.Child{Key: child.Key, RunID: childID(child.Key)})
	}
	for _, seq := range c.Ack {
		n := slices.IndexFunc(s.inbox, func(i perdure.Item) bool { return i.Seq == seq })
		if n < 0 {
			s.t.Errorf("%s: item %d is acknowledged and is not in the inbox", s.of.name, seq)
			continue
		}
		s.inbox = slices.Delete(s.inbox, n, n+1)
	}
	for _, id := range c.Close {
		s.closeWait(id)
	}
	for _, spec := range c.Waits {
		s.open(spec)
		if spec.Type == perdure.WaitCallback {
			token := "token:" + spec.ID
			if s.firstEpoch > 0 {
				token = fmt.Sprintf("token:%d:%s", s.firstEpoch, spec.ID)
			}
			res.Callbacks = append(res.Callbacks, api.Callback{WaitID: spec.ID, Token: token})
		}
	}
	for _, m := range c.Messages {
		s.post(m, runID)
	}
	if c.Outcome != nil {
		for _, id := range c.Outcome.Waits {
			if _, ok := s.waits[id]; !ok {
				s.t.Errorf("%s: the run is suspended on %s, which is not open", s.of.name, id)
			}
		}
	}
	s.at = time.Now()
	return res
}

func childID(key string) perdure.RunID { return perdure.RunID("run:" + key) }

// open opens a wait. A second one with the same id is the same wait.
func (s *server) open(spec perdure.WaitSpec) {
	if _, ok := s.waits[spec.ID]; ok {
		return
	}
	for _, key := range spec.Keys {
		if _, ok := s.children[key]; !ok {
			s.t.Errorf("%s: the wait %s names the child %s, which there is not", s.of.name, spec.ID, key)
		}
	}
	s.waits[spec.ID] = wait{spec: spec, until: time.Now().Add(time.Duration(spec.Timeout))}
	s.order = append(s.order, spec.ID)
	switch spec.Type {
	case perdure.WaitChildren:
		s.endIfSatisfied(spec.ID)
	case perdure.WaitSignal, perdure.WaitMessage:
		for n := range s.inbox {
			if i := &s.inbox[n]; i.WaitID == "" && i.Type == string(spec.Type) && i.Name == spec.Name {
				i.WaitID = spec.ID
				s.waits[spec.ID] = wait{spec: spec, over: true, item: i.Seq}
				return
			}
		}
	}
}

// closeWait closes a wait, and gives back the signal or message that ended it.
func (s *server) closeWait(id string) {
	w, ok := s.waits[id]
	if !ok {
		s.t.Errorf("%s: the wait %s is closed and was never opened", s.of.name, id)
	}
	for n := range s.inbox {
		claimed := s.inbox[n].Type == perdure.ItemSignal || s.inbox[n].Type == perdure.ItemMessage
		if claimed && s.inbox[n].WaitID == id {
			s.inbox[n].WaitID = ""
		}
	}
	w.over = true
	s.waits[id] = w
}

// add puts an item into the inbox.
func (s *server) add(i perdure.Item) {
	s.seq++
	i.Seq = s.seq
	s.inbox = append(s.inbox, i)
}

// post appends a message to the thread.
func (s *server) post(m perdure.Message, by perdure.RunID) {
	s.thread = append(s.thread, api.Message{Seq: int64(len(s.thread) + 1), Role: m.Role, Content: m.Content, RunID: by})
}

// over marks a wait as ended, and fails the test if it has ended before.
func (s *server) over(id string) wait {
	w, ok := s.waits[id]
	if !ok || w.over {
		s.t.Errorf("%s: the wait %s is not open; open are %v", s.of.name, id, s.openWaits())
	}
	w.over = true
	s.waits[id] = w
	return w
}

func (s *server) openWaits() (ids []string) {
	for _, id := range s.order {
		if !s.waits[id].over {
			ids = append(ids, id)
		}
	}
	return ids
}

// endIfSatisfied ends a wait for children if enough of them have ended.
func (s *server) endIfSatisfied(id string) {
	w := s.waits[id]
	ended, ok := 0, 0
	for _, key := range w.spec.Keys {
		switch s.children[key] {
		case "":
		case string(perdure.Completed):
			ok++
			ended++
		default:
			ended++
		}
	}
	if perdure.Satisfied(w.spec.Mode, len(w.spec.Keys), ended, ok) {
		s.over(id)
		s.add(perdure.Item{Type: perdure.ItemWait, WaitID: id, Outcome: perdure.WaitSatisfied})
	}
}

// The session that package agent sees.

func (s *server) Grant() *api.Grant       { return s.grant }
func (s *server) Leased() context.Context { return s.leased }

func (s *server) Journal(context.Context, int64) (*api.JournalPage, error) {
	return nil, fmt.Errorf("the grant has the whole journal")
}

// Inbox returns the items after a number. A story may deliver more of them before.
func (s *server) Inbox(_ context.Context, after int64) (*api.InboxPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of.asked != nil {
		s.of.asked(s)
	}
	page := &api.InboxPage{}
	for _, i := range s.inbox {
		if i.Seq > after {
			page.Inbox = append(page.Inbox, i)
		}
	}
	return page, nil
}

func (s *server) Messages(_ context.Context, after int64) (*api.Messages, error) {
	return &api.Messages{Messages: slices.Clone(s.thread[min(int(after), len(s.thread)):])}, nil
}

// MessagesBackwards returns the whole stretch in one page.
func (s *server) MessagesBackwards(_ context.Context, after, before int64) (*api.Messages, error) {
	out := &api.Messages{NextBefore: new(int64)}
	for _, m := range slices.Backward(s.thread) {
		if m.Seq > after && (before <= 0 || m.Seq < before) {
			out.Messages = append(out.Messages, m)
		}
	}
	return out, nil
}

func (s *server) Run(context.Context, perdure.RunID) (*api.Run, error) {
	return nil, fmt.Errorf("no story looks at a run")
}

// TakeLimits takes slots for a step, unless the limits are full. A second question is a repeated one.
func (s *server) TakeLimits(
	_ context.Context, step string, takes []perdure.LimitTake, try int,
) (*api.StepTaken, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := asked{Step: step, Limits: takes, Try: try, Taken: !s.full}
	if n := len(s.takes); n == 0 || !reflect.DeepEqual(s.takes[n-1], is) {
		s.takes = append(s.takes, is)
	}
	return &api.StepTaken{Taken: is.Taken}, nil
}

func (s *server) CloseLimit(context.Context, perdure.LimitClosure) error { return nil }

func (s *server) Bind(src session.Source) { s.src = src }

// Commit takes all that is to be committed, if it is urgent. An answer may lead to another commit.
func (s *server) Commit(now bool) {
	if !now {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again = true; s.busy {
		return
	}
	s.busy = true
	for s.again {
		s.again = false
		part, more, answered := s.src()
		if part == nil {
			continue
		}
		s.again = more
		res := s.take(part)
		s.mu.Unlock()
		answered(res)
		s.mu.Lock()
	}
	s.busy = false
}

// Reports of steps are no part of the journal.

func (s *server) Heartbeat(string)                                           {}
func (s *server) Progress(json.RawMessage)                                   {}
func (s *server) Emit(context.Context, perdure.LineType, any) error          { return nil }
func (s *server) Delta(context.Context, string, string, int64, string) error { return nil }
