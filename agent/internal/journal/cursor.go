package journal

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Cursor is where an execution has come to in its journal.
//
// Edits of code under running agents are found by what a replay does not ask for. A replay asks for
// everything that is recorded before it does anything new, if its code fits the journal. So when
// the agent's own goroutine begins something that is not recorded (a step, a child, a wait), each
// recorded thing has to be visited already. If one is not, it was renamed or removed, or the new
// thing was inserted before it.
//
// A thing has a name such as "step a#1", "spawn kind#1" or "wait signal:go#1".
//
// The order of goroutines is not determined. Things that were recorded off the agent's own goroutine
// are marked ("aside") and are not expected before the agent completes. Such a goroutine may also
// begin something new at any time.
type Cursor struct {
	// uses counts how often each name was used in this execution.
	uses map[string]int
	// unvisited has the recorded things that this execution has not come to yet. inOrder has all of
	// them as they were recorded; those before next need not be looked at again. aside has those of
	// other goroutines.
	unvisited map[string]bool
	inOrder   []string
	next      int
	aside     map[string]bool
	// past tells that this execution has done something that is not in the journal.
	past bool

	// asideKeys has the keys of children that other goroutines spawned, and asideChildren those that
	// are recorded and not asked for, by digest. taken has the keys that this execution has given to
	// children.
	asideKeys     map[string]bool
	asideChildren map[string][]string
	taken         map[string]bool
	// unread has the errors of children that could not be spawned, and that the agent has not looked
	// at.
	unread []unread
	// withdrawn has the ids of waits that the agent has withdrawn up to here.
	withdrawn map[string]bool

	// Reports are the messages and lines of earlier executions, and the point at which this one is.
	Reports Reports
	// Times and UUIDs are those that were handed out, by key.
	Times Named[time.Time]
	UUIDs Named[string]
}

// An unread is the error of a child that could not be spawned, and that the agent has not looked at.
type unread struct {
	key string // of a child that the server refused
	err error
}

func newCursor() *Cursor {
	return &Cursor{
		uses:          map[string]int{},
		unvisited:     map[string]bool{},
		aside:         map[string]bool{},
		asideKeys:     map[string]bool{},
		asideChildren: map[string][]string{},
		taken:         map[string]bool{},
		withdrawn:     map[string]bool{},
		Reports:       NewReports(),
	}
}

// Use counts a use of a name, among the things of a kind, and returns the number.
func (c *Cursor) Use(what, name string) int {
	c.uses[what+name]++
	return c.uses[what+name]
}

// expect adds a recorded thing that the execution has to ask for.
func (c *Cursor) expect(thing string, aside bool) {
	if aside {
		c.aside[thing] = true
		return
	}
	c.unvisited[thing] = true
	c.inOrder = append(c.inOrder, thing)
}

// readNamed takes the times and ids of a frame.
func (c *Cursor) readNamed(f *Frame) {
	for _, t := range f.Times {
		c.Times.ReadOld(time.Unix(0, t))
	}
	for _, id := range f.UUIDs {
		c.UUIDs.ReadOld(id)
	}
	for _, key := range sortedKeys(f.Now) {
		c.Times.Read(key, time.UnixMicro(f.Now[key]))
		c.expect("time "+key, false)
	}
	for _, key := range sortedKeys(f.UUID) {
		c.UUIDs.Read(key, f.UUID[key])
		c.expect("UUID "+key, false)
	}
}

// Visit marks a thing as asked for, and tells whether it is recorded and was not asked for before.
func (c *Cursor) Visit(thing string) bool {
	known := c.unvisited[thing] || c.aside[thing]
	delete(c.unvisited, thing)
	delete(c.aside, thing)
	return known
}

// Missed returns the first recorded thing that was not asked for, or nothing. The wait of a
// join is never missed: the ends of its children are the facts, and these are found by their keys.
func (c *Cursor) Missed() string {
	for ; c.next < len(c.inOrder); c.next++ {
		if thing := c.inOrder[c.next]; c.unvisited[thing] && !isJoin(thing) {
			return thing
		}
	}
	return ""
}

func isJoin(thing string) bool { return strings.HasPrefix(thing, "wait "+JoinPrefix) }

// Begin is called before something begins that is not in the journal. It returns the first recorded
// thing that was not asked for, or nothing.
func (c *Cursor) Begin() (missed string) {
	c.past = true
	c.Reports.Forget()
	return c.Missed()
}

