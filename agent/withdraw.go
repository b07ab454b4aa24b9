package agent

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent/internal/journal"
)

// withdrawPrefix begins the keys of the entries that say whether a question was withdrawn.
const withdrawPrefix = "_withdraw:"

// Withdraw closes an approval or a callback that nobody has answered, and tells whether it did. If the
// answer came first, Withdraw changes nothing and returns false, and [Future.Result] has the answer. So
// exactly one of the two counts: an answer that the server takes is never lost, and after Withdraw has
// returned true the server refuses every answer.
func (f *Future[T]) Withdraw(ctx *Context) (withdrawn bool, err error) {
	f.check()
	c := ctx.execution()
	if err := c.proceed(); err != nil {
		return false, err
	}
	switch {
	case c.insideStep():
		return false, c.misuse("Withdraw of %s inside of a step: withdraw between steps", f.id())
	case f.err != nil:
		return false, f.err
	case f.key != "" || f.claim():
		return false, c.misuse("Withdraw of %s, which is no approval and no callback", f.id())
	}
	b, err := c.own("Withdraw")
	if err != nil {
		return false, err
	}
	key := withdrawPrefix + f.wait
	if entry, ok := c.lookup(key); ok {
		if err := json.Unmarshal(entry, &withdrawn); err != nil {
			c.fail(nondeterminism(key, "the journal is not what this library wrote: %v", err))
		}
		if withdrawn {
			c.mu.Lock()
			c.cursor.Withdraw(f.wait)
			c.mu.Unlock()
		}
		f.ended()
		return withdrawn, nil
	}
	if err := c.stopReason(b); err != nil {
		return false, err
	}
	if f.ended() == nil {
		c.flush() // a wait can be closed once it is open
		c.write(func(w *journal.Writer) {
			b := w.Batch(len(f.wait) + 16)
			b.Part.Close = append(b.Part.Close, f.wait)
		})
		c.flush()
		// The server decides about Close and about an answer one after the other. If the answer was the
		// first, it is in the inbox by now.
		if _, err := c.readNews(); err != nil {
			return false, err
		}
	}
	withdrawn = f.ended() == nil
	value, err := perdure.Encode(withdrawn)
	if err != nil {
		return false, err
	}
	c.write(func(w *journal.Writer) {
		w.Entry(key, value)
		if withdrawn {
			c.cursor.Withdraw(f.wait)
		}
	})
	return withdrawn, nil
}
