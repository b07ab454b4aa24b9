package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// A tenant with very many kinds is read in parts, and does not delay others.
func TestReadyTakesTurnsBetweenTenants(t *testing.T) {
	s := open(t, Options{})
	const kinds = 3*readyOfTenant + 5
	err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
		add := func(tenant perdure.TenantID, kind string) {
			r := newRun(fmt.Sprintf("%s-%s", tenant, kind), tx.Now)
			r.Tenant, r.Kind, r.Ready = tenant, kind, true
			tx.Runs.Put(r, nil)
		}
		for i := range kinds {
			add("a", fmt.Sprintf("k%04d", i))
		}
		add("b", "only")
		return nil
	}))[0]
	if err != nil {
		t.Fatal(err)
	}
	var round ReadyRound
	seen := make(map[Ready]bool)
	for look := range 4 {
		ofB := 0
		err := s.View(t.Context(), func(v *View) error {
			ready, err := v.Claims.Ready(&round)
			if len(ready) > readyOfTenant+1 {
				t.Errorf("look %d gives %d kinds, want %d at most", look, len(ready), readyOfTenant+1)
			}
			for _, r := range ready {
				seen[r] = true
				if r.Tenant == "b" {
					ofB++
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if ofB != 1 {
			t.Errorf("look %d gives %d kinds of tenant b, want 1", look, ofB)
		}
	}
	if len(seen) != kinds+1 {
		t.Errorf("%d kinds were seen in four looks, want all %d", len(seen), kinds+1)
	}
}

// A strictSession fails searches behind a place that SQLite begins at the place itself; see behindPlace.
type strictSession struct {
	Conn
	t *testing.T
}

func (s strictSession) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	if strings.Contains(query, "kind)>(") {
		s.t.Errorf("all runs of a place are read by %s", query)
	}
	return s.Conn.Query(query, args, row)
}

func TestPlacesAreFoundWithoutReadingTheirRuns(t *testing.T) {
	s := open(t, Options{Hooks: Hooks{Wrap: func(s Conn) Conn { return strictSession{s, t} }}})
	err := s.Batch(s.Now(), opFunc(func(tx *Tx) error {
		for i := range 4 {
			r := newRun(fmt.Sprint("run", i), tx.Now)
			r.Queue, r.Kind, r.Ready = "q", []string{"a", "a", "a b", "b"}[i], true
			tx.Runs.Put(r, nil)
		}
		return nil
	}))[0]
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(t.Context(), func(v *View) error {
		ready, err := v.Claims.Ready(new(ReadyRound))
		if err != nil {
			return err
		}
		var kinds []string
		for _, r := range ready {
			kinds = append(kinds, r.Kind)
		}
		if want := []string{"a", "a b", "b"}; !slices.Equal(kinds, want) {
			t.Errorf("ready are %q, want %q", kinds, want)
		}
		_, err = v.Claims.HeldPlaces("", 10, 10)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
