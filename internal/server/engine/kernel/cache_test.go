package kernel

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// The one rule of staleness.
func TestCache(t *testing.T) {
	const at = perdure.Instant(1_000_000_000)
	read := func(v string) func() (string, error) { return func() (string, error) { return v, nil } }
	for name, x := range map[string]struct {
		between func(c *Cache[string, string])
		look    Look
		want    string
	}{
		"soon after":                   {look: Look{Now: at.Add(time.Second - time.Microsecond)}, want: "old"},
		"when its time is over":        {look: Look{Now: at.Add(time.Second)}, want: "new"},
		"when the clock was set back":  {look: Look{Now: at.Add(-time.Microsecond)}, want: "new"},
		"by the batch that read it":    {look: Look{Now: at, number: 7, again: true}, want: "old"},
		"by a batch of the time after": {look: Look{Now: at, number: 8}, want: "old"},
		"by one that is decided again": {look: Look{Now: at, number: 8, again: true}, want: "new"},
		"after a change": {between: func(c *Cache[string, string]) { c.Forget("k") },
			look: Look{Now: at}, want: "new"},
		"after a change of all": {between: func(c *Cache[string, string]) { c.Forget() },
			look: Look{Now: at}, want: "new"},
		"after a change of another": {between: func(c *Cache[string, string]) { c.Forget("other") },
			look: Look{Now: at}, want: "old"},
		"after a read that failed": {between: func(c *Cache[string, string]) {
			c.Load(Look{Now: at}, "k", func() (string, error) { return "broken", errors.New("no") })
		}, look: Look{Now: at}, want: "old"},
		"after a read that began before a change": {between: func(c *Cache[string, string]) {
			c.Load(Look{Now: at}, "k", func() (string, error) {
				c.Forget("k")
				return "stale", nil
			})
		}, look: Look{Now: at}, want: "new"},
		"after a look of a reader with an old snapshot": {between: func(c *Cache[string, string]) {
			c.Forget("k")
			c.Get(Look{Now: at, Reader: true}, "k", read("stale"))
		}, look: Look{Now: at}, want: "new"},
		"when it was full": {between: func(c *Cache[string, string]) {
			c.Put(at, "a", "x")
			c.Put(at, "b", "x")
		}, look: Look{Now: at}, want: "new"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Cache[string, string]{TTL: time.Second, Most: 2}
			if _, err := c.Get(Look{Now: at, number: 7}, "k", read("old")); err != nil {
				t.Fatal(err)
			}
			if x.between != nil {
				x.between(c)
			}
			if got, err := c.Get(x.look, "k", read("new")); got != x.want || err != nil {
				t.Errorf("got %q (%v), want %q", got, err, x.want)
			}
			if len(c.known) > 2 {
				t.Errorf("it holds %d values, want at most 2", len(c.known))
			}
		})
	}
}

// A batch knows what it has read itself, whatever others have read before and since.
func TestCacheKnowsWhoReadAValue(t *testing.T) {
	c := &Cache[string, string]{TTL: time.Second}
	load := func(number int64) {
		if _, err := c.Load(Look{number: number}, "k", func() (string, error) { return "v", nil }); err != nil {
			t.Fatal(err)
		}
	}
	if c.ReadBy(Look{number: 7}, "k") {
		t.Error("batch 7 has read a value that nobody has read")
	}
	load(7)
	for number, want := range map[int64]bool{0: false, 6: false, 7: true, 8: false} {
		if got := c.ReadBy(Look{number: number}, "k"); got != want {
			t.Errorf("batch %d has read a value of batch 7: %t, want %t", number, got, want)
		}
	}
	load(0)
	if c.ReadBy(Look{}, "k") {
		t.Error("a reader outside of batches counts as a batch")
	}
}
