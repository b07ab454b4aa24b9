package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// A Record is everything that the journal says: the facts on which an agent can decide. Load reads it.
// Afterwards only a Writer adds to it, so that an execution finds what it has written itself. Package
// agent reads it.
//
// A retry begins with entries of its original's journal. Epochs go on from the original's, so a
// frame whose key has an epoch below the first one of the run is the original's. Steps, ended children
// and ended waits are known by these entries. Everything that had not ended belongs to the original
// and is begun anew under the same key: its children were stopped with it, and its callbacks can't
// be answered any more.
type Record struct {
	// firstEpoch is that of a retry, and otherwise zero.
	firstEpoch int64
	// keys has the keys of all entries, in their order.
	keys []string
	// entries has steps and other journal entries by key, without frames.
	entries map[string]json.RawMessage
	// items has the items of each Parallel that are recorded.
	items itemCounts

	// spawned has a digest of the kind and input of each child, by key. inherited has the children that
	// the original of a retry has spawned, and this run has not.
	spawned   map[string]string
	inherited map[string]bool
	// childIDs has the run ids of children by key, as far as they are known.
	childIDs map[string]perdure.RunID
	// ends has the children that have ended, by key. refused tells that one of them was refused.
	ends    map[string]*Item
	refused bool
	// cancelled has the children that were asked to stop, by key.
	cancelled map[string]bool
	// mapped has the children that Map has spawned, by the key of the call.
	mapped map[string]*Mapped

	// waits has the waits that are over, by id.
	waits map[string]*Item
	// opened has the waits that the journal notes as opened, and closed those that lost a Select or
	// were cancelled. Both are by id.
	opened map[string]bool
	closed map[string]bool
	// winners has the results of Select and its relatives, by the id of the call.
	winners map[string]*Winner
	// timers has when timers end, by the id of the wait, in microseconds since 1970.
	timers map[string]int64
	// tokens has the tokens of callbacks by wait id, as far as they are known, and tokenEpochs the
	// epochs that belong to those of the journal.
	tokens      map[string]string
	tokenEpochs map[string]int64

	// order counts the inbox items, in the order of the journal and then of the inbox. journaled has the
	// numbers of those that are in the journal, and frameOf the keys of their frames.
	order     int64
	journaled map[int64]bool
	frameOf   map[int64]string

	versions map[string]int
	// ignored has the fields of the input that the first execution did not know, or is nil.
	ignored *[]string
	// unfit has the children and callbacks whose results did not fit.
	unfit map[string]bool
}

// Load reads the journal of a run. firstEpoch is that of a retry, and otherwise zero. The cursor expects
// everything that is recorded.
func Load(entries []api.JournalEntry, firstEpoch int64) (*Record, *Cursor, error) {
	r := &Record{
		firstEpoch:  firstEpoch,
		entries:     map[string]json.RawMessage{},
		items:       itemCounts{},
		spawned:     map[string]string{},
		inherited:   map[string]bool{},
		childIDs:    map[string]perdure.RunID{},
		ends:        map[string]*Item{},
		cancelled:   map[string]bool{},
		mapped:      map[string]*Mapped{},
		waits:       map[string]*Item{},
		opened:      map[string]bool{},
		closed:      map[string]bool{},
		winners:     map[string]*Winner{},
		timers:      map[string]int64{},
		tokens:      map[string]string{},
		tokenEpochs: map[string]int64{},
		journaled:   map[int64]bool{},
		frameOf:     map[int64]string{},
		versions:    map[string]int{},
		unfit:       map[string]bool{},
	}
	at := newCursor()
	for _, e := range entries {
		if err := r.read(at, e.Key, e.Value); err != nil {
			return nil, nil, Contradiction(e.Key, "the journal is not what this library wrote: %v", err)
		}
	}
	r.dropUnfinished(at)
	return r, at, nil
}

// Contradiction returns the error of a replay that the journal contradicts. It is a defect of the
// code: the server holds the run, because code that fits the journal may be deployed.
func Contradiction(key, format string, args ...any) error {
	return session.Defect(perdure.Errorf(perdure.CodeNondeterminism, "%s: %s", key, fmt.Sprintf(format, args...)))
}

// read takes an entry of the journal.
func (r *Record) read(at *Cursor, key string, value json.RawMessage) error {
	r.keys = append(r.keys, key)
	switch {
	case r.readToken(key, value):
	case strings.HasPrefix(key, ReportsPrefix):
		return at.Reports.Read(value)
	case strings.HasPrefix(key, FramePrefix):
		var f Frame
		if err := json.Unmarshal(value, &f); err != nil {
			return err
		}
		if f.V > version {
			return newer(f.V)
		}
		r.readFrame(at, key, &f)
	default:
		r.entries[key] = value
		if !strings.HasPrefix(key, "_") {
			if r.ignored == nil && bytes.Contains(value[:min(len(value), 32)], []byte(`"ignored":`)) {
				rec, err := ReadStep(key, value)
				if err != nil {
					return err
				}
				r.ignored = rec.Ignored
			}
			// A Parallel is over before its branch goes on, so its items are expected as a step is.
			at.expect("step "+key, IsAside(value) && !isItem(key))
			r.items.note(key)
		}
		// A step that is added to the body of a saga that has succeeded is found before it begins. After
		// a failure nothing begins, and the steps are expected.
		if name, ok := strings.CutPrefix(key, SagaPrefix); ok {
			if rec, ok := ReadSaga(value); ok && rec.OK {
				at.expect("saga "+name, rec.Aside)
			}
		}
		if reading := ReadingOf(key); reading != "" {
			at.expect(reading, false)
		}
	}
	return nil
}

