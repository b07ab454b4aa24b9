package journal

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// An Inbox has the items of the run's inbox that are not in the journal yet. The ends of children and
// of most waits are written to the journal at once, with the first commit. Signals, messages and timers
// wait for the call that takes them. One that loses gives back what came for it. Late results wait until
// the agent asks for them.
type Inbox struct {
	w *Writer
	// arrived has the signals, messages and timers that ended a wait, by its id. Only the call that
	// takes one writes it to the journal.
	arrived map[string]Arrival
	// unclaimed are signals and messages that no wait has taken, the oldest first.
	unclaimed []Arrival
	// late are the adopted late results of children that the agent has not asked for.
	late []Arrival
	// last is the number of the last item that was read.
	last int64
}

// An Arrival is an inbox item that is not in the journal yet, and its place among all items.
type Arrival struct {
	perdure.Item
	order int64
}

// NewInbox returns an inbox whose items go into the journal with a writer.
func NewInbox(w *Writer) *Inbox { return &Inbox{w: w, arrived: map[string]Arrival{}} }

// Last returns the number of the last item that was read.
func (b *Inbox) Last() int64 { return b.last }

// Read takes items that have come.
func (b *Inbox) Read(items []perdure.Item) {
	r, at := b.w.rec, b.w.at
	for _, in := range items {
		if in.Seq <= b.last { // two branches have asked for news
			continue
		}
		b.last = in.Seq
		if r.journaled[in.Seq] {
			continue
		}
		r.order++
		a := Arrival{in, r.order}
		switch in.Type {
		case perdure.ItemSignal, perdure.ItemMessage, perdure.ItemTimer:
			switch {
			case in.WaitID != "" && !r.closed[in.WaitID]:
				b.arrived[in.WaitID] = a
				at.expect("wait "+in.WaitID, false)
			case in.Type != perdure.ItemTimer:
				b.unclaimed = append(b.unclaimed, a)
			}
		case perdure.ItemLimit: // no fact: the step asks for its slots
			ack := b.w.Batch(16)
			ack.Part.Ack = append(ack.Part.Ack, in.Seq)
		case perdure.ItemLate:
			b.late = append(b.late, a)
		default:
			if in.WaitID != "" || in.Type == perdure.ItemChild {
				b.w.item(a, in.WaitID, false)
			}
		}
	}
}

// ExpectWaits adds the waits that the run sleeps on to what the execution has to ask for, as if one of them
// had ended: from then on the journal has it. See package agent about checks.
func (b *Inbox) ExpectWaits(ids []string) {
	for _, id := range ids {
		_, arrived := b.arrived[id]
		if !arrived && b.w.rec.waits[id] == nil && !strings.HasPrefix(id, AgainPrefix) &&
			!strings.HasPrefix(id[len(BranchOf(id)):], LimitPrefix) &&
			!strings.HasPrefix(id[len(BranchOf(id)):], MapPrefix) {
			b.w.at.expect("wait "+id, false)
		}
	}
}

// Take writes the signal, message or timer that ends a wait to the journal, if it has come. A signal
// or message that no wait has taken will do too. It returns nil if none has. fits tells whether data fits
// the type that the agent asks for; it is nil if there is none.
func (b *Inbox) Take(id, typ, name string, fits func(json.RawMessage) bool) *Item {
	if i := b.w.rec.waits[id]; i != nil {
		return i
	}
	a, n := b.claimable(id, typ, name)
	if a == nil {
		return nil
	}
	taken := *a
	if n >= 0 {
		b.unclaimed = slices.Delete(b.unclaimed, n, n+1)
	}
	delete(b.arrived, id)
	b.w.item(taken, id, fits != nil && taken.Type == typ && !fits(json.RawMessage(taken.Data)))
	b.w.at.Visit("wait " + id)
	return b.w.rec.waits[id]
}

// Place returns the place of the item that a wait could take, or zero if there is none.
func (b *Inbox) Place(id, typ, name string) int64 {
	if a, _ := b.claimable(id, typ, name); a != nil {
		return a.order
	}
	return 0
}

// claimable returns the item that a wait could take, and its index if no wait has it.
func (b *Inbox) claimable(id, typ, name string) (a *Arrival, n int) {
	if a, ok := b.arrived[id]; ok {
		return &a, -1
	}
	for n := range b.unclaimed {
		if in := &b.unclaimed[n]; in.Type == typ && in.Name == name {
			return in, n
		}
	}
	return nil, -1
}

// GiveBack closes a wait that lost, and notes that in a batch. The signal or message that came for it
// may then be taken by another.
func (b *Inbox) GiveBack(to *Batch, id string) {
	if a, ok := b.arrived[id]; ok {
		delete(b.arrived, id)
		if a.Type != perdure.ItemTimer {
			n := slices.IndexFunc(b.unclaimed, func(u Arrival) bool { return u.Seq > a.Seq })
			if n < 0 {
				n = len(b.unclaimed)
			}
			b.unclaimed = slices.Insert(b.unclaimed, n, a)
		} else {
			to.Part.Ack = append(to.Part.Ack, a.Seq)
		}
	}
	b.w.at.Visit("wait " + id)
	to.Part.Close = append(to.Part.Close, id)
	to.frame.Closed = append(to.frame.Closed, id)
	b.w.rec.closed[id] = true
}

// TakeLate returns the oldest late result of a child, and whether there is one.
func (b *Inbox) TakeLate(key string) (a Arrival, ok bool) {
	n := slices.IndexFunc(b.late, func(a Arrival) bool { return a.Name == key })
	if n < 0 {
		return a, false
	}
	a = b.late[n]
	b.late = slices.Delete(b.late, n, n+1)
	return a, true
}
