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
// the agent begins something that is not recorded (a step, a child, a wait), each recorded thing has to
// be visited already. If one is not, it was renamed or removed, or the new thing was inserted before it.
//
// A thing has a name such as "step a#1", "spawn kind#1" or "wait signal:go#1".
//
// The agent's own goroutine and each of its branches have an order of their own: a lane. The order of
// lanes is not determined. A lane that begins something new has to be past its own things. The branches
// that it began are among them.
//
// Things without an order are marked ("aside"): the items of a Parallel, and what earlier releases
// recorded in goroutines that were no branches. They are not expected before the agent completes.
type Cursor struct {
	// uses counts how often each name was used in this execution.
	uses map[string]int
	// lanes has the lanes by the prefix of their keys. That of the agent's own goroutine is empty.
	lanes map[string]*lane

	// asideKeys has the keys of children that goroutines spawned which were no branches.
	asideKeys map[string]bool
	// unread has the errors of children that could not be spawned, and that the agent has not looked
	// at.
	unread []unread
	// withdrawn has the ids of waits that the agent has withdrawn up to here.
	withdrawn map[string]bool

	// Reports are the messages and lines of earlier executions.
	Reports Reports
	// Times and UUIDs are those that were handed out, by key.
	Times Named[time.Time]
	UUIDs Named[string]
}

// A lane has an order of its own. It is the agent's own goroutine, or a branch.
type lane struct {
	// unvisited has the recorded things that this execution has not come to yet. inOrder has all of
	// them as they were recorded; those before next need not be looked at again. aside has those
	// without an order.
	unvisited map[string]bool
	inOrder   []string
	next      int
	aside     map[string]bool
	// index has the places in inOrder of readings, and of what comes after the first of them. furthest is
	// the last place that was visited. See Passed.
	index    map[string]int
	furthest int
	// past tells that this execution has done something that is not in the journal.
	past bool
	// point is the one to which reports belong.
	point string
}

// of returns the lane with a prefix.
func (c *Cursor) of(branch string) *lane {
	l := c.lanes[branch]
	if l == nil {
		l = &lane{unvisited: map[string]bool{}, aside: map[string]bool{}, point: Start}
		if branch != "" {
			l.point = Start + " " + branch
		}
		c.lanes[branch] = l
	}
	return l
}

// An unread is the error of a child that could not be spawned, and that the agent has not looked at.
type unread struct {
	key string // of a child that the server refused
	err error
}

func newCursor() *Cursor {
	return &Cursor{
		uses:      map[string]int{},
		lanes:     map[string]*lane{"": {unvisited: map[string]bool{}, aside: map[string]bool{}, point: Start}},
		asideKeys: map[string]bool{},
		withdrawn: map[string]bool{},
		Reports:   NewReports(),
	}
}

// Use counts a use of a name, among the things of a kind, and returns the number.
func (c *Cursor) Use(what, name string) int {
	c.uses[what+name]++
	return c.uses[what+name]
}

// expect adds a recorded thing that the execution has to ask for.
func (c *Cursor) expect(thing string, aside bool) {
	l := c.of(BranchOf(KeyOf(thing)))
	if aside {
		l.aside[thing] = true
		return
	}
	l.unvisited[thing] = true
	if l.index == nil && isReading(thing) {
		l.index = map[string]int{}
	}
	if l.index != nil && hasPlace(thing) {
		l.index[thing] = len(l.inOrder)
	}
	l.inOrder = append(l.inOrder, thing)
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
	l := c.of(BranchOf(KeyOf(thing)))
	known := l.unvisited[thing] || l.aside[thing]
	if at, ok := l.index[thing]; ok {
		l.furthest = max(l.furthest, at)
	}
	delete(l.unvisited, thing)
	delete(l.aside, thing)
	return known
}

// Missed returns the first recorded thing of a branch that was not asked for, or nothing. The wait of a
// join is never missed: the ends of its children are the facts, and these are found by their keys.
func (c *Cursor) Missed(branch string) string { return c.of(branch).missed() }

// missedWithin returns a thing of a branch that was not asked for, or of a branch in it.
func (c *Cursor) missedWithin(branch string) string {
	for _, other := range sortedKeys(c.lanes) {
		if strings.HasPrefix(other, branch) {
			if thing := c.lanes[other].left(); thing != "" {
				return thing
			}
		}
	}
	return ""
}

func (l *lane) missed() string {
	for ; l.next < len(l.inOrder); l.next++ {
		if thing := l.inOrder[l.next]; l.unvisited[thing] && !isJoin(thing) {
			return thing
		}
	}
	return ""
}

// left is missed with the things that have no order.
func (l *lane) left() string {
	missed := l.missed()
	if missed == "" {
		for thing := range l.aside {
			if missed == "" || thing < missed {
				missed = thing
			}
		}
	}
	return missed
}

func isJoin(thing string) bool {
	what, id, _ := strings.Cut(thing, " ")
	return what == "wait" && strings.HasPrefix(id[len(BranchOf(id)):], JoinPrefix)
}

// Begin is called before something begins in a branch that is not in the journal. It returns the first
// recorded thing that was not asked for, or nothing.
func (c *Cursor) Begin(branch string) (missed string) {
	c.of(branch).past = true
	c.Reports.Forget()
	return c.Missed(branch)
}

