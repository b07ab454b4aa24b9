package agent

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
)

// This file has the items of the inbox: which of them are in the journal at once, and which wait for
// the call that takes them.

// readInbox takes the items that came since the last execution. The first commit of this one writes
// the ends of children and of most waits to the journal and acknowledges them. Signals, messages and
// timers wait for the join that takes them. One that loses gives back what came for it. Late results
// wait for [Future.Late].
func (c *execution) readInbox(inbox []perdure.Item) {
	for _, in := range inbox {
		c.lastSeq = max(c.lastSeq, in.Seq)
		if c.journaled[in.Seq] {
			continue
		}
		c.order++
		a := arrival{in, c.order}
		switch in.Type {
		case perdure.ItemSignal, perdure.ItemMessage, perdure.ItemTimer:
			switch {
			case in.WaitID != "" && !c.closed[in.WaitID]:
				c.arrived[in.WaitID] = a
				c.expect("wait "+in.WaitID, false)
			case in.Type != perdure.ItemTimer:
				c.unclaimed = append(c.unclaimed, a)
			}
		case perdure.ItemLate:
			c.lateResults = append(c.lateResults, a)
		default:
			if in.WaitID != "" || in.Type == perdure.ItemChild {
				c.journalItem(a, in.WaitID)
			}
		}
	}
}

// take writes the signal, message or timer that ends a wait to the journal, if it has come. A signal
// or message that no wait has taken will do too. It returns nil if none has.
func (c *execution) take(id, typ, name string) *item {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.waits[id]; i != nil {
		return i
	}
	a, at := c.claimable(id, typ, name)
	if a == nil {
		return nil
	}
	taken := *a
	if at >= 0 {
		c.unclaimed = slices.Delete(c.unclaimed, at, at+1)
	}
	delete(c.arrived, id)
	c.journalItem(taken, id)
	c.visit("wait " + id)
	return c.waits[id]
}

// claimable returns the item that a wait could take, and its index if no wait has it. The caller
// holds c.mu.
func (c *execution) claimable(id, typ, name string) (a *arrival, at int) {
	if a, ok := c.arrived[id]; ok {
		return &a, -1
	}
	for n := range c.unclaimed {
		if in := &c.unclaimed[n]; in.Type == typ && in.Name == name {
			return in, n
		}
	}
	return nil, -1
}

// giveBack closes a wait that lost, and notes that. The signal or message that came for it may then
// be taken by another. The caller holds c.mu, and b is the batch in which it is done.
func (c *execution) giveBack(b *batch, id string) {
	if a, ok := c.arrived[id]; ok {
		delete(c.arrived, id)
		if a.Type != perdure.ItemTimer {
			n := slices.IndexFunc(c.unclaimed, func(u arrival) bool { return u.Seq > a.Seq })
			if n < 0 {
				n = len(c.unclaimed)
			}
			c.unclaimed = slices.Insert(c.unclaimed, n, a)
		} else {
			b.part.Ack = append(b.part.Ack, a.Seq)
		}
	}
	delete(c.unvisited, "wait "+id)
	b.part.Close = append(b.part.Close, id)
	b.frame.Closed = append(b.frame.Closed, id)
	c.closed[id] = true
}

// journalItem puts an item into the journal and acknowledges it. From then on its data is what the
// journal has, so every execution sees the same bytes. The caller holds c.mu, or is alone.
func (c *execution) journalItem(in arrival, wait string) {
	i := &item{Seq: in.Seq, Type: in.Type, Wait: wait, Name: in.Name, From: in.From, Outcome: in.Outcome,
		Data: compact(json.RawMessage(in.Data)), order: in.order}
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
	b := c.batchFor(len(i.Data) + 200)
	if len(i.Data) > apartBytes || depth > apartDepth {
		value := i.Data
		if i.Quoted = depth > quotedDepth; i.Quoted {
			value = encodeVerbatim(string(i.Data))
		}
		b.part.Journal = append(b.part.Journal, perdure.JournalEntry{Key: i.dataKey(), Value: value})
		c.entries[i.dataKey()] = value
		i.Data, i.Apart = nil, true
	}
	b.frame.In = append(b.frame.In, *i)
	b.part.Ack = append(b.part.Ack, i.Seq)
	c.addItem(i)
}