func (r *Record) readFrame(at *Cursor, key string, f *Frame) {
	ofOriginal := r.isOriginals(key)
	for _, branch := range f.Branches {
		at.expect("branch "+branch, false)
	}
	for _, child := range f.Aside {
		at.asideKeys[child] = true
	}
	for _, child := range sortedKeys(f.Spawned) {
		r.spawned[child] = f.Spawned[child]
		r.inherited[child] = ofOriginal
		at.expect("spawn "+child, at.asideKeys[child])
	}
	if f.Ignored != nil {
		r.ignored = f.Ignored
	}
	for _, id := range f.Unfit {
		r.unfit[id] = true
	}
	for i := range f.In {
		f.In[i].Loaded = true
		r.add(at, &f.In[i])
		r.frameOf[f.In[i].Seq] = key
	}
	at.Reports.ReadCounts(f.Messages, f.Lines)
	at.readNamed(f)
	maps.Copy(r.versions, f.Versions)
	for _, id := range f.Opened {
		r.opened[id] = !ofOriginal // the waits of an original were never opened in this run
	}
	for _, id := range f.Closed {
		r.closed[id] = true
	}
	maps.Copy(r.winners, f.Winners)
	maps.Copy(r.timers, f.Timers)
	for id, ns := range f.Due {
		r.timers[id] = ns / 1000
	}
	for _, child := range f.Cancelled {
		r.cancelled[child] = true
	}
	for _, call := range sortedKeys(f.Mapped) {
		m := f.Mapped[call]
		if before := r.mapped[call]; before != nil {
			m.Original = before.Original
		} else {
			at.expect("map "+call, false)
		}
		if ofOriginal {
			m.Original = m.N
		}
		r.mapped[call] = m
	}
}

// add adds an item that is in the journal, or about to be.
func (r *Record) add(at *Cursor, i *Item) {
	r.journaled[i.Seq] = true
	if i.Order == 0 {
		r.order++
		i.Order = r.order
	}
	switch {
	case i.Type == perdure.ItemChild:
		r.ends[i.Name] = i
		r.childIDs[i.Name] = i.From
		if i.From == "" { // the server refused it
			r.refused = true
			at.unread = append(at.unread, unread{key: i.Name, err: i.refusal()})
		}
	case strings.HasPrefix(i.Wait, AgainPrefix):
	case strings.HasPrefix(i.Wait[len(BranchOf(i.Wait)):], MapPrefix):
		// The agent asks for the whole map, and not for each wait.
		r.waits[i.Wait] = i
	case i.Wait != "":
		r.waits[i.Wait] = i
		at.expect("wait "+i.Wait, false)
	}
	if i.Outcome == perdure.WaitStalled && i.Name != "" && i.From != "" {
		r.childIDs[i.Name] = i.From
	}
}

// readToken takes a journal entry that has the token of a callback. It tells whether it is one. The
// last entry of a wait counts, which is this run's own if there is one.
func (r *Record) readToken(key string, value json.RawMessage) bool {
	wait, ok := strings.CutPrefix(key, TokenPrefix)
	if !ok {
		return false
	}
	var epoch int64
	if text, rest, ok := strings.Cut(wait, ":"); ok {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			epoch, wait = n, rest
		}
	}
	r.entries[TokenPrefix+wait], r.tokenEpochs[wait] = value, epoch
	return true
}

// tokenKey returns the journal key for the token of a callback. A retry has tokens of its own, so
// its keys bear its first epoch.
func (r *Record) tokenKey(wait string) string {
	if r.firstEpoch == 0 {
		return TokenPrefix + wait
	}
	return fmt.Sprintf("%s%d:%s", TokenPrefix, r.firstEpoch, wait)
}

// isOriginals tells whether a frame was written by the original of a retry.
func (r *Record) isOriginals(frameKey string) bool {
	text, _, _ := strings.Cut(strings.TrimPrefix(frameKey, FramePrefix), ".")
	epoch, err := strconv.ParseInt(text, 10, 64)
	return err == nil && epoch < r.firstEpoch
}

// dropUnfinished forgets the children and the callback tokens of the original that have no end in
// the journal.
func (r *Record) dropUnfinished(at *Cursor) {
	for key, inherited := range r.inherited {
		switch {
		case !inherited:
			delete(r.inherited, key) // spawned again by this run
		case r.ends[key] == nil:
			delete(r.inherited, key)
			// The agent spawns it again within its replay, so it stays expected. A child of a goroutine
			// that is no branch is not spawned again.
			if at.asideKeys[key] {
				at.Visit("spawn " + key)
			}
			delete(r.spawned, key)
		}
	}
	for wait, epoch := range r.tokenEpochs {
		if epoch != r.firstEpoch && r.waits[wait] == nil {
			delete(r.entries, TokenPrefix+wait)
		}
	}
}

