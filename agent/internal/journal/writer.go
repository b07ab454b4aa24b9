package journal

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// A Writer collects the additions of an execution in batches, which are committed in order. It adds the
// facts among them to the record.
type Writer struct {
	rec   *Record
	at    *Cursor
	epoch int64
	// queue has the batches that are to be committed, in order. All but the last are full.
	queue    []*Batch
	inFlight *Batch
	// frames counts the frames that this execution has written, and said its entries about reports.
	frames int
	said   int
	// ignored is to go with the first commit; see Input.
	ignored *[]string
}

// A batch is full at this size. The limits of a commit are higher, because the frame and the
// worker's own log lines are added later.
const (
	fullBytes = 512 << 10
	// FullEntries is the number of entries at which a batch is full.
	FullEntries = perdure.MaxCommitEntries - 50
	// MaxIgnored is how many ignored fields of an input are recorded; maxIgnoredBytes is more than they take.
	MaxIgnored      = 64
	maxIgnoredBytes = 16 << 10
)

// NewWriter returns the writer of an execution, whose epoch is in the keys of its frames.
func NewWriter(rec *Record, at *Cursor, epoch int64) *Writer {
	return &Writer{rec: rec, at: at, epoch: epoch}
}

// A Batch is the content of one commit. The frame, and the entry about reports, are added when it is
// sent.
type Batch struct {
	Part perdure.Commit
	// Done is closed when the commit is answered. Answer is set then.
	Done   chan struct{}
	Answer *api.CommitResult

	frame Frame
	said  ReportEntry
	size  int
	// sealed counts the entries that seal has added.
	sealed int
	// noted tells that the record of a step in it has the ignored fields of the input.
	noted bool
}

// Batch returns the batch that an addition of a size goes into.
func (w *Writer) Batch(size int) *Batch { return w.BatchFor(size, 1) }

// BatchFor is Batch for an addition that counts as several entries of a commit.
func (w *Writer) BatchFor(size, entries int) *Batch {
	if n := len(w.queue); n > 0 {
		b := w.queue[n-1]
		p := &b.Part
		if b.size+size <= fullBytes && p.Entries()+entries <= FullEntries && p.Outcome == nil {
			b.size += size
			return b
		}
	}
	b := &Batch{size: size, Done: make(chan struct{})}
	w.queue = append(w.queue, b)
	return b
}

// The additions.

// Entry adds an entry.
func (w *Writer) Entry(key string, value json.RawMessage) *Batch {
	b := w.Batch(len(value) + len(key))
	w.entryIn(b, key, key, value)
	return b
}

// entryIn adds an entry to a batch. It is found under a key that may be another one than its own.
func (w *Writer) entryIn(b *Batch, key, found string, value json.RawMessage) {
	b.Part.Journal = append(b.Part.Journal, perdure.JournalEntry{Key: key, Value: value})
	w.rec.entries[found] = value
}

// Step adds the record of a step. With undo it also marks the step as one that can be undone.
func (w *Writer) Step(key string, value json.RawMessage, undo bool) *Batch {
	b := w.Batch(len(value) + len(key))
	if w.ignored != nil && len(value)+maxIgnoredBytes <= perdure.MaxValue {
		value, b.noted = withIgnored(value, *w.ignored), true
	}
	w.entryIn(b, key, key, value)
	if undo {
		b.Part.Journal = append(b.Part.Journal,
			perdure.JournalEntry{Key: UndoPrefix + key, Value: json.RawMessage(`true`)})
	}
	return b
}

// Input notes which fields of the input the agent's type does not have. The note goes with the first
// commit: in the record of a step if there is one, and otherwise in a frame.
func (w *Writer) Input(ignored []string) {
	if ignored == nil {
		ignored = []string{}
	}
	w.ignored = &ignored
}

// Unfit notes that the result of a child or callback does not fit the type that the agent asks for.
func (w *Writer) Unfit(id string) {
	w.rec.unfit[id] = true
	b := w.Batch(len(id) + 8)
	b.frame.Unfit = append(b.frame.Unfit, id)
}

// Token adds the token of a callback.
func (w *Writer) Token(wait string, value json.RawMessage) {
	w.entryIn(w.Batch(len(value)), w.rec.tokenKey(wait), TokenPrefix+wait, value)
}