// Nameless returns something that an earlier release recorded in a goroutine that was no branch, and
// that was not asked for. A branch can't tell whether it is its own.
func (c *Cursor) Nameless() (thing string) {
	for other := range c.of("").aside {
		what, key, _ := strings.Cut(other, " ")
		if what == "step" && isItem(key) {
			continue
		}
		if thing == "" || other < thing {
			thing = other
		}
	}
	return thing
}

// Past tells whether a branch has done something that is not in the journal.
func (c *Cursor) Past(branch string) bool { return c.of(branch).past }

// Replaying tells whether an earlier execution has been at the point where a branch is.
func (c *Cursor) Replaying(branch string) bool {
	l := c.of(branch)
	return !l.past && (len(l.unvisited) > 0 || c.Reports.Open(l.point) || c.Times.Open() || c.UUIDs.Open())
}

// Pass sets the point of a branch: it has come past something that is recorded, or that has failed.
func (c *Cursor) Pass(branch, point string) { c.of(branch).point = point }

// At returns the point of a branch.
func (c *Cursor) At(branch string) string { return c.of(branch).point }

// Left returns a recorded thing that was not asked for, also one without an order, of any branch. It is
// asked when the agent completes.
func (c *Cursor) Left() string { return c.missedWithin("") }

// LeftIn is Left for a branch and the branches in it. It is asked when the branch ends.
func (c *Cursor) LeftIn(branch string) string { return c.missedWithin(branch) }

// Drop forgets the records of a branch and of the branches in it.
func (c *Cursor) Drop(branch string) {
	for other, l := range c.lanes {
		if strings.HasPrefix(other, branch) {
			clear(l.unvisited)
			clear(l.aside)
		}
	}
}

// Describe names a thing that was not asked for, and counts the others of its branch.
func (c *Cursor) Describe(thing string) string {
	others := -1
	for other := range c.of(BranchOf(KeyOf(thing))).unvisited {
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

// ReadingOf returns the thing that an entry about messages of the thread belongs to, or nothing. Entries
// of one kind have only numbers, so one that is not asked for would be read by the next call.
func ReadingOf(key string) string {
	for prefix, call := range map[string]string{HistoryPrefix: "History", NewestPrefix: "NewestMessages"} {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			branch := BranchOf(rest)
			return "reading " + branch + call + rest[strings.LastIndexByte(rest, '#'):]
		}
	}
	return ""
}

func isReading(thing string) bool { return strings.HasPrefix(thing, "reading ") }

// hasPlace tells whether a thing is asked for where it was recorded. A question to a person is asked for
// when it is opened, and recorded when it is answered.
func hasPlace(thing string) bool {
	id, ok := strings.CutPrefix(thing, "wait ")
	id = id[len(BranchOf(id)):]
	return !ok || strings.HasPrefix(id, "signal:") || strings.HasPrefix(id, "sleep:")
}

// Passed returns something that was recorded after a reading, and that the execution has asked for
// already. Then the reading that it asks for now is another one, which has got the number of this.
func (c *Cursor) Passed(reading string) string {
	l := c.of(BranchOf(KeyOf(reading)))
	if at, ok := l.index[reading]; ok && l.furthest > at {
		return l.inOrder[l.furthest]
	}
	return ""
}

// KeyOf returns the journal key of a recorded thing.
func KeyOf(thing string) string {
	_, key, _ := strings.Cut(thing, " ")
	return key
}

// Remove tells that the code no longer has the things of a name, in whichever branch, or a branch of
// that name.
func (c *Cursor) Remove(name string) {
	for _, l := range c.lanes {
		for _, things := range []map[string]bool{l.unvisited, l.aside} {
			for thing := range things {
				if slices.Contains(namesOf(thing), name) {
					delete(things, thing)
				}
			}
		}
	}
	c.Reports.Remove(func(point string) bool { return slices.Contains(namesOf(point), name) })
}

// namesOf returns the names of a recorded thing, without the number of its use. A wait has two:
// with its type, such as "signal:go", and without. A thing of a branch has the branch's name too.
func namesOf(thing string) (names []string) {
	what, key, _ := strings.Cut(thing, " ")
	branch := BranchOf(key)
	for branch != "" {
		outer := parentOf(branch)
		names = append(names, nameOf(strings.TrimSuffix(branch[len(outer):], BranchSeparator)))
		branch = outer
	}
	name := nameOf(key[len(BranchOf(key)):])
	if _, short, ok := strings.Cut(name, ":"); ok && what == "wait" {
		names = append(names, short)
	}
	return append(names, name)
}

// nameOf returns the name in a key, without the number of its use.
func nameOf(key string) string { return key[:max(0, strings.LastIndexByte(key, '#'))] }

// Child returns the key of a child: its kind and a number, in the order in which a branch spawns them.
// The digest that is recorded under the key is before, if there is one.
func (c *Cursor) Child(r *Record, branch, kind string) (key string, before string, again bool) {
	for {
		key = fmt.Sprintf("%s%s#%d", branch, kind, c.Use("kind ", branch+kind))
		if !c.asideKeys[key] {
			before, again = r.spawned[key]
			return key, before, again
		}
	}
}

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
