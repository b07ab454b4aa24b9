package agenttest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A chronicle is what was seen of the runs on the wire, in words that are the same in every telling.
type chronicle struct {
	names      map[perdure.RunID]string
	others     int // of them that nobody spawned
	commits    map[commitID]boundary
	counts     map[boundary]int // with n zero
	boundaries []point          // in the order in which they came
	steps      map[string]map[string]string
	tokens     map[string]bool // of callbacks
	asked      map[string]bool // kinds that workers asked for
	hurried    map[string]bool // kinds of children that were spawned with a Timeout
}

type commitID struct {
	run perdure.RunID
	id  string
}

func newChronicle() chronicle {
	return chronicle{names: make(map[perdure.RunID]string), commits: make(map[commitID]boundary), counts: make(map[boundary]int), steps: make(map[string]map[string]string),
		tokens: make(map[string]bool), asked: make(map[string]bool), hurried: make(map[string]bool)}
}

// name is the name of a run that was introduced.
func (c *chronicle) name(id perdure.RunID) string {
	if name, ok := c.names[id]; ok {
		return name
	}
	return string(id)
}

func (c *chronicle) next(run string, grant bool, text string) boundary {
	b := boundary{run: run, grant: grant}
	c.counts[b]++
	b.n = c.counts[b]
	c.boundaries = append(c.boundaries, point{boundary: b, text: text})
	return b
}

// sawGrant notes that a run was leased.
func (c *chronicle) sawGrant(g *api.Grant) boundary { return c.next(c.name(g.RunID), true, "") }

// sawCommit notes a commit, and whether this is the first time that it is sent.
func (c *chronicle) sawCommit(m *perdure.Commit) (b boundary, first bool) {
	id := commitID{m.RunID, m.ID}
	b, known := c.commits[id]
	for _, child := range m.Children {
		if child.Timeout != 0 {
			c.hurried[child.Kind] = true
		}
	}
	if !known {
		b = c.next(c.name(m.RunID), false, describe(m))
		c.commits[id] = b
	}
	return b, !known
}

// sawResult notes what the server has made of a commit.
func (c *chronicle) sawResult(m *perdure.Commit, res *api.CommitResult) (boundary, error) {
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

// nobodys tells whether a run was left alone because no worker knows its kind: after a minute each has asked for all it knows.
// A child with a Timeout may be meant to run out of it.
func (c *chronicle) nobodys(r *api.Run) bool {
	return r.StartedAt == nil && r.FinishedAt != nil && r.FinishedAt.Sub(r.CreatedAt) >= time.Minute && !c.asked[r.Kind] && !c.hurried[r.Kind]
}

// stepOf is the step that a journal's key stands for. Package agent keeps notes of its own there as well, of what came into
// the inbox, say, which is another thing after a crash.
func stepOf(key string) (step string, ok bool) {
	if done, ok := strings.CutPrefix(key, perdure.UndonePrefix); ok {
		return "undo " + done, true
	}
	return key, !strings.HasPrefix(key, "_")
}

// introduce learns the name of a run. A child's is its parent's and its key in the parent's journal, which stands in the
// parent's log from the transaction on that made the child. A run that nobody spawned is the one that was started, or a
// continuation.
func (s *Session) introduce(id perdure.RunID, kind string, parent perdure.RunID) (string, error) {
	s.mu.Lock()
	name, known := s.names[id]
	above, parentKnown := s.names[parent]
	if !known && parent == "" {
		name = kind
		if id != s.id {
			s.others++
			name = fmt.Sprintf("%s (continued %d)", kind, s.others)
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
			above, err = s.introduce(parent, run.Kind, run.ParentRunID)
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
