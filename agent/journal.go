package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// An execution is one execution of an agent's function: the record that it replays, and what it is
// about to add to it.
//
// The journal has three kinds of entries. A step's entry has the step's key and its result. A frame's
// key begins with "_frame:". It lists what else a commit carried: children by key, inbox items, and
// the times and ids that were handed out. A replay uses it to skip these things and to get the same
// values again. The key of an entry about reports begins with "_said:"; see package journal. Everything
// an agent can decide on is in the journal, in the order in which it came, so a replay decides in the
// same way.
type execution struct {
	s      session.Session
	grant  *api.Grant
	leased context.Context
	// ctx is the context of the execution. Unlike leased, it also ends with a cancel request.
	ctx context.Context

	mu sync.Mutex
	// uses counts how often each name was used in this execution.
	uses map[string]int

	// entries has steps and other journal entries by key, without frames.
	entries map[string]json.RawMessage
	// spawned has a digest of the kind and input of each child, by key.
	spawned map[string]string
	// childIDs has the run ids of children by key, as far as they are known.
	childIDs map[string]perdure.RunID
	// tokens has the tokens of callbacks by wait id, as far as they are known.
	tokens map[string]string
	// childEnds has the children that have ended, by key.
	childEnds map[string]*item
	// waits has the waits that are over, by id.
	waits map[string]*item
	// arrived has the signals, messages and timers of the inbox that ended a wait, by its id. Only the
	// join that takes one writes it to the journal.
	arrived map[string]arrival
	// unclaimed are signals and messages that no wait has taken, the oldest first.
	unclaimed []arrival
	// lateResults are the adopted late results of children that the agent has not asked for.
	lateResults []arrival
	// order counts the inbox items, in the order of the journal and then of the inbox.
	order int64
	// lastSeq is the number of the last inbox item that was read.
	lastSeq int64
	// opened has the waits that the journal notes as opened, and closed those that lost a Select or
	// were cancelled. Both are by id.
	opened map[string]bool
	closed map[string]bool
	// winners has the results of Select and its relatives, by the id of the call.
	winners map[string]*winner
	// due has the times of timers by their key, in nanoseconds since 1970.
	due map[string]int64
	// cancelled has the children that were asked to stop, by key.
	cancelled map[string]bool
	// mapped has the children that Map has spawned, by the key of the call.
	mapped map[string]*mapped
	// items has the items of each Parallel that are recorded.
	items itemCounts
	// journaled has the sequence numbers of inbox items that are in the journal.
	journaled map[int64]bool
	// times and uuids are those that were handed out, by key.
	times    journal.Named[time.Time]
	uuids    journal.Named[string]
	versions map[string]int
	// recorded has the keys of all entries, in their order, and frameOf the key of the frame that an
	// inbox item is in.
	recorded []string
	frameOf  map[int64]string
	// tokenEpochs has the epochs that belong to the tokens of callbacks, by wait id; see tokenKey.
	tokenEpochs map[string]int64
	// inherited has the children that the original of a retry has spawned, and this run has not.
	inherited map[string]bool
	// unvisited has the recorded things that this execution has not come to yet: "step a#1",
	// "spawn kind#1", "wait signal:go#1". inOrder has all of them as they were recorded; those before
	// inOrderAt need not be looked at again. aside has those of other goroutines. See edits.go.
	unvisited map[string]bool
	inOrder   []string
	inOrderAt int
	aside     map[string]bool
	// asideKeys has the keys of children that other goroutines spawned, and asideChildren those that
	// are recorded and not asked for, by digest.
	asideKeys     map[string]bool
	asideChildren map[string][]string
	// executing has the steps that are being executed or looked up, by name.
	executing map[string]string
	// unread has the errors of children that could not be spawned, and that the agent has not looked
	// at.
	unread []unread
	// anyRefused tells that the server has refused a child.
	anyRefused bool
	// pending has the errors of steps that are not recorded yet, by goroutine. See pending.go.
	pending map[string][]pendingError
	// pastJournal tells that this execution has done something that is not in the journal.
	pastJournal bool

	// messages of the thread, as far as this execution has read it.
	messages []api.Message
	// readSeq is the number of the last message of the thread that the agent has read.
	readSeq int64
	// reports are the messages and lines of earlier executions, and the point at which this one is.
	reports journal.Reports

	// runningSteps counts the steps whose functions are being called.
	runningSteps int
	// undoing is the error of a saga that is being undone. Nothing new begins meanwhile.
	undoing error
	// sagas are those that are being executed, the innermost last.
	sagas []*saga
	// mainGoroutine is the one that executes the agent's function.
	mainGoroutine string
	// firstMisuse fails the run at the end, even if the agent's code ignored the error.
	firstMisuse error
	earlyExit   *earlyExit
	// exiting is closed when earlyExit is set.
	exiting chan struct{}
	// returned tells that the agent's function has returned, or that its goroutine has ended.
	returned   bool
	continueOn []string

	// queue has the batches that are to be committed, in order. All but the last are full.
	queue    []*batch
	inFlight *batch
	// frames counts the frames that this execution has written, and said its entries about reports.
	frames int
	said   int
}

