package demo

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/cmd/internal/golden"
	"github.com/perdure/perdure/cmd/internal/paint"
)

// The picture is drawn from instants alone, so it can be compared with a file.
func TestPicture(t *testing.T) {
	at := func(ms int) perdure.Instant {
		return perdure.Instant(1_000_000_000_000).Add(time.Duration(ms) * time.Millisecond)
	}
	event := func(typ perdure.LineType, ms int) api.Event { return api.Event{Type: typ, At: at(ms)} }
	said := func(role perdure.Role, text string) api.Message {
		return api.Message{Role: role, Content: client.JSON(text), RunID: "chat"}
	}
	note := said(perdure.RoleSystem, "Still working on this in the background.")
	note.Metadata = json.RawMessage(`{"notice":true,"run_id":"chat"}`)
	s := &observation{
		Deferred: &api.ChatAnswer{Status: "deferred"}, Checked: 41, Executed: 1,
		Chat:    &api.Run{RunID: "chat", State: perdure.Completed, Attempt: 1},
		Worker:  &api.Run{RunID: "worker", State: perdure.Completed, Attempt: 1},
		Servers: [2]life{{PID: 1, Up: at(0), Down: at(3700)}, {PID: 2, Up: at(5700), Down: at(6500)}},
		Wait:    life{Up: at(100), Down: at(3100)}, Look: life{Up: at(800), Down: at(4800)}, Back: at(5800),
		ChatEvents: []api.Event{event(perdure.LineCreated, 100), event(perdure.LineDispatched, 110),
			event(perdure.LineStarted, 110), event(perdure.LineSuspended, 300), event(perdure.LineDeferred, 3100),
			event(perdure.LineResumed, 6000), event(perdure.LineStarted, 6100), event(perdure.LineCompleted, 6500)},
		WorkerEvents: []api.Event{event(perdure.LineCreated, 300), event(perdure.LineStarted, 500),
			event(perdure.LineCompleted, 6000)},
		Messages: []api.Message{said(perdure.RoleUser, question), note, said(perdure.RoleAssistant, ""),
			said(perdure.RoleTool, "hidden"),
			said(perdure.RoleAssistant, "df says:\nFilesystem Size\n/dev/vda 252G\n")},
	}
	if err := s.verify(); err != nil {
		t.Errorf("verify of a good observation = %v, want nil", err)
	}
	golden.Compare(t, "picture.txt", s.conversation(paint.Painter{})+"\n"+s.picture(paint.Painter{})+"\n"+
		s.verdict(paint.Painter{}))
	golden.Compare(t, "picture.colour.txt", s.picture(paint.Painter{On: true}))

	for want, spoil := range map[string]func(*observation){
		"df was executed twice":     func(s *observation) { s.Executed = 2 },
		"cost nobody an attempt":    func(s *observation) { s.Worker = &api.Run{Attempt: 2} },
		"it is failed":              func(s *observation) { s.Chat = &api.Run{State: perdure.Failed, Attempt: 1} },
		"has the answer":            func(s *observation) { s.Messages = s.Messages[:4] },
		"would come later":          func(s *observation) { s.Messages = s.Messages[2:] },
		"1 rows break one":          func(s *observation) { s.Broken = 1 },
		"stopped waiting after 3 s": func(s *observation) { s.Deferred = &api.ChatAnswer{Status: "completed"} },
	} {
		bad := *s
		spoil(&bad)
		if err := bad.verify(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("verify = %v, want an error with %q", err, want)
		}
	}
}

// A server that starts again soon leaves little room for the label of the killed one.
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
		two := [2]life{{Up: at(c.up), Down: at(c.down)}, {Up: at(c.next), Down: at(pictureWidth)}}
		if got := x.lives(two, paint.Blue).String(); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
}
