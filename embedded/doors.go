package embedded

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph"
	"github.com/perdure/perdure/internal/doors/openai"
	"github.com/perdure/perdure/internal/server/webhook"
)

// doorList makes the doors, in the order in which help texts name them.
var doorList = []func(Options) *doors.Door{
	func(opt Options) *doors.Door { return langgraph.Door(opt.langgraph()) },
	func(Options) *doors.Door { return openai.Door() },
}

// What becomes of a run of the door langgraph whose caller asked for a cancel on a disconnect: values of
// Options.LangGraphOnDisconnect.
const (
	DisconnectContinues = "continue"
	DisconnectAsAsked   = "as-asked"
)

// langgraph has the options of the door langgraph.
func (opt Options) langgraph() (out langgraph.Options) {
	if opt.LangGraphOnDisconnect == DisconnectAsAsked {
		out.CancelAfter = perdure.DefaultPolicy().DetachGrace
		if opt.Policy != nil {
			out.CancelAfter = opt.Policy.DetachGrace
		}
	}
	return out
}

// DoorNames are the names that Options.Doors takes.
func DoorNames() (names []string) {
	for _, d := range doorList {
		names = append(names, d(Options{}).Name)
	}
	return names
}

// formats are the functions that make the bodies of webhooks in the form of a door.
func formats() map[perdure.WebhookFormat]webhook.Format {
	out := make(map[perdure.WebhookFormat]webhook.Format)
	for _, d := range doorList {
		if d := d(Options{}); d.Notify != nil {
			out[perdure.WebhookFormat(d.Name)] = func(e *webhook.Event) ([]byte, error) {
				return d.Notify((*frame.Notice)(e))
			}
		}
	}
	return out
}

// checkDoors refuses names of doors that there are not.
func (opt Options) checkDoors() error {
	for i, name := range opt.Doors {
		if !slices.Contains(DoorNames(), name) {
			return fmt.Errorf("doors: %q is none of %s", name, strings.Join(DoorNames(), ", "))
		}
		if slices.Contains(opt.Doors[:i], name) {
			return fmt.Errorf("doors: %s is given twice", name)
		}
	}
	switch opt.LangGraphOnDisconnect {
	case "", DisconnectContinues, DisconnectAsAsked:
	default:
		return fmt.Errorf("doors.langgraph.on_disconnect: %q is neither %s nor %s", opt.LangGraphOnDisconnect,
			DisconnectContinues, DisconnectAsAsked)
	}
	if opt.DoorRoot != "" && !slices.Contains(opt.Doors, opt.DoorRoot) {
		return fmt.Errorf("door_root: %q is none of the doors that are on: %s", opt.DoorRoot,
			strings.Join(opt.Doors, ", "))
	}
	return nil
}

// openDoors makes the doors that are on, and returns what finds them by a path. Without doors it is
// nil.
func (s *Server) openDoors(opt Options) (find func(string) (http.Handler, string, string), err error) {
	if len(opt.Doors) == 0 {
		return nil, nil
	}
	var list []*doors.Door
	for _, d := range doorList {
		if d := d(opt); slices.Contains(opt.Doors, d.Name) {
			list = append(list, d)
		}
	}
	if s.doors, err = doors.NewSet(list, opt.DoorRoot, opt.Logger); err != nil {
		return nil, fmt.Errorf("doors: %w", err)
	}
	return s.doors.Find, nil
}

// connectDoors connects the doors to the API, and refuses a door at the root that would serve a path of
// the API.
func (s *Server) connectDoors() error {
	if s.doors == nil {
		return nil
	}
	name, paths := s.doors.Samples()
	for _, path := range paths {
		if s.api.Serves(path) {
			return fmt.Errorf("door_root: %s would be served by the door %s and by Perdure's own API", path, name)
		}
	}
	s.doors.Connect(s.Transport())
	return nil
}
