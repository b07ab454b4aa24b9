package engine

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
		between func(c *cache[string, string])
		look    look
		want    string
	}{
		"soon after":                   {look: look{now: at.Add(time.Second - time.Microsecond)}, want: "old"},
		"when its time is over":        {look: look{now: at.Add(time.Second)}, want: "new"},
		"when the clock was set back":  {look: look{now: at.Add(-time.Microsecond)}, want: "new"},
		"by the batch that read it":    {look: look{now: at, number: 7, again: true}, want: "old"},
		"by a batch of the time after": {look: look{now: at, number: 8}, want: "old"},
		"by one that is decided again": {look: look{now: at, number: 8, again: true}, want: "new"},
		"after a change": {between: func(c *cache[string, string]) { c.forget("k") },
			look: look{now: at}, want: "new"},
		"after a change of all": {between: func(c *cache[string, string]) { c.forget() },
			look: look{now: at}, want: "new"},
		"after a change of another": {between: func(c *cache[string, string]) { c.forget("other") },
			look: look{now: at}, want: "old"},
		"after a read that failed": {between: func(c *cache[string, string]) {
			c.load(look{now: at}, "k", func() (string, error) { return "broken", errors.New("no") })
		}, look: look{now: at}, want: "old"},
		"after a read that began before a change": {between: func(c *cache[string, string]) {
			c.load(look{now: at}, "k", func() (string, error) {
				c.forget("k")
				return "stale", nil
			})
		}, look: look{now: at}, want: "new"},
		"after a look of a reader with an old snapshot": {between: func(c *cache[string, string]) {
			c.forget("k")
			c.get(look{now: at, reader: true}, "k", read("stale"))
		}, look: look{now: at}, want: "new"},
		"when it was full": {between: func(c *cache[string, string]) {
			c.put(at, "a", "x")
			c.put(at, "b", "x")
		}, look: look{now: at}, want: "new"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cache[string, string]{ttl: time.Second, most: 2}
			if _, err := c.get(look{now: at, number: 7}, "k", read("old")); err != nil {
				t.Fatal(err)
			}
			if x.between != nil {
				x.between(c)
			}
			if got, err := c.get(x.look, "k", read("new")); got != x.want || err != nil {
				t.Errorf("got %q (%v), want %q", got, err, x.want)
			}
			if len(c.known) > 2 {
				t.Errorf("it holds %d values, want at most 2", len(c.known))
			}
		})
	}
}