// Late adds the answer to a question for a late result. It acknowledges the item with a number, unless
// that is zero.
func (w *Writer) Late(key string, value json.RawMessage, seq int64) {
	b := w.BatchFor(len(value)+len(key), 2)
	w.entryIn(b, key, key, value)
	if seq != 0 {
		b.Part.Ack = append(b.Part.Ack, seq)
	}
}

// Spawn adds a child.
func (w *Writer) Spawn(s perdure.Spawn, digest string) {
	b := w.Batch(len(s.Input) + 256)
	b.Part.Children = append(b.Part.Children, s)
	set(&b.frame.Spawned, s.Key, digest)
}

// Branch adds a branch that begins.
func (w *Writer) Branch(key string) {
	b := w.Batch(len(key) + 16)
	b.frame.Branches = append(b.frame.Branches, key)
}

// Cancel asks a child to stop.
func (w *Writer) Cancel(key string) {
	b := w.BatchFor(len(key)+16, 2)
	w.rec.cancelled[key] = true
	b.Part.Cancel = append(b.Part.Cancel, key)
	b.frame.Cancelled = append(b.frame.Cancelled, key)
}

// Mapped notes how far a map is, in the batch of its last child.
func (w *Writer) Mapped(b *Batch, key string, m Mapped) { set(&b.frame.Mapped, key, &m) }

// Version adds the version that the run is given under a name.
func (w *Writer) Version(name string, v int) {
	w.rec.versions[name] = v
	set(&w.Batch(len(name)+16).frame.Versions, name, v)
}

// Time and UUID add a time or an id that was handed out.
func (w *Writer) Time(key string, t time.Time) {
	set(&w.Batch(len(key)+48).frame.Now, key, t.UnixMicro())
}

// UUID is described with Time.
func (w *Writer) UUID(key, id string) { set(&w.Batch(len(key)+48).frame.UUID, key, id) }

// Due adds the time at which a timer ends.
func (w *Writer) Due(wait string, at time.Time) {
	w.rec.timers[wait] = at.UnixMicro()
	set(&w.Batch(len(wait)+24).frame.Timers, wait, at.UnixMicro())
}

// Winner adds the choice of a call among several futures. Their number is fs: the waits of those that
// lost are closed in the same commit, if there is room.
func (w *Writer) Winner(id string, got *Winner, fs int) {
	size := len(id) + 16
	for _, first := range got.First {
		size += len(first)
	}
	b := w.BatchFor(size, 2*fs+1)
	if fs > FullEntries/2 {
		b = w.Batch(size)
	}
	w.rec.winners[id] = got
	set(&b.frame.Winners, id, got)
}

// Report adds a message or a line that is made after a point. The function adds it to the commit.
func (w *Writer) Report(point, digest string, size int, add func(p *perdure.Commit)) {
	b := w.Batch(size + len(point) + DigestSize)
	add(&b.Part)
	b.said.Add(point, digest)
}

// item puts an item of the inbox into the journal and acknowledges it. From then on its data is what
// the journal has, so every execution sees the same bytes.
func (w *Writer) item(in Arrival, wait string, unfit bool) {
	i := &Item{Seq: in.Seq, Type: in.Type, Wait: wait, Name: in.Name, From: in.From, Outcome: in.Outcome,
		Data: Compact(json.RawMessage(in.Data)), Order: in.order, Unfit: unfit}
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
	b := w.Batch(len(i.Data) + 200)
	if len(i.Data) > apartBytes || depth > apartDepth {
		value := i.Data
		if i.Quoted = depth > quotedDepth; i.Quoted {
			value = Encode(string(i.Data))
		}
		w.entryIn(b, i.dataKey(), i.dataKey(), value)
		i.Data, i.Apart = nil, true
	}
	b.frame.In = append(b.frame.In, *i)
	b.Part.Ack = append(b.Part.Ack, i.Seq)
	w.rec.add(w.at, i)
}

