package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// While a node of the release before is connected, calls are refused that make use of what it does not
// know, each with that reason and without an effect. Every feature has a call here.
func TestFeaturesWaitForTheLastOlderNode(t *testing.T) {
	const older = "0.1.0"
	connected := ""
	at := storetest.Options(t)
	at.Hooks.OlderNode = func() string { return connected }
	w := newWorld(t, setup{store: &at})
	w.do("PUT", "/api/v1/limits/steps", `{"concurrency":9}`).is(201)
	w.start(`{"kind":"steps"}`)
	g := w.lease("w", `,"start":true`)
	calls := map[string]func(name string) *answer{
		kernel.Schedules.Name: func(name string) *answer {
			return w.do("PUT", "/api/v1/schedules/"+name, `{"every":"1h","kind":"scheduled"}`)
		},
		kernel.UniqueRuns.Name: func(name string) *answer {
			return w.do("POST", "/api/v1/runs", `{"kind":"u","unique":{"key":"`+name+`"}}`)
		},
		kernel.PausedKinds.Name: func(name string) *answer {
			return w.do("POST", "/api/v1/kinds/"+name+"/pause", `{}`)
		},
		kernel.Limits.Name: func(name string) *answer {
			return w.do("PUT", "/api/v1/limits/"+name, `{"concurrency":1}`)
		},
		kernel.StepLimits.Name: func(name string) *answer {
			return w.do("POST", "/api/v1/workers/w/limits", fmt.Sprintf(
				`{"steps":[{"run_id":"%s","epoch":%v,"step":"%s","limits":[{"name":"steps"}]}]}`, g["run_id"],
				g["epoch"], name))
		},
	}
	for _, f := range kernel.Features {
		call := calls[f.Name]
		if call == nil {
			t.Errorf("the feature %q has no call in this test", f.Name)
			continue
		}
		connected = ""
		made := 201
		if f.Name == kernel.PausedKinds.Name || f.Name == kernel.StepLimits.Name {
			made = 200
		}
		call("before").is(made)
		connected = older
		detail := call("meanwhile").refuses(409, "older_node")["detail"].(string)
		if !strings.HasPrefix(detail, f.Name) || !strings.Contains(detail, "release "+older) {
			t.Errorf("%s: detail = %q, want the feature and the release %s", f.Name, detail, older)
		}
		call("before").is(200) // what changes nothing is answered as ever
		connected = ""
		call("meanwhile").is(made)
	}
}