// IsRetry tells whether the run is a retry that began with the journal of its original.
func (r *Record) IsRetry() bool { return r.firstEpoch != 0 }

// Entry returns an entry by its key, and whether there is one. Frames and reports are none.
func (r *Record) Entry(key string) (json.RawMessage, bool) {
	v, ok := r.entries[key]
	return v, ok
}

// Items returns how many items a Parallel had at least, by the key of the call.
func (r *Record) Items(key string) int { return r.items[key] }

// ChildID returns the run id of a child, or nothing if it is not known.
func (r *Record) ChildID(key string) perdure.RunID { return r.childIDs[key] }

// End returns how a child ended, or nil.
func (r *Record) End(key string) *Item { return r.ends[key] }

// EndOf returns the number of the inbox item with which the child with a run id ended.
func (r *Record) EndOf(id perdure.RunID) int64 {
	for _, i := range r.ends {
		if i.From == id {
			return i.Seq
		}
	}
	return 0
}

// Refused tells whether the server has refused a child.
func (r *Record) Refused(key string) bool {
	i := r.ends[key]
	return i != nil && i.From == ""
}

// Inherited tells whether a child was spawned by the original of a retry, and not by this run.
func (r *Record) Inherited(key string) bool { return r.inherited[key] }

// Cancelled tells whether a child was asked to stop.
func (r *Record) Cancelled(key string) bool { return r.cancelled[key] }

// Mapped returns the note about the children of a map, or a zero one.
func (r *Record) Mapped(key string) (m Mapped) {
	if noted := r.mapped[key]; noted != nil {
		m = *noted
	}
	return m
}

// Stalls returns how the waits of a map ended in which a child looked stuck, by the key of that child.
func (r *Record) Stalls(key string) map[string]*Item {
	stalls := map[string]*Item{}
	for id, over := range r.waits {
		if over.Outcome == perdure.WaitStalled && strings.HasPrefix(id, InBranch(MapPrefix, key)+".") {
			stalls[over.Name] = over
		}
	}
	return stalls
}

// Wait returns how a wait ended, or nil.
func (r *Record) Wait(id string) *Item { return r.waits[id] }

// Opened tells whether an earlier execution of this run has opened the wait of a signal, a message or a
// timer.
func (r *Record) Opened(id string) bool { return r.opened[id] }

// Closed tells whether a wait lost a Select or was cancelled.
func (r *Record) Closed(id string) bool { return r.closed[id] }

// Winner returns the choice of a call that waits for the first of several futures, or nil.
func (r *Record) Winner(id string) *Winner { return r.winners[id] }

// Due returns when a timer ends, and whether that is recorded.
func (r *Record) Due(wait string) (at time.Time, ok bool) {
	us, ok := r.timers[wait]
	return time.UnixMicro(us), ok
}

// Empty tells whether nothing is recorded: this is the first execution, or as good as the first.
func (r *Record) Empty() bool { return len(r.keys) == 0 }

// Ignored returns the fields of the run's input that the type of the first execution did not have, by their
// paths. It is not known of a run that began before this was recorded, or whose input has no fields.
func (r *Record) Ignored() (fields []string, known bool) {
	if r.ignored == nil {
		return nil, false
	}
	return *r.ignored, true
}

// Unfit tells whether the result of a child or callback, or an item, did not fit the type that the agent
// asked for when it took it. The agent got an error, and gets it again.
func (r *Record) Unfit(id string, i *Item) bool { return i.Unfit || r.unfit[id] }

// HasTimer tells whether the journal has the wait of a timer under an id.
func (r *Record) HasTimer(id string) bool {
	_, opened := r.opened[id]
	_, due := r.timers[id]
	return opened || due || r.waits[id] != nil
}

// Token returns the token of a callback that this execution has opened.
func (r *Record) Token(wait string) string { return r.tokens[wait] }

// Version returns the version that the run was given under a name, and whether it was given one.
func (r *Record) Version(name string) (int, bool) {
	v, ok := r.versions[name]
	return v, ok
}

// Data returns the data of an item.
func (r *Record) Data(i *Item) json.RawMessage {
	if !i.Apart {
		return i.Data
	}
	value := r.entries[i.dataKey()]
	var text string
	if i.Quoted && json.Unmarshal(value, &text) == nil {
		return json.RawMessage(text)
	}
	return value
}

// First returns the key that comes first in the journal, or nothing if there are no keys. A key that the
// journal does not have is about to be committed.
func (r *Record) First(keys []string) string {
	first, at := "", math.MaxInt
	for _, key := range keys {
		n := slices.Index(r.keys, key)
		if n < 0 {
			n = math.MaxInt - 1
		}
		if n < at {
			first, at = key, n
		}
	}
	return first
}

// sortedKeys returns the keys of a map in their order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
