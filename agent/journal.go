package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// A core is an agent's run in one execution: what is recorded of it, and what is about to be.
//
// The journal has two kinds of entries. A step's has the step's key and its result. A frame's key begins with
// "_": it notes what else a commit carried, so that a replay neither does it again nor misses it: messages and
// lines by their number, children by their key, what came into the inbox, the times and ids that were handed
// out. All that an agent decides on is in there, in the order in which it came, so that a replay decides alike.
type core struct {
	s      session.Session
	grant  *api.Grant
	leased context.Context
	ctx    context.Context // of the execution: ends with a cancel too

	mu    sync.Mutex
	occur map[string]int // how often each name was used in this execution

	entries  map[string]json.RawMessage // steps and the like, by key
	spawned  map[string]string          // children: what they were asked to do, as a digest
	ids      map[string]perdure.RunID   // children, as far as known
	tokens   map[string]string          // callbacks, as far as known
	ends     map[string]*item           // children that have ended, by key
	waits    map[string]*item           // how waits ended, by their id
	early    []perdure.Item             // signals that came before anybody asked for them
	known    map[int64]bool             // inbox items that are in the journal
	times    []int64
	uuids    []string
	versions map[string]int
	unasked  map[string]bool // what is recorded and was not asked for yet in this execution
	fresh    bool            // something was done that is not in the journal

	said         []api.Message // of the thread, as far as it was read in this execution
	skipMessages int           // so many are in the thread already
	skipLines    int           // so many are in the log already
	usedTimes    int
	usedUUIDs    int

	running    int   // steps whose functions are executed right now
	undoing    error // a saga failed with it, and nothing new is begun while it is undone
	sagas      []*saga
	main       string // the goroutine that executes the agent's function
	wrong      error  // the first misuse: whoever ignores it does not get away with it
	left       *departure
	over       bool          // the agent's function has returned, or its goroutine has ended
	leaving    chan struct{} // closed when left is set
	continueOn []string

	queue  []*batch // what is to be committed; the first ones are full
	flying *batch
	frames int
}

// A batch is what one commit carries.
type batch struct {
	part   perdure.Commit
	frame  frame
	size   int
	done   chan struct{} // closed when it is answered
	answer *api.CommitResult
}

// A frame notes what a commit carries beside the results of steps.
type frame struct {
	In       []item            `json:"in,omitempty"`
	Spawned  map[string]string `json:"spawned,omitempty"`
	Messages int               `json:"messages,omitempty"`
	Lines    int               `json:"lines,omitempty"`
	Times    []int64           `json:"times,omitempty"`
	UUIDs    []string          `json:"uuids,omitempty"`
	Versions map[string]int    `json:"versions,omitempty"`
}

func (f *frame) empty() bool {
	return len(f.In)+len(f.Spawned)+f.Messages+f.Lines+len(f.Times)+len(f.UUIDs)+len(f.Versions) == 0
}