// A frame is the journal entry that lists what a commit carries beside the results of steps.
type frame struct {
	In       []item            `json:"in,omitempty"`
	Spawned  map[string]string `json:"spawned,omitempty"`
	Aside    []string          `json:"aside,omitempty"` // keys in Spawned that other goroutines spawned
	Versions map[string]int    `json:"versions,omitempty"`
	// Now has times by key, in microseconds since 1970, and UUID has ids by key.
	Now  map[string]int64  `json:"now,omitempty"`
	UUID map[string]string `json:"uuid,omitempty"`

	// Frames of the old form have these, and new frames do not. Messages and Lines count the reports of
	// the commit. Times, in nanoseconds since 1970, and UUIDs have values without names, in order.
	Messages int      `json:"messages,omitempty"`
	Lines    int      `json:"lines,omitempty"`
	Times    []int64  `json:"times,omitempty"`
	UUIDs    []string `json:"uuids,omitempty"`

	Opened    []string           `json:"opened,omitempty"`
	Closed    []string           `json:"closed,omitempty"`
	Winners   map[string]*winner `json:"winners,omitempty"`
	Due       map[string]int64   `json:"due,omitempty"`
	Cancelled []string           `json:"cancelled,omitempty"`
	Mapped    map[string]*mapped `json:"mapped,omitempty"`
}

func (f *frame) empty() bool {
	return len(f.In)+len(f.Spawned)+len(f.Now)+len(f.UUID)+len(f.Versions)+
		len(f.Opened)+len(f.Closed)+len(f.Winners)+len(f.Due)+len(f.Cancelled)+len(f.Mapped) == 0
}

