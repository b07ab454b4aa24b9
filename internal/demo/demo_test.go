package demo

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/golden"
	"github.com/perdure/perdure/internal/paint"
)

// The picture is drawn from instants alone, so it can be compared with a file.
func TestPicture(t *testing.T) {
	at := func(ms int) perdure.Instant {
		return perdure.Instant(1_000_000_000_000).Add(time.Duration(ms) * time.Millisecond)
	}
	event := func(typ string, ms int) api.Event { return api.Event{Type: typ, At: at(ms)} }
	step := func(n, ms int) api.Event {
		return api.Event{Type: line, At: at(ms), Data: json.RawMessage(fmt.Sprintf(`{"step":%d}`, n))}
	}
	s := &observation{
		Run: &api.Run{State: perdure.Completed, Attempt: 2}, Back: &api.Run{Attempt: 1}, Checked: 27,
		Acked:   []int{1, 2},
		Servers: [2]processLife{{PID: 1, Up: at(0), Down: at(1000)}, {PID: 2, Up: at(2100), Down: at(6700)}},
		Workers: [2]processLife{{PID: 3, Up: at(20), Down: at(2780)}, {PID: 4, Up: at(3700), Down: at(6700)}},
		Events: []api.Event{event(perdure.LineCreated, 50), event(perdure.LineDispatched, 60),
			event(perdure.LineStarted, 60), step(1, 430), event(perdure.LineDeferred, 550),
			step(2, 830), step(3, 2250), step(4, 2600), event(perdure.LineReattached, 3750),
			event(perdure.LineReclaimed, 5600), event(perdure.LineRetrying, 5600),
			event(perdure.LineDispatched, 5950), event(perdure.LineStarted, 5950), step(5, 6310), step(6, 6650),
			event(perdure.LineCompleted, 6660)},
		Began: [2][]stepStart{{{1, at(60)}, {2, at(430)}, {3, at(830)}, {4, at(2250)}, {5, at(2600)}},
			{{5, at(5950)}, {6, at(6310)}}},
		Ended:   map[int]perdure.Instant{1: at(430), 2: at(830), 3: at(2250), 4: at(2600), 5: at(6310), 6: at(6650)},
		Effects: map[string]int{},
	}
	for i, name := range steps {
		s.Effects[name] = 1
		if i+1 == workerDies {
			s.Effects[name] = 2
		}
	}
	if err := s.verify(); err != nil {
		t.Errorf("verify of a good observation = %v, want nil", err)
	}
	golden.Compare(t, "picture.txt", s.picture(paint.Painter{})+"\n"+s.verdict(paint.Painter{}))
	golden.Compare(t, "picture.colour.txt", s.picture(paint.Painter{On: true}))

	s.Effects[steps[0]] = 2
	if err := s.verify(); err == nil || !strings.Contains(err.Error(), "executed 2 times") {
		t.Errorf("verify of a recorded step that was executed again = %v, want an error that says so", err)
	}
}

// A worker that starts again soon leaves little room for the label of the killed one.
func TestPictureLabelsAreComplete(t *testing.T) {
	at := func(column int) perdure.Instant { return perdure.Instant(1_000_000 * (column + 1)) }
	x := &timeline{from: at(0), to: at(pictureWidth)}
	for _, c := range []struct {
		name           string
		up, down, next int
		want           string
	}{
		{"room after it", 0, 20, 40, "████████████████████✗ kill -9           ██████████████████████████"},
		{"room before it alone", 0, 20, 23, "███████████ kill -9 ✗  ███████████████████████████████████████████"},
		{"no room", 0, 3, 5, "███✗ kill -9██████████████████████████████████████████████████████"},
	} {
		two := [2]processLife{{Up: at(c.up), Down: at(c.down)}, {Up: at(c.next), Down: at(pictureWidth)}}
		if got := x.lives(two, paint.Blue).String(); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
}
