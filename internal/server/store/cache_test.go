package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

func key(id string) runKey { return runKey{tenant, ref(id)} }

// ended puts a live run and then its end into a cache, and gives the live version.
func ended(c *cache, id string) (lived perdure.Run) {
	lived = perdure.Run{Version: 1, State: perdure.Running}
	c.put(key(id), cachedRun{Run: lived}, 0)
	c.put(key(id), cachedRun{Run: perdure.Run{Version: 2, State: perdure.Completed}}, 0)
	return lived
}

// turn fills a cache until the young generation has become the old one.
func (c *cache) turn(prefix string) {
	for i := range cacheSize {
		c.put(key(fmt.Sprint(prefix, i)), cachedRun{Run: perdure.Run{Version: 1, State: perdure.Running}}, 0)
	}
}

func TestOldVersionDoesNotReviveEndedRunInCache(t *testing.T) {
	var c cache
	lived := ended(&c, "a")
	c.put(key("a"), cachedRun{Run: lived}, 0)
	if c.has(key("a")) {
		t.Error("run a is live after its old version was put again, want ended")
	}
	c.turn("x")
	if _, ok := c.young[key("a")]; ok {
		t.Fatal("run a is still in the young generation: the test would prove nothing")
	}
	c.put(key("a"), cachedRun{Run: lived}, 0)
	if c.has(key("a")) {
		t.Error("run a is live after its old version was put into the new generation, want ended")
	}
	// A batch that failed, or wrote a run that is too large, drops the live run.
	lived = ended(&c, "b")
	c.put(key("live"), cachedRun{Run: lived}, 0)
	for _, id := range []string{"b", "live"} {
		c.drop(key(id))
	}
	c.put(key("b"), cachedRun{Run: lived}, 0)
	if c.has(key("b")) || c.has(key("live")) {
		t.Error("run b or run live is live after drop: want b ended and live absent")
	}
	// A newer version replaces an entry of the old generation.
	c.put(key("c"), cachedRun{Run: perdure.Run{Version: 1, State: perdure.Queued}}, 0)
	c.turn("y")
	c.put(key("c"), cachedRun{Run: perdure.Run{Version: 2, State: perdure.Running}}, 0)
	if r, ok := c.get(key("c")); !ok || r.Version != 2 {
		t.Errorf("run c: cached = %t, version %d, want version 2", ok, r.Version)
	}
}

func TestDoAllWithoutOperationsReturnsNothing(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		if errs := open(t, at).DoAll(context.Background()); len(errs) != 0 {
			t.Errorf("DoAll without operations = %v, want no errors", errs)
		}
	})
}
