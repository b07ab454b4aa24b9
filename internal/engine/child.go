package engine

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// spawn makes children. A child is unique by its parent and its key: a replay that spawns it again gets
// the same run, and one that spawns something else under its key is contradicted.
func (tx *Tx) spawn(parent *perdure.Run, spawns []perdure.Spawn, ans *CommitAnswer) ([]perdure.Line, error) {
	var lines []perdure.Line
	for i := range spawns {
		s := &spawns[i]
		c, made, err := tx.spawnOne(parent, s)
		if err != nil {
			return nil, fieldOf(err, fmt.Sprintf("children[%d]", i))
		}
		ans.Children = append(ans.Children, ChildOf{s.Key, c.ID})
		if made {
			lines = append(lines, perdure.Line{Type: perdure.LineWorkerSpawned,
				Data: perdure.Object("job_id", string(c.ID), "key", s.Key, "task", s.Kind)})
		}
	}
	return lines, nil
}

func (tx *Tx) spawnOne(parent *perdure.Run, s *perdure.Spawn) (perdure.Run, bool, error) {
	before, ok, err := tx.Child(parent.Tenant, parent.ID, s.Key)
	if err != nil {
		return before, false, err
	}
	if ok {
		same, err := tx.Resolve(parent.Tenant, before.Input)
		if err != nil {
			return before, false, err
		}
		if before.Kind != s.Kind || string(same) != string(s.Input) {
			return before, false, perdure.Errorf(perdure.CodeNondeterminism, "child %q was spawned with another kind or input", s.Key)
		}
		return before, false, nil
	}
	r := perdure.Run{
		Tenant: parent.Tenant, Kind: s.Kind, Class: s.Class, Queue: s.Queue, Priority: s.Priority, ThreadID: s.ThreadID,
		ParentID: parent.ID, RootID: parent.RootID, JournalKey: s.Key, MaxAttempts: s.MaxAttempts,
		Options: perdure.Options{Timeout: s.Timeout, OnParentEnd: s.OnParentEnd, Process: s.Class == perdure.Process},
	}
	if r.Options.OnParentEnd == perdure.EndWithParent {
		r.Options.OnParentEnd = ""
	}
	from := tx.Now
	if s.Delay > 0 {
		r.Options.RunAt = tx.Now.Add(time.Duration(s.Delay))
		from = r.Options.RunAt
	}
	if r.DeadlineAt, err = tx.e.policy.Deadline(r.Class, s.Timeout, from); err != nil {
		return r, false, err
	}
	if !r.MayOutlive() {
		r.DeadlineAt = min(r.DeadlineAt, parent.DeadlineAt)
	}
	err = tx.accept(&r, s.Input, s.Metadata, nil, perdure.MultitaskEnqueue)
	return r, true, err
}