// Expire ends a timer whose time has passed while the run was executed: another branch works, so the
// run is not suspended. Its item has no number, as the inbox does not have it.
func (w *Writer) Expire(id string) {
	i := &Item{Type: perdure.ItemTimer, Wait: id}
	b := w.BatchFor(len(id)+100, 2)
	if w.rec.opened[id] {
		b.Part.Close = append(b.Part.Close, id)
	}
	w.rec.add(w.at, i)
	b.frame.In = append(b.frame.In, *i)
}

// Suspend opens waits, and suspends the run on these and others that are open already. isClaim tells
// which of them a replay has to know as opened.
func (w *Writer) Suspend(open []perdure.WaitSpec, on []string, isClaim func(perdure.WaitType) bool) *Batch {
	var b *Batch
	for i := range open {
		// Waits for many children may need several commits. Only the last one suspends.
		b = w.BatchFor(100+40*len(open[i].Keys), max(1, len(open[i].Keys)))
		b.Part.Waits = append(b.Part.Waits, open[i])
		if isClaim(open[i].Type) {
			b.frame.Opened = append(b.frame.Opened, open[i].ID)
		}
	}
	if b == nil {
		b = w.Batch(200)
	}
	b.Part.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: on}
	w.dropRefused() // a refusal may have come since the caller looked
	return b
}

// Open opens a wait without suspending the run on it.
func (w *Writer) Open(wait perdure.WaitSpec, isClaim bool) *Batch {
	b := w.BatchFor(100+40*len(wait.Keys), max(1, len(wait.Keys)))
	b.Part.Waits = append(b.Part.Waits, wait)
	if isClaim {
		w.rec.opened[wait.ID] = true // it is closed if it loses
		b.frame.Opened = append(b.frame.Opened, wait.ID)
	}
	return b
}

// WithoutSuspend queues the rest of a batch whose suspend was refused because the run was asked to
// stop. The agent's clean-up may rely on it. Waits and children are left out: the children would be
// stopped at once.
func (w *Writer) WithoutSuspend(b *Batch) *Batch {
	again := &Batch{Part: b.Part, frame: b.frame, said: b.said, size: b.size, sealed: b.sealed,
		Done: make(chan struct{})}
	again.unseal()
	again.Part.Outcome, again.Part.Waits, again.Part.Children = nil, nil, nil
	again.frame.Spawned, again.frame.Opened, again.frame.Mapped = nil, nil, nil
	w.queue = append([]*Batch{again}, w.queue...)
	return again
}

// Commits and their answers.

// Last returns the batch that is committed last, or nil if all are answered.
func (w *Writer) Last() *Batch {
	if n := len(w.queue); n > 0 {
		return w.queue[n-1]
	}
	return w.inFlight
}

// More tells whether batches are to be committed.
func (w *Writer) More() bool { return len(w.queue) > 0 }

// Next takes the batch that is to be committed next. It returns nil if there is none, and an error if
// its frame can't be written, which can't happen: it is made of JSON that was read.
func (w *Writer) Next() (*Batch, error) {
	if len(w.queue) == 0 {
		return nil, nil
	}
	b := w.queue[0]
	w.queue = w.queue[1:]
	w.inFlight = b
	if !w.seal(b) {
		return nil, perdure.Errorf(perdure.CodeInternal, "a frame of the journal can't be written")
	}
	for i := range b.Part.Journal {
		w.rec.keys = append(w.rec.keys, b.Part.Journal[i].Key)
	}
	return b, nil
}

// Answered takes the answer to a batch. It returns the batches that are answered by it, and whether the
// execution has to end: after a refusal, later batches can't be committed, because they rely on this
// one. It returns none if the batch was changed and is to be sent again.
func (w *Writer) Answered(b *Batch, res *api.CommitResult) (answered []*Batch, refused bool) {
	if w.inFlight == b {
		w.inFlight = nil
	}
	if res.Error == nil {
		for _, child := range res.Children {
			w.rec.childIDs[child.Key] = child.RunID
		}
		for _, callback := range res.Callbacks {
			w.rec.tokens[callback.WaitID] = callback.Token
		}
	}
	if n := session.RefusedChild(res.Error); n >= 0 && n < len(b.Part.Children) {
		w.dropChild(b, n, res.Error)
		return nil, false
	}
	answered = []*Batch{b}
	if res.Error != nil && (b.Part.Outcome == nil || res.Error.Code != perdure.CodeCancelRequested) {
		refused = true
		answered = append(answered, w.queue...)
		w.queue = nil
	}
	for _, b := range answered {
		b.Answer = res
	}
	return answered, refused
}

