package doors

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A kind is looked up once for each key and a few seconds, and a no is not remembered.
func TestKindsAreRememberedForAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, looks, there := &Set{}, 0, false
		ask := func(key, id string) error {
			c := &Call{Key: key, set: set}
			name, err := c.KindOf(id, func() (string, error) {
				looks++
				if !there {
					return "", errors.New("no such kind")
				}
				return "name of " + id, nil
			})
			if err == nil && name != "name of "+id {
				t.Errorf("kind of %s = %s", id, name)
			}
			return err
		}
		for _, x := range []struct {
			key, id string
			there   bool
			pause   time.Duration
			looks   int // so far
			refused bool
		}{
			{"a", "k", false, 0, 1, true},
			{"a", "k", true, 0, 2, false},
			{"a", "k", true, 0, 2, false},
			{"b", "k", true, 0, 3, false},
			{"a", "j", true, 0, 4, false},
			{"a", "k", false, 4 * time.Second, 4, false},
			{"a", "k", false, 2 * time.Second, 5, true},
		} {
			time.Sleep(x.pause)
			there = x.there
			if err := ask(x.key, x.id); looks != x.looks || (err != nil) != x.refused {
				t.Errorf("after %+v: %d looks, error %v", x, looks, err)
			}
		}
		there = true
		for i := range 3 * maxKnown {
			if err := ask(time.Duration(i).String(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(set.known.kinds); n > maxKnown {
			t.Errorf("%d kinds are remembered, want %d at most", n, maxKnown)
		}
	})
}
