package agent

import (
	"time"

	"github.com/perdure/perdure/internal/session"
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

// stand ends a check, because the run has not come further than this.
func (c *execution) stand() {
	if c.checking() {
		c.leave(nil)
	}
}

// asideGrace is how long a check lets the other goroutines go on when one of them stands.
const asideGrace = 200 * time.Millisecond

// standAside ends a check on another goroutine than the agent's own. The agent's own may have more to
// replay. It may also wait for this one, and must not go on as if the step had returned.
func (c *execution) standAside() {
	if !c.checking() {
		return
	}
	select {
	case <-c.exit.reached:
	case <-time.After(asideGrace):
	}
	c.leave(nil)
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
