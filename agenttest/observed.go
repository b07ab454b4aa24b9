package agenttest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// observed has what was seen of the runs on the wire, under names that are the same in every trial.
type observed struct {
	names map[perdure.RunID]string
	// continuations counts them.
	continuations int
	commits       map[commitID]boundary
	// counts has the number of boundaries so far. The n of its keys is zero.
	counts map[boundary]int
	// boundaries has them in the order in which they came.
	boundaries []point
	// steps has the recorded entries by run and key.
	steps map[string]map[string]string
	// tokens has those of callbacks.
	tokens map[string]bool
	// polledKinds has the kinds that workers polled for.
	polledKinds map[string]bool
	// withTimeout has the kinds of children that were spawned with a Timeout.
	withTimeout map[string]bool
}

type commitID struct {
	run perdure.RunID
	id  string
}

func newObserved() observed {
	return observed{
		names:       make(map[perdure.RunID]string),
		commits:     make(map[commitID]boundary),
		counts:      make(map[boundary]int),
		steps:       make(map[string]map[string]string),
		tokens:      make(map[string]bool),
		polledKinds: make(map[string]bool),
		withTimeout: make(map[string]bool),
	}
}

// name returns the name of a run, or its id if the name is not known.
func (c *observed) name(id perdure.RunID) string {
	if name, ok := c.names[id]; ok {
		return name
	}
	return string(id)
}

// next adds a boundary.
func (c *observed) next(run string, grant bool, text string) boundary {
	b := boundary{run: run, grant: grant}
	c.counts[b]++
	b.n = c.counts[b]
	c.boundaries = append(c.boundaries, point{boundary: b, text: text})
	return b
}

// sawGrant adds the grant of a run.
func (c *observed) sawGrant(g *api.Grant) boundary { return c.next(c.name(g.RunID), true, "") }

// sawCommit adds a commit, unless it is sent again.
func (c *observed) sawCommit(m *perdure.Commit) (b boundary, first bool) {
	id := commitID{m.RunID, m.ID}
	b, known := c.commits[id]
	for _, child := range m.Children {
		if child.Timeout != 0 {
			c.withTimeout[child.Kind] = true
		}
	}
	if !known {
		b = c.next(c.name(m.RunID), false, describe(m))
		c.commits[id] = b
	}
	return b, !known
}

// sawResult adds the answer to a commit. It returns an error if a step is recorded with two values.
func (c *observed) sawResult(m *perdure.Commit, res *api.CommitResult) (boundary, error) {
	b := c.commits[commitID{m.RunID, m.ID}]
	if res.Error != nil {
		return b, nil
	}
	if c.steps[b.run] == nil {
		c.steps[b.run] = make(map[string]string)
	}
	for _, e := range m.Journal {
		step, ok := stepOf(e.Key)
		if !ok {
			continue
		}
		before, again := c.steps[b.run][step]
		if again && before != string(e.Value) {
			return b, fmt.Errorf("%s: %s is recorded twice: as %s, and as %s", b.run, step, before, e.Value)
		}
		c.steps[b.run][step] = string(e.Value)
	}
	return b, nil
}

// unhandled tells whether a run was never started because no worker knows its kind. Within a minute
// each worker has polled for all its kinds. A child with a Timeout is left out, because it may be
// meant to time out.
func (c *observed) unhandled(r *api.Run) bool {
	neverStarted := r.StartedAt == nil && r.FinishedAt != nil && r.FinishedAt.Sub(r.CreatedAt) >= time.Minute
	return neverStarted && !c.polledKinds[r.Kind] && !c.withTimeout[r.Kind]
}

// stepOf returns the step of a journal key. Entries of package agent that are not steps, such as
// frames, are left out, because they may differ after a crash.
func stepOf(key string) (step string, ok bool) {
	if done, ok := strings.CutPrefix(key, perdure.UndonePrefix); ok {
		return "undo " + done, true
	}
	return key, !strings.HasPrefix(key, "_")
}

// learnName returns the name of a run, and finds it out if necessary. The name of a child is its
// parent's name and its journal key, which the parent's log has. A run without a parent is the
// scenario's run or a continuation.
func (s *Trial) learnName(id perdure.RunID, kind string, parent perdure.RunID) (string, error) {
	s.mu.Lock()
	name, known := s.names[id]
	above, parentKnown := s.names[parent]
	if !known && parent == "" {
		name = kind
		if id != s.id {
			s.continuations++
			name = fmt.Sprintf("%s (continued %d)", kind, s.continuations)
		}
		s.names[id], known = name, true
	}
	s.mu.Unlock()
	if known {
		return name, nil
	}
	if !parentKnown {
		run, err := s.c.Get(s.ctx, parent)
		if err == nil {
			above, err = s.learnName(parent, run.Kind, run.ParentRunID)
		}
		if err != nil {
			return "", err
		}
	}
	for after := int64(0); ; {
		page, err := s.c.EventPage(s.ctx, parent, after, 0)
		if err != nil {
			return "", err
		}
		s.mu.Lock()
		for _, e := range page.Events {
			var child struct {
				ID  perdure.RunID `json:"job_id"`
				Key string        `json:"key"`
			}
			if e.Type == perdure.LineWorkerSpawned && json.Unmarshal(e.Data, &child) == nil {
				s.names[child.ID] = above + "/" + child.Key
			}
		}
		name, known = s.names[id]
		s.mu.Unlock()
		if known {
			return name, nil
		}
		if after = page.NextAfter; len(page.Events) == 0 {
			return "", fmt.Errorf("%s is a child of %s, whose log does not say so", id, above)
		}
	}
}