// An item is something that came into the inbox, as a frame keeps it.
type item struct {
	Seq     int64           `json:"seq"`
	Type    string          `json:"type"`
	Wait    string          `json:"wait,omitempty"`
	Name    string          `json:"name,omitempty"`
	From    perdure.RunID   `json:"run,omitempty"`
	Outcome string          `json:"outcome,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
	Apart   bool            `json:"apart,omitempty"`  // the data has an entry of its own …
	Quoted  bool            `json:"quoted,omitempty"` // … and stands there as a text
	// What came through a callback is its result, or why there is none.
	Failure *perdure.Failure `json:"failure,omitempty"`
}

const (
	framePrefix = "_frame:"
	dataPrefix  = "_data:"
	// apart is how large data is that gets an entry of its own: content as large as that is stored once, whoever
	// refers to it, and here it is the child's result.
	apart = 8 << 10
	// Data that is nested deeper than this has an entry of its own too, or is quoted: a frame nests it some more, and
	// what is nested without bound is refused.
	deep    = 40
	tooDeep = 60
	// full is when a batch takes no more. The frame and what the handler says itself need room too.
	fullBytes   = 512 << 10
	fullEntries = perdure.MaxCommitEntries - 50
)

func newCore(s session.Session) *core {
	return &core{s: s, grant: s.Grant(), leased: s.Leased(), ctx: s.Leased(),
		occur: map[string]int{}, entries: map[string]json.RawMessage{}, spawned: map[string]string{}, ids: map[string]perdure.RunID{}, tokens: map[string]string{},
		ends: map[string]*item{}, waits: map[string]*item{}, known: map[int64]bool{}, versions: map[string]int{}, unasked: map[string]bool{}, leaving: make(chan struct{})}
}

// recall reads the journal.
func (c *core) recall(journal []api.JournalEntry) error {
	for _, e := range journal {
		if !strings.HasPrefix(e.Key, framePrefix) {
			c.entries[e.Key] = e.Value
			if !strings.HasPrefix(e.Key, "_") {
				c.unasked[e.Key] = true
			}
			continue
		}
		var f frame
		if err := json.Unmarshal(e.Value, &f); err != nil {
			return nondeterminism(e.Key, "the journal is not what this library wrote: %v", err)
		}
		for key, digest := range f.Spawned {
			c.spawned[key] = digest
			c.unasked["spawn "+key] = true
		}
		for i := range f.In {
			c.take1(&f.In[i])
		}
		c.skipMessages += f.Messages
		c.skipLines += f.Lines
		c.times = append(c.times, f.Times...)
		c.uuids = append(c.uuids, f.UUIDs...)
		for name, v := range f.Versions {
			c.versions[name] = v
		}
	}
	return nil
}

// take1 learns of an item.
func (c *core) take1(i *item) {
	c.known[i.Seq] = true
	switch {
	case i.Type == perdure.ItemChild:
		c.ends[i.Name] = i
		c.ids[i.Name] = i.From
	case i.Wait != "":
		c.waits[i.Wait] = i
		c.unasked["wait "+i.Wait] = true
	}
}

// data is what an item carries.
func (c *core) data(i *item) json.RawMessage {
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

// receive takes what came since the last execution. It is noted with the first commit of this one, and thereby
// done with: what comes again is only what comes anew. Signals that nobody waits for yet, and what is for those
// who end the run, stay where they are.
func (c *core) receive(inbox []perdure.Item) {
	for _, in := range inbox {
		if c.known[in.Seq] {
			continue
		}
		if in.WaitID == "" && in.Type != perdure.ItemChild {
			if in.Type == perdure.ItemSignal {
				c.early = append(c.early, in)
			}
			continue
		}
		c.note(in, in.WaitID)
	}
}

// note puts an item into the journal and acknowledges it. What it carries is from then on what the journal has: every
// execution sees the same bytes. The caller holds c.mu, or is alone.
func (c *core) note(in perdure.Item, wait string) {
	i := &item{Seq: in.Seq, Type: in.Type, Wait: wait, Name: in.Name, From: in.From, Outcome: in.Outcome, Data: compact(json.RawMessage(in.Data))}
	if i.Type == perdure.ItemCallback {
		var got struct {
			Result json.RawMessage  `json:"result"`
			Error  *perdure.Failure `json:"error"`
		}
		if err := json.Unmarshal(i.Data, &got); err == nil {
			i.Data, i.Failure = got.Result, got.Error
		}
	}
	depth := nesting(i.Data)
	b := c.open(len(i.Data) + 200)
	if len(i.Data) > apart || depth > deep {
		value := i.Data
		if i.Quoted = depth > tooDeep; i.Quoted {
			value = plain(string(i.Data))
		}
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: i.dataKey(), Value: value})
		c.entries[i.dataKey()] = value
		i.Data, i.Apart = nil, true
	}
	b.frame.In = append(b.frame.In, *i)
	b.part.Ack = append(b.part.Ack, i.Seq)
	c.take1(i)
}

// compact is JSON without white space, as a frame writes it.
func compact(v json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, v); err != nil {
		return v
	}
	return b.Bytes()
}

// nesting is how deep a value is nested.
func nesting(v json.RawMessage) (deepest int) {
	depth, text := 0, false
	for n := 0; n < len(v); n++ {
		switch {
		case text && v[n] == '\\':
			n++
		case v[n] == '"':
			text = !text
		case text:
		case v[n] == '{' || v[n] == '[':
			depth++
			deepest = max(deepest, depth)
		case v[n] == '}' || v[n] == ']':
			depth--
		}
	}
	return deepest
}

// plain writes what is made of texts, numbers and JSON, and leaves the JSON as it is.
func plain(v any) json.RawMessage {
	b, err := perdure.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

// ---- committing

// open gives the batch that something of that size goes into. The caller holds c.mu, or is alone.
func (c *core) open(size int) *batch { return c.openFor(size, 1) }

// openFor is open for something that counts as several entries of a commit.
func (c *core) openFor(size, entries int) *batch {
	if n := len(c.queue); n > 0 {
		b := c.queue[n-1]
		p := &b.part
		if b.size+size <= fullBytes && p.Entries()+entries <= fullEntries && p.Outcome == nil {
			b.size += size
			return b
		}
	}
	b := &batch{size: size, done: make(chan struct{})}
	c.queue = append(c.queue, b)
	return b
}

// put has something committed soon.
func (c *core) put(size int, add func(b *batch)) {
	c.mu.Lock()
	add(c.open(size))
	c.mu.Unlock()
	c.s.Commit(false)
}

// take is what the worker asks for the next commit; see session.Source.
func (c *core) take() (part *perdure.Commit, more bool, answered func(*api.CommitResult)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil, false, nil
	}
	b := c.queue[0]
	c.queue = c.queue[1:]
	c.flying = b
	if !b.frame.empty() {
		value := plain(b.frame)
		if value == nil { // it holds what was JSON before
			c.depart(session.Failed(perdure.CodeInternal, "a frame of the journal can't be written", false))
			return nil, false, nil
		}
		c.frames++
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: fmt.Sprintf("%s%d.%d", framePrefix, c.grant.Epoch, c.frames), Value: value})
	}
	return &b.part, len(c.queue) > 0, func(res *api.CommitResult) {
		c.mu.Lock()
		if c.flying == b {
			c.flying = nil
		}
		if res.Error == nil {
			for _, child := range res.Children {
				c.ids[child.Key] = child.RunID
			}
			for _, door := range res.Callbacks {
				c.tokens[door.WaitID] = door.Token
			}
		}
		b.answer = res
		answered := []*batch{b}
		if res.Error != nil && (b.part.Outcome == nil || res.Error.Code != perdure.CodeCancelRequested) {
			// Whoever asked for it may be long past that, and what comes after it relies on it.
			c.depart(session.Failure(refusal(res.Error)))
			for _, later := range c.queue {
				later.answer = res
				answered = append(answered, later)
			}
			c.queue = nil
		}
		more := len(c.queue) > 0
		c.mu.Unlock()
		for _, b := range answered {
			close(b.done)
		}
		if more {
			c.s.Commit(true)
		}
	}
}

// flush has everything committed that is not yet, and waits for it.
func (c *core) flush() {
	c.mu.Lock()
	b := c.flying
	if n := len(c.queue); n > 0 {
		b = c.queue[n-1]
	}
	c.mu.Unlock()
	if b != nil {
		c.s.Commit(true)
		c.settle(b)
	}
}

// settle waits for the answer to a batch. What the server refuses ends the execution: the agent's code is past
// the call that caused it.
func (c *core) settle(b *batch) *api.CommitResult {
	if err := c.answer(b); err != nil {
		c.fail(err)
	}
	return b.answer
}

// answer waits for the answer to a batch and gives the server's refusal, if it is one.
func (c *core) answer(b *batch) error {
	select {
	case <-b.done:
	case <-c.leased.Done():
		select {
		case <-b.done: // a suspended run is no longer leased either
		default:
			c.leave(nil)
		}
	}
	if b.answer.Error == nil {
		return nil
	}
	return refusal(b.answer.Error)
}

// refusal is what the server said against a commit. Its contradictions may pass, see nondeterminism; nothing else does.
func refusal(r *api.Refusal) error {
	if r.Code == perdure.CodeNondeterminism {
		return perdure.Errorf(r.Code, "%s", r.Detail)
	}
	return Permanent(perdure.Errorf(r.Code, "%s", session.Refusal(r)))
}

// ---- names

// maxName leaves room for what is put before and after a name.
const maxName = perdure.MaxName - 30

// name checks what a step or a child is called, and gives its key: the name and how often it was used.
func (c *core) name(what, name string) (string, error) {
	switch {
	case name != "":
	case what == "kind":
		return "", c.misuse("a child needs a kind")
	default:
		return "", c.misuse("%s needs a name", a(what))
	}
	if err := perdure.CheckName(what, name); err != nil {
		return "", c.misuse("%v", err)
	}
	if strings.HasPrefix(name, "_") || len(name) > maxName {
		return "", c.misuse("%s: %q: a name has at most %d bytes and does not begin with _", what, name, maxName)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.occur[what+" "+name]++ // steps, children, signals … each have their own count
	return fmt.Sprintf("%s#%d", name, c.occur[what+" "+name]), nil
}

// a is a noun with its article.
func a(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

// nth is a name and how often it was used by now.
func (c *core) nth(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.occur[name]++
	return fmt.Sprintf("%s#%d", name, c.occur[name])
}

// recorded looks an entry up.
func (c *core) recorded(key string) (json.RawMessage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.entries[key]
	delete(c.unasked, key)
	return v, ok
}

// replaying tells whether the execution is still where an earlier one has been.
func (c *core) replaying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behind()
}

// behind is replaying. The caller holds c.mu.
func (c *core) behind() bool {
	return !c.fresh && (len(c.unasked) > 0 || c.skipMessages > 0 || c.skipLines > 0 || c.usedTimes < len(c.times) || c.usedUUIDs < len(c.uuids))
}

// anew notes that something is done that no earlier execution did.
func (c *core) anew() {
	c.mu.Lock()
	c.fresh = true
	c.mu.Unlock()
}
