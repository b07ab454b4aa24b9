package agent

import (
	"time"

	"github.com/perdure/perdure/internal/wire/session"
)

// A check replays a run with another build, without a lease; see session.Check. It is an ordinary
// execution that ends where an ordinary one would do something new: execute a step, wait for the answer
// to a commit, or read what is not recorded. So a check finds what a replay finds, and changes nothing.
//
// The run will go on when one of the waits ends that it sleeps on. From then on the journal has that end,
// and an execution that does not ask for it is held. So a check expects each of them to be asked for.

// checking tells whether this execution is a check.
func (c *execution) checking() bool {
	_, ok := c.s.(session.Check)
	return ok
}

// standGrace is how long a check lets other branches go on when one of them stands.
const standGrace = 200 * time.Millisecond

// stand ends a check in a branch, because the run has not come further than this. Other branches may have
// more to replay. They are waited for until all stand, or wait for one that does.
func (c *execution) stand(b *branch) {
	if !c.checking() {
		return
	}
	if b == nil {
		c.leave(nil)
	}
	c.mu.Lock()
	b.parked = &parked{on: []string{""}}
	c.mu.Unlock()
	for over := time.After(standGrace); ; {
		c.mu.Lock()
		_, _, all := c.allParked()
		changed := c.parking.changed
		c.mu.Unlock()
		if all {
			c.leave(nil)
		}
		select {
		case <-changed:
		case <-c.exit.reached:
			c.leave(nil)
		case <-over: // another one waits for this one, in a way that is not ours
			c.leave(nil)
		}
	}
}

// expectAsleep adds the waits that the run sleeps on to what the execution has to ask for.
func (c *execution) expectAsleep() {
	if check, ok := c.s.(session.Check); ok {
		c.inbox.ExpectWaits(check.Asleep())
	}
}

// visitAsleep notes, in a check, that the execution asks for waits: it is about to sleep on them.
func (c *execution) visitAsleep(on []string) {
	if !c.checking() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range on {
		c.cursor.Visit("wait " + id)
	}
}
