package vectors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
)

var errCancelled = agent.ErrCancelled

// A story is an agent, and the events of its run.
type story struct {
	name string
	// words describe the agent, for libraries in other languages.
	words []string
	// thread tells that the run is on a thread.
	thread bool
	input  json.RawMessage
	agent  func(ctx *agent.Context, x execution) (any, error)
	// turns are the executions. Before each of them something happens.
	turns []turn
	// refuse tells why the server refuses a child.
	refuse func(child *perdure.Spawn) *api.Refusal
	// asked is called when an execution looks into its inbox. during describes it, and whatever else
	// happens during executions.
	asked  func(s *server)
	during string
}

// A turn is one execution of a story.
type turn struct {
	// before is what happens before the execution, and what the same in words. The first one has none.
	what   string
	before func(s *server)
	// retry tells that the execution is the first one of a retry of the run.
	retry bool
	// anew tells that the execution is the first one of the run that goes on for the one before.
	anew bool
}

// The files.

type storyFile struct {
	Story      string          `json:"story"`
	Agent      []string        `json:"agent"`
	During     string          `json:"during,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Thread     bool            `json:"thread,omitempty"`
	Executions []executed      `json:"executions"`
	Cuts       []cut           `json:"cuts"`
}

// executed is an execution: its grant, and the commits of the agent.
type executed struct {
	Before string `json:"before,omitempty"`
	Grant  grant  `json:"grant"`
	// Takes are the limits that steps have asked for; repeated questions are one.
	Takes   []asked  `json:"takes,omitempty"`
	Commits []commit `json:"commits"`
}

// asked is a question for the limits of a step, and its answer.
type asked struct {
	Step   string              `json:"step"`
	Limits []perdure.LimitTake `json:"limits"`
	Try    int                 `json:"try,omitempty"`
	Taken  bool                `json:"taken"`
}

// A grant is the part of api.Grant that matters here.
type grant struct {
	At         int64 `json:"at"` // microseconds since 1970
	Epoch      int64 `json:"epoch"`
	FirstEpoch int64 `json:"first_epoch,omitempty"`
	Cancel     bool  `json:"cancel,omitempty"`
	// Journal is the number of entries.
	Journal int               `json:"journal"`
	Inbox   []json.RawMessage `json:"inbox"`
	Thread  []message         `json:"thread,omitempty"`
	// Input is that of a run that goes on for another one.
	Input json.RawMessage `json:"input,omitempty"`
}

type message struct {
	Seq     int64           `json:"seq"`
	Role    perdure.Role    `json:"role"`
	Content json.RawMessage `json:"content"`
}

// A cut is an execution after the journal was cut.
type cut struct {
	After int    `json:"after"`
	Entry string `json:"entry"`
	Grant grant  `json:"grant"`
	// Like is the number, from 1, of the commit of the story from which on the commits are the same.
	Like    int      `json:"like,omitempty"`
	Commits []commit `json:"commits,omitempty"`
	Takes   []asked  `json:"takes,omitempty"`
	// Then has the later executions, if they are not those of the story.
	Then []executed `json:"then,omitempty"`
}

// A commit is a perdure.Commit without its id and its lease.
type commit struct {
	Journal  []perdure.JournalEntry `json:"journal,omitempty"`
	Children []perdure.Spawn        `json:"children,omitempty"`
	Waits    []perdure.WaitSpec     `json:"waits,omitempty"`
	Close    []string               `json:"close,omitempty"`
	Cancel   []string               `json:"cancel,omitempty"`
	Ack      []int64                `json:"ack,omitempty"`
	Messages []perdure.Message      `json:"messages,omitempty"`
	Events   []perdure.Emitted      `json:"events,omitempty"`
	Outcome  *perdure.Outcome       `json:"outcome,omitempty"`
	Refused  *api.Refusal           `json:"refused,omitempty"`
}

// commitOf copies a commit, which its sender may change.
func commitOf(c *perdure.Commit, refused *api.Refusal) commit {
	out := commit{Journal: slices.Clone(c.Journal), Children: slices.Clone(c.Children), Waits: slices.Clone(c.Waits),
		Close: slices.Clone(c.Close), Cancel: slices.Clone(c.Cancel), Ack: slices.Clone(c.Ack),
		Messages: slices.Clone(c.Messages), Events: slices.Clone(c.Events), Refused: refused}
	if c.Outcome != nil {
		outcome := *c.Outcome
		out.Outcome = &outcome
	}
	return out
}

// TestStoryVectors plays each story, and once more after each cut of its journal.
func TestStoryVectors(t *testing.T) {
	all := slices.Concat(stepStories, waitStories, childStories, joinStories, manyStories, branchStories, threadStories,
		sagaStories, editStories, inputStories, endStories)
	if len(all) < 25 {
		t.Errorf("there are %d stories, want at least 25", len(all))
	}
	writeStories(t, "stories", all)
}

// TestLimitStoryVectors plays those about limits of steps. They have a folder of their own, because not every
// library knows these yet.
func TestLimitStoryVectors(t *testing.T) { writeStories(t, "limits", limitStories) }

// TestIntegerStoryVectors plays that about integers beyond 2^53, which not every language can have.
func TestIntegerStoryVectors(t *testing.T) { writeStories(t, "integers", integerStories) }

func writeStories(t *testing.T, folder string, all []story) {
	t.Helper()
	var names []string
	for n := range all {
		of := &all[n]
		names = append(names, of.name+".json")
		t.Run(of.name, func(t *testing.T) {
			file := of.play(t)
			check(t, folder+"/"+of.name+".json", layout(t, marshal(t, file)))
		})
	}
	checkFolder(t, folder, names)
}

// epochOf returns the epoch of an execution. There is room for one after a cut.
func epochOf(turn int) int64 { return int64(10 * (turn + 1)) }

// play plays a story, and all of its cuts.
func (of *story) play(t *testing.T) storyFile {
	t.Helper()
	file := storyFile{Story: of.name, Agent: of.words, During: of.during, Input: of.input, Thread: of.thread,
		Cuts: []cut{}}
	var befores []*state
	var afters [][]*state
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, of)
		for n := range of.turns {
			file.Executions = append(file.Executions, of.take(s, n, epochOf(n), &befores))
			afters = append(afters, s.after)
		}
		if last := file.Executions[len(file.Executions)-1].Commits; last[len(last)-1].Outcome == nil {
			t.Errorf("%s has no end", of.name)
		}
	})
	for n := range of.turns {
		before := befores[n]
		for c, done := range file.Executions[n].Commits {
			for e := range done.Journal {
				if done.Refused == nil {
					file.Cuts = append(file.Cuts, of.cutAt(t, &file, n, c, e, stateAt(&done, e, before, afters[n][c])))
				}
			}
			before = afters[n][c]
		}
	}
	return file
}

// stateAt returns the state of a server after a crash that left the entries of a commit up to the e-th.
// If these are not all, or if the commit ended the execution otherwise than by suspending the run, all
// else that it carried is lost.
func stateAt(c *commit, e int, before, after *state) *state {
	whole := e == len(c.Journal)-1
	if whole && (c.Outcome == nil || c.Outcome.Type == perdure.OutcomeSuspend) {
		return after.clone()
	}
	out := before.clone()
	for _, entry := range c.Journal[:e+1] {
		out.journal = append(out.journal, api.JournalEntry{Key: entry.Key, Value: entry.Value})
	}
	return out
}

// take plays one turn. befores gets the state before the execution.
func (of *story) take(s *server, n int, epoch int64, befores *[]*state) executed {
	x := of.turns[n]
	if x.retry {
		s.retry(epoch)
	}
	if x.anew {
		s.anew()
	}
	if x.before != nil {
		x.before(s)
	}
	known := 0
	for _, m := range s.thread {
		if m.RunID != "" {
			known = int(m.Seq)
		}
	}
	if befores != nil {
		*befores = append(*befores, s.state.clone())
	}
	out := executed{Before: x.what, Grant: grantOf(s, epoch, nil)}
	for _, m := range s.thread[min(known, len(s.thread)):] {
		out.Grant.Thread = append(out.Grant.Thread, message{m.Seq, m.Role, m.Content})
	}
	out.Commits = s.execute(n+1, epoch)
	out.Takes = s.takes
	return out
}

// grantOf describes a grant. Items that are known already are given by their numbers.
func grantOf(s *server, epoch int64, known map[int64]string) grant {
	g := grant{At: time.Now().UnixMicro(), Epoch: epoch, FirstEpoch: s.firstEpoch, Cancel: s.cancel,
		Journal: len(s.journal), Inbox: []json.RawMessage{}, Input: s.input}
	for _, i := range s.inbox {
		text := string(itemJSON(s.t, &i))
		if known[i.Seq] == text {
			text = fmt.Sprint(i.Seq)
		}
		g.Inbox = append(g.Inbox, json.RawMessage(text))
	}
	return g
}

// itemJSON returns an item as a grant has it, without its time.
func itemJSON(t *testing.T, i *perdure.Item) []byte {
	text := marshal(t, i)
	at := bytes.LastIndex(text, []byte(`,"at":`))
	return append(text[:at:at], '}')
}

// cutAt plays the rest of a story from a state. The last entry that is left is the e-th of the c-th
// commit of execution n.
func (of *story) cutAt(t *testing.T, file *storyFile, n, c, e int, from *state) (out cut) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, of)
		s.state = from
		time.Sleep(time.Until(from.at))
		known := map[int64]string{}
		for _, i := range file.Executions[n].Grant.Inbox {
			var item perdure.Item
			if err := json.Unmarshal(i, &item); err != nil {
				t.Fatal(err)
			}
			known[item.Seq] = string(i)
		}
		epoch := epochOf(n) + 1
		out = cut{After: len(from.journal), Entry: file.Executions[n].Commits[c].Journal[e].Key,
			Grant: grantOf(s, epoch, known)}
		commits := s.execute(n+1, epoch)
		out.Takes = s.takes
		if like := likeFrom(t, file.Executions[n].Commits, commits, epoch); like > 0 {
			out.Like = like
		} else {
			out.Commits = commits
		}
		same := true
		for later := n + 1; later < len(of.turns); later++ {
			then := of.take(s, later, epochOf(later), nil)
			is, was := marshal(t, then.Commits), marshal(t, file.Executions[later].Commits)
			same = same && bytes.Equal(is, was)
			out.Then = append(out.Then, then)
		}
		if same {
			out.Then = nil
		}
	})
	return out
}

// likeFrom returns the number of the commit, from 1, from which on an execution committed the same as
// the one after a cut, or 0.
func likeFrom(t *testing.T, story, cut []commit, epoch int64) int {
	for from := range story {
		if bytes.Equal(marshal(t, renumber(t, story[from:], epoch)), marshal(t, cut)) {
			return from + 1
		}
	}
	return 0
}

// limitWait is the id of a wait for limits, which ends with the epoch.
var limitWait = regexp.MustCompile(`("limit:[^"]*:)\d+"`)

// renumber returns commits with the keys that they have in an execution of another epoch, which begins
// with them: frames and entries about reports are counted anew.
func renumber(t *testing.T, commits []commit, epoch int64) (out []commit) {
	text := string(marshal(t, commits))
	counts := map[string]int{}
	var pairs []string
	for _, c := range commits {
		for _, entry := range c.Journal {
			for _, prefix := range []string{"_frame:", "_said:"} {
				if strings.HasPrefix(entry.Key, prefix) {
					counts[prefix]++
					pairs = append(pairs, `"`+entry.Key+`"`, fmt.Sprintf(`"%s%d.%d"`, prefix, epoch, counts[prefix]))
				}
			}
		}
	}
	pairs = append(pairs, fmt.Sprintf(`"_again:%d"`, epoch-1), fmt.Sprintf(`"_again:%d"`, epoch))
	text = strings.NewReplacer(pairs...).Replace(text)
	text = limitWait.ReplaceAllString(text, fmt.Sprintf(`${1}%d"`, epoch))
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