// seal adds the entries to a batch that list what else it carries: its reports and its frame. It
// returns false if they can't be written.
func (w *Writer) seal(b *Batch) bool {
	add := func(key string, v any) bool {
		value := Encode(v)
		b.Part.Journal = append(b.Part.Journal, perdure.JournalEntry{Key: key, Value: value})
		b.sealed++
		return value != nil
	}
	if len(b.said) > 0 {
		w.said++
		if !add(fmt.Sprintf("%s%d.%d", ReportsPrefix, w.epoch, w.said), b.said) {
			return false
		}
	}
	if w.ignored != nil {
		if !b.noted {
			b.frame.Ignored = w.ignored
		}
		w.ignored = nil
	}
	if b.frame.empty() {
		return true
	}
	w.frames++
	key := w.frameKey(w.frames)
	for i := range b.frame.In {
		w.rec.frameOf[b.frame.In[i].Seq] = key
	}
	return add(key, b.frame)
}

// unseal removes the entries that seal has added, so that the batch can be changed and sent again.
func (b *Batch) unseal() {
	b.Part.Journal = b.Part.Journal[:len(b.Part.Journal)-b.sealed]
	b.sealed = 0
}

// frameKey returns the key of the n-th frame of this execution.
func (w *Writer) frameKey(n int) string { return fmt.Sprintf("%s%d.%d", FramePrefix, w.epoch, n) }

// FrameOf returns the key of the frame that has an inbox item, also if the frame is still to be
// committed.
func (w *Writer) FrameOf(seq int64) string {
	if key := w.rec.frameOf[seq]; key != "" || seq == 0 {
		return key
	}
	n := w.frames
	for _, b := range w.queue {
		if b.frame.empty() {
			continue
		}
		n++
		if slices.ContainsFunc(b.frame.In, func(i Item) bool { return i.Seq == seq }) {
			return w.frameKey(n)
		}
	}
	return ""
}

// Children that the server refuses.
//
// A child that the server alone can judge, by its thread or its timeout, is refused with the commit
// that spawns it. The commit is sent again without the child, and with an item as if the child had
// failed. It has no run id. So the refusal is the child's own error, in every execution.

// dropChild takes a refused child out of a commit and queues the commit again.
func (w *Writer) dropChild(b *Batch, n int, why *api.Refusal) {
	key := b.Part.Children[n].Key
	b.Part.Children = slices.Delete(slices.Clone(b.Part.Children), n, n+1)
	b.unseal()
	i := Item{Type: perdure.ItemChild, Name: key, Outcome: string(perdure.Failed),
		Data: json.RawMessage(perdure.Object("reason", string(why.Code), "message", why.Detail))}
	b.frame.In = append(b.frame.In, i)
	w.rec.add(w.at, &i)
	w.queue = append([]*Batch{b}, w.queue...)
	w.dropRefused()
}

// dropRefused takes refused children out of the waits that are to be committed.
func (w *Writer) dropRefused() {
	if !w.rec.refused {
		return
	}
	changed := false
	for _, b := range w.queue {
		waits := b.Part.Waits
		b.Part.Waits = nil
		for _, wait := range waits {
			keys := slices.DeleteFunc(slices.Clone(wait.Keys), w.rec.Refused)
			changed = changed || len(keys) < len(wait.Keys)
			if len(keys) > 0 || len(wait.Keys) == 0 {
				wait.Keys = keys
				b.Part.Waits = append(b.Part.Waits, wait)
			}
		}
		if out := b.Part.Outcome; changed && out != nil && out.Type == perdure.OutcomeSuspend {
			again := perdure.WaitSpec{ID: fmt.Sprintf("%s%d", AgainPrefix, w.epoch), Type: perdure.WaitCallback,
				Timeout: perdure.Duration(time.Millisecond)}
			b.Part.Waits = append(b.Part.Waits, again)
			b.Part.Outcome = &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: []string{again.ID}}
		}
	}
}
