package life

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// spawnChildren creates children. A child is unique by its parent and its key. A replay that spawns
// it again gets the same run; a spawn of something else under the key is refused as nondeterminism.
func spawnChildren(
	tx *kernel.Tx, parent *perdure.Run, spawns []perdure.Spawn, ans *CommitAnswer,
) ([]perdure.Line, error) {
	have := map[string]perdure.Run{}
	// A parent without children has none to look up.
	if parent.Children > 0 {
		keys := make([]string, len(spawns))
		for i := range spawns {
			keys[i] = spawns[i].Key
		}
		var err error
		if have, err = tx.DB.Runs.Children(parent.Tenant, parent.ID, keys); err != nil {
			return nil, err
		}
	}
	var lines []perdure.Line
	for i := range spawns {
		s := &spawns[i]
		c, again := have[s.Key]
		var err error
		if again {
			err = sameChild(tx, &c, s)
		} else if c, err = spawnChild(tx, parent, s); err == nil {
			lines = append(lines, perdure.Line{Type: perdure.LineWorkerSpawned,
				Data: perdure.Object("job_id", string(c.ID), "key", s.Key, "task", s.Kind)})
		}
		if err != nil {
			return nil, fieldOfChild(err, i)
		}
		ans.Children = append(ans.Children, ChildOf{s.Key, c.ID})
	}
	return lines, nil
}

// cancelChildren asks children of a run to stop, by their journal keys or run ids. One that has ended,
// or was asked before, is left as it is.
func cancelChildren(tx *kernel.Tx, parent *perdure.Run, names []string) error {
	if len(names) == 0 {
		return nil
	}
	children, err := childrenNamed(tx, parent, names, "cancel")
	if err != nil {
		return err
	}
	for i := range children {
		if _, err := stopRun(tx, parent.Tenant, children[i].ID, "its parent cancelled it"); err != nil {
			return err
		}
	}
	// A child that had not started has ended, which its parent's row tells.
	*parent, err = tx.Run(parent.Tenant, parent.ID)
	return err
}

// childrenNamed reads children of a run by their journal keys or run ids. field is where the request
// names them.
func childrenNamed(tx *kernel.Tx, parent *perdure.Run, names []string, field string) ([]perdure.Run, error) {
	byKey, err := tx.DB.Runs.Children(parent.Tenant, parent.ID, names)
	if err != nil {
		return nil, err
	}
	children := make([]perdure.Run, 0, len(names))
	for _, name := range names {
		c, ok := byKey[name]
		if !ok {
			if c, ok, err = tx.DB.Runs.Get(parent.Tenant, perdure.RunID(name)); err != nil {
				return nil, err
			}
		}
		if !ok || c.ParentID != parent.ID {
			return nil, perdure.Invalid(field, "%q is no child of the run", name)
		}
		children = append(children, c)
	}
	return children, nil
}

// fieldOfChild returns an error with the position of the child that caused it.
func fieldOfChild(err error, n int) error {
	field := fmt.Sprintf("children[%d]", n)
	if e, ok := err.(*perdure.Error); ok && e.Field != "" {
		return &perdure.Error{Code: e.Code, Message: e.Message, Field: field + "." + e.Field}
	}
	return fieldOf(err, field)
}

// sameChild checks that a repeated spawn has the same kind and input.
func sameChild(tx *kernel.Tx, c *perdure.Run, s *perdure.Spawn) error {
	input, err := tx.DB.Values.Resolve(c.Tenant, c.Input)
	if err != nil {
		return err
	}
	if c.Kind != s.Kind || string(input) != string(s.Input) {
		return perdure.Errorf(perdure.CodeNondeterminism, "child %q was spawned with another kind or input", s.Key)
	}
	return nil
}

// spawnChild creates one child. Its deadline is not later than the parent's, unless it may outlive
// the parent.
func spawnChild(tx *kernel.Tx, parent *perdure.Run, s *perdure.Spawn) (perdure.Run, error) {
	r := perdure.Run{
		Tenant: parent.Tenant, Kind: s.Kind, Class: s.Class, Queue: s.Queue, Priority: s.Priority, ThreadID: s.ThreadID,
		ParentID: parent.ID, RootID: parent.RootID, JournalKey: s.Key, MaxAttempts: s.MaxAttempts,
		Options: perdure.Options{Timeout: s.Timeout, OnParentEnd: s.OnParentEnd, Depth: parent.Options.Depth + 1},
	}
	if r.Options.Depth > perdure.MaxDepth {
		return r, perdure.Errorf(perdure.CodeInvalid, "runs may be nested %d deep, and this one's parent is",
			perdure.MaxDepth)
	}
	if r.Options.OnParentEnd == perdure.DispositionCancel {
		r.Options.OnParentEnd = ""
	}
	from := tx.Now
	if s.Delay > 0 {
		r.Options.RunAt = tx.Now.Add(time.Duration(s.Delay))
		from = r.Options.RunAt
	}
	err := takeFromKind(tx, &r, s.ClassGiven())
	if err != nil {
		return r, err
	}
	if err := useLimits(tx, &r, s.Limits, s.LimitKey, s.Units, s.Input); err != nil {
		return r, err
	}
	if r.DeadlineAt, err = tx.Engine.Policy().Deadline(r.Class, r.Options.Timeout, from); err != nil {
		return r, err
	}
	if !r.MayOutlive() {
		r.DeadlineAt = min(r.DeadlineAt, parent.DeadlineAt)
	}
	if s.Unique != nil {
		if _, r.CreatedAt, err = resolveUnique(tx, r.Tenant, r.Kind, s.Unique); err != nil {
			return r, err
		}
		if r.CreatedAt != 0 { // it replaces a run, which may be another child: the parent was told of its end
			if *parent, err = tx.Run(parent.Tenant, parent.ID); err != nil {
				return r, err
			}
		}
		if err = tx.Requires(kernel.UniqueRuns); err != nil {
			return r, err
		}
		r.Options.Unique = s.Unique.Use(tx.Now)
	}
	if s.NewThread {
		if r.ThreadID, err = threadOfChild(tx, parent, s); err != nil {
			return r, err
		}
	}
	err = acceptRun(tx, &r, s.Input, s.Metadata, nil, perdure.MultitaskEnqueue)
	return r, err
}

// threadOfChild creates the thread of a child. Its metadata tell it apart from the conversations of people.
func threadOfChild(tx *kernel.Tx, parent *perdure.Run, s *perdure.Spawn) (perdure.ThreadID, error) {
	id, err := tx.NewID()
	if err != nil {
		return "", err
	}
	tx.DB.Trees.Add(parent.Tenant, parent.RootID, perdure.ThreadID(id)) // it goes with its root
	metadata := perdure.Object(perdure.ThreadParent, string(parent.ID), "key", s.Key)
	tx.DB.Threads.Put(perdure.Thread{Tenant: parent.Tenant, ID: perdure.ThreadID(id), CreatedAt: tx.Now,
		Metadata: tx.DB.Values.Intern(parent.Tenant, id, json.RawMessage(metadata))})
	return perdure.ThreadID(id), nil
}