// Past tells whether this execution has done something that is not in the journal.
func (c *Cursor) Past() bool { return c.past }

// Replaying tells whether an earlier execution has been at this point.
func (c *Cursor) Replaying() bool {
	return !c.past && (len(c.unvisited) > 0 || c.Reports.Open() || c.Times.Open() || c.UUIDs.Open())
}

// Left returns a recorded thing that was not asked for, also one of another goroutine. It is asked when
// the agent completes.
func (c *Cursor) Left() string {
	missed := c.Missed()
	if missed == "" {
		for thing := range c.aside {
			if missed == "" || thing < missed {
				missed = thing
			}
		}
	}
	return missed
}

// Describe names a thing that was not asked for, and counts the others.
func (c *Cursor) Describe(thing string) string {
	others := -1
	for other := range c.unvisited {
		if !isJoin(other) {
			others++
		}
	}
	what, id, _ := strings.Cut(thing, " ")
	text := fmt.Sprintf("the %s %s", strings.Replace(what, "spawn", "child", 1), id)
	if others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}

// KeyOf returns the journal key of a recorded thing.
func KeyOf(thing string) string {
	_, key, _ := strings.Cut(thing, " ")
	return key
}

// Remove tells that the code no longer has the things of a name.
func (c *Cursor) Remove(name string) {
	for _, things := range []map[string]bool{c.unvisited, c.aside} {
		for thing := range things {
			if slices.Contains(namesOf(thing), name) {
				delete(things, thing)
			}
		}
	}
	c.Reports.Remove(func(point string) bool { return slices.Contains(namesOf(point), name) })
}

// namesOf returns the names of a recorded thing, without the number of its use. A wait has two:
// with its type, such as "signal:go", and without.
func namesOf(thing string) []string {
	what, key, _ := strings.Cut(thing, " ")
	name := key[:max(0, strings.LastIndexByte(key, '#'))]
	if _, short, ok := strings.Cut(name, ":"); ok && what == "wait" {
		return []string{name, short}
	}
	return []string{name}
}

// Child returns the key of a child: its kind and a number. The agent's own goroutine numbers
// children in the order of its calls. The order of other goroutines is not determined, so a replay
// finds their children by kind and input; those with the same are interchangeable. A new child gets
// the next number that is free. The digest that is recorded under the key is before, if it is asked for
// again.
func (c *Cursor) Child(r *Record, kind, digest string, aside bool) (key string, before string, again bool) {
	if same := c.asideChildren[digest]; aside && len(same) > 0 {
		c.asideChildren[digest] = same[1:]
		return same[0], digest, true
	}
	uses := "kind "
	if aside {
		uses = "aside kind "
	}
	for {
		key = fmt.Sprintf("%s#%d", kind, c.Use(uses, kind))
		before, again = r.spawned[key]
		if aside && !again && !c.taken[key] || !aside && !c.asideKeys[key] {
			break
		}
	}
	if !again {
		c.taken[key], c.asideKeys[key] = true, aside
	}
	return key, before, again
}

// ExpectsAside tells whether a child with a digest is recorded that another goroutine spawned, and that is
// not asked for yet.
func (c *Cursor) ExpectsAside(digest string) bool { return len(c.asideChildren[digest]) > 0 }

// NotSpawned notes the error of a child that could not be spawned. An agent that completes without
// having looked at it fails with the error.
func (c *Cursor) NotSpawned(err error) { c.unread = append(c.unread, unread{err: err}) }

// Look notes that the agent looks at a child, by its key or by the error that it has instead.
func (c *Cursor) Look(key string, err error) {
	c.unread = slices.DeleteFunc(c.unread, func(u unread) bool {
		return u.err == err || key != "" && u.key == key
	})
}

// Unread returns the error of the first child that could not be spawned and that the agent has not
// looked at.
func (c *Cursor) Unread() error {
	if len(c.unread) == 0 {
		return nil
	}
	return c.unread[0].err
}

// Withdraw notes that the agent has come past the call that withdrew a wait.
func (c *Cursor) Withdraw(wait string) { c.withdrawn[wait] = true }

// Withdrawn tells whether the agent has withdrawn a wait.
func (c *Cursor) Withdrawn(wait string) bool { return c.withdrawn[wait] }