// An item is an inbox item as a frame keeps it.
type item struct {
	Seq     int64           `json:"seq"`
	Type    string          `json:"type"`
	Wait    string          `json:"wait,omitempty"`
	Name    string          `json:"name,omitempty"`
	From    perdure.RunID   `json:"run,omitempty"`
	Outcome string          `json:"outcome,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	// Apart tells that the data is in a journal entry of its own.
	Apart bool `json:"apart,omitempty"`
	// Quoted tells that the data is a JSON string there, with the JSON of the data in it.
	Quoted bool `json:"quoted,omitempty"`
	// Failure is set if a callback was answered with an error. Otherwise Data is its result.
	Failure *perdure.Failure `json:"failure,omitempty"`

	// order is the item's place among all. Numbers of the inbox can't be compared across a retry of
	// the run, which begins a new inbox.
	order int64
}

// An arrival is an inbox item that is not in the journal yet, and its place among all items.
type arrival struct {
	perdure.Item
	order int64
}

const (
	framePrefix = "_frame:"
	saidPrefix  = perdure.SaidPrefix
	dataPrefix  = "_data:"
	// Data of more than apartBytes gets an entry of its own. The store keeps such content once by
	// its hash, so the entry shares it with the child's result.
	apartBytes = 8 << 10
	// Data that is nested deeper than apartDepth gets an entry of its own, and beyond quotedDepth
	// it is quoted. A frame adds levels of its own, and the server limits the depth of JSON.
	apartDepth  = 40
	quotedDepth = 60
	// A batch is full at this size. The limits of a commit are higher, because the frame and the
	// worker's own log lines are added later.
	fullBytes   = 512 << 10
	fullEntries = perdure.MaxCommitEntries - 50
)

func newExecution(s session.Session) *execution {
	return &execution{
		s: s, grant: s.Grant(), leased: s.Leased(), ctx: s.Leased(),
		uses:        map[string]int{},
		entries:     map[string]json.RawMessage{},
		spawned:     map[string]string{},
		childIDs:    map[string]perdure.RunID{},
		tokens:      map[string]string{},
		childEnds:   map[string]*item{},
		waits:       map[string]*item{},
		journaled:   map[int64]bool{},
		versions:    map[string]int{},
		frameOf:     map[int64]string{},
		inherited:   map[string]bool{},
		unvisited:   map[string]bool{},
		tokenEpochs: map[string]int64{},

		arrived:   map[string]arrival{},
		opened:    map[string]bool{},
		closed:    map[string]bool{},
		winners:   map[string]*winner{},
		due:       map[string]int64{},
		cancelled: map[string]bool{},
		mapped:    map[string]*mapped{},
		items:     itemCounts{},

		aside:     map[string]bool{},
		asideKeys: map[string]bool{},
		executing: map[string]string{},
		pending:   map[string][]pendingError{},
		reports:   journal.NewReports(),

		asideChildren: map[string][]string{},
		exiting:       make(chan struct{}),
	}
}

// readJournal takes the entries of the journal into the execution.
func (c *execution) readJournal(entries []api.JournalEntry) error {
	for _, e := range entries {
		c.recorded = append(c.recorded, e.Key)
		if c.readToken(e.Key, e.Value) {
			continue
		}
		if strings.HasPrefix(e.Key, saidPrefix) {
			if err := c.reports.Read(e.Value); err != nil {
				return nondeterminism(e.Key, "the journal is not what this library wrote: %v", err)
			}
			continue
		}
		if !strings.HasPrefix(e.Key, framePrefix) {
			c.entries[e.Key] = e.Value
			if !strings.HasPrefix(e.Key, "_") {
				c.expect("step "+e.Key, isAside(e.Value))
				c.items.note(e.Key)
			}
			c.expectSaga(e.Key, e.Value)
			continue
		}
		var f frame
		if err := json.Unmarshal(e.Value, &f); err != nil {
			return nondeterminism(e.Key, "the journal is not what this library wrote: %v", err)
		}
		for _, key := range f.Aside {
			c.asideKeys[key] = true
			c.asideChildren[f.Spawned[key]] = append(c.asideChildren[f.Spawned[key]], key)
		}
		for _, key := range slices.Sorted(maps.Keys(f.Spawned)) {
			c.spawned[key] = f.Spawned[key]
			c.inherited[key] = c.isOriginals(e.Key)
			c.expect("spawn "+key, c.asideKeys[key])
		}
		for i := range f.In {
			c.addItem(&f.In[i])
			c.frameOf[f.In[i].Seq] = e.Key
		}
		c.reports.ReadCounts(f.Messages, f.Lines)
		c.readNamed(&f)
		for name, v := range f.Versions {
			c.versions[name] = v
		}
		c.addClaims(&f, c.isOriginals(e.Key))
	}
	return nil
}

// addClaims adds the parts of a frame that are about waits and children. Waits of an original, whose
// journal this run began with, were never opened in this run.
func (c *execution) addClaims(f *frame, ofOriginal bool) {
	for _, id := range f.Opened {
		c.opened[id] = !ofOriginal
	}
	for _, id := range f.Closed {
		c.closed[id] = true
	}
	maps.Copy(c.winners, f.Winners)
	maps.Copy(c.due, f.Due)
	for _, key := range f.Cancelled {
		c.cancelled[key] = true
	}
	for key, m := range f.Mapped {
		if before := c.mapped[key]; before != nil {
			m.original = before.original
		} else {
			c.expect("map "+key, false)
		}
		if ofOriginal {
			m.original = m.N
		}
		c.mapped[key] = m
	}
}

// addItem adds an item that is in the journal, or about to be.
func (c *execution) addItem(i *item) {
	c.journaled[i.Seq] = true
	if i.order == 0 {
		c.order++
		i.order = c.order
	}
	switch {
	case i.Type == perdure.ItemChild:
		c.childEnds[i.Name] = i
		c.childIDs[i.Name] = i.From
		if i.From == "" { // the server refused it
			c.unread, c.anyRefused = append(c.unread, unread{key: i.Name, err: i.refusal()}), true
		}
	case strings.HasPrefix(i.Wait, againPrefix):
	case strings.HasPrefix(i.Wait, mapPrefix): // the agent asks for the whole map, and not for each wait
		c.waits[i.Wait] = i
	case i.Wait != "":
		c.waits[i.Wait] = i
		c.expect("wait "+i.Wait, false)
	}
}

// dataOf returns the data of an item.
func (c *execution) dataOf(i *item) json.RawMessage {
	if !i.Apart {
		return i.Data
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	value := c.entries[i.dataKey()]
	var text string
	if i.Quoted && json.Unmarshal(value, &text) == nil {
		return json.RawMessage(text)
	}
	return value
}

func (i *item) dataKey() string { return fmt.Sprintf("%s%d", dataPrefix, i.Seq) }

// compact removes white space from JSON, as a frame writes it.
func compact(v json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, v); err != nil {
		return v
	}
	return b.Bytes()
}

// nesting returns how deep a JSON value is nested.
func nesting(v json.RawMessage) (deepest int) {
	depth, inString := 0, false
	for n := 0; n < len(v); n++ {
		switch {
		case inString && v[n] == '\\':
			n++
		case v[n] == '"':
			inString = !inString
		case inString:
		case v[n] == '{' || v[n] == '[':
			depth++
			deepest = max(deepest, depth)
		case v[n] == '}' || v[n] == ']':
			depth--
		}
	}
	return deepest
}

// encodeVerbatim encodes a value without escaping HTML, so that JSON in it stays as it is. It
// returns nil if the value can't be encoded.
func encodeVerbatim(v any) json.RawMessage {
	b, err := perdure.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

// Names and keys.

// maxName leaves room for the prefix and the number that a key adds to a name.
const maxName = perdure.MaxName - 30

// keyFor checks the name of a step or a wait, and returns its key. That is the name with
// the number of its use in this execution. Each kind of thing has its own count.
func (c *execution) keyFor(what, name string) (string, error) {
	if name == "" {
		return "", c.misuse("%s needs a name", withArticle(what))
	}
	if err := perdure.CheckName(what, name); err != nil {
		return "", c.misuse("%v", err)
	}
	if strings.HasPrefix(name, "_") || len(name) > maxName {
		return "", c.misuse("%s: %q: a name has at most %d bytes and does not begin with _", what, name, maxName)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses[what+" "+name]++
	return fmt.Sprintf("%s#%d", name, c.uses[what+" "+name]), nil
}

// withArticle returns a noun with its indefinite article.
func withArticle(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

// nextUse counts a use of a name and returns the name with the number of uses.
func (c *execution) nextUse(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses[name]++
	return fmt.Sprintf("%s#%d", name, c.uses[name])
}

// lookup returns a journal entry, and marks it as visited.
func (c *execution) lookup(key string) (json.RawMessage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.entries[key]
	c.visit("step " + key)
	return v, ok
}

// replaying tells whether an earlier execution has been at this point.
func (c *execution) replaying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.replayingLocked()
}

// replayingLocked is replaying for a caller that holds c.mu.
func (c *execution) replayingLocked() bool {
	return !c.pastJournal && (len(c.unvisited) > 0 || c.reports.Open() || c.times.Open() || c.uuids.Open())
}
