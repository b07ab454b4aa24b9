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
	w.do("PUT", "/api/v1/limits/keyed", `{"concurrency":9,"per_key":true}`).is(201)
	w.start(`{"kind":"steps"}`)
	g := w.lease("w", `,"start":true`)
	tested := map[string]bool{}
	for _, c := range []struct {
		kernel.Feature
		made int
		call func(name string) *answer
	}{
		{kernel.Schedules, 201, func(name string) *answer {
			return w.do("PUT", "/api/v1/schedules/"+name, `{"every":"1h","kind":"scheduled"}`)
		}},
		{kernel.UniqueRuns, 201, func(name string) *answer {
			return w.do("POST", "/api/v1/runs", `{"kind":"u","unique":{"key":"`+name+`"}}`)
		}},
		{kernel.PausedKinds, 200, func(name string) *answer {
			return w.do("POST", "/api/v1/kinds/"+name+"/pause", `{}`)
		}},
		{kernel.Limits, 201, func(name string) *answer {
			return w.do("PUT", "/api/v1/limits/"+name, `{"concurrency":1}`)
		}},
		{kernel.Limits, 200, func(name string) *answer {
			return w.do("PUT", "/api/v1/limits/keyed/keys/"+name, `{"concurrency":2}`)
		}},
		{kernel.Limits, 200, func(name string) *answer {
			return w.do("PUT", "/api/v1/queues/"+name, `{"concurrency":1}`)
		}},
		{kernel.WebhookFormats, 201, func(name string) *answer {
			return w.do("POST", "/api/v1/runs",
				`{"kind":"w","name":"`+name+`","webhook":"https://1.1.1.1/","webhook_format":"openai"}`)
		}},
		{kernel.StepLimits, 200, func(name string) *answer {
			return w.do("POST", "/api/v1/workers/w/limits", fmt.Sprintf(
				`{"steps":[{"run_id":"%s","epoch":%v,"step":"%s","limits":[{"name":"steps"}]}]}`, g["run_id"],
				g["epoch"], name))
		}},
	} {
		f, call, made := c.Feature, c.call, c.made
		tested[f.Name] = true
		connected = ""
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
	for _, f := range kernel.Features {
		if !tested[f.Name] {
			t.Errorf("the feature %q has no call in this test", f.Name)
		}
	}
	connected = older
	w.do("PUT", "/api/v1/queues/before", `{}`).is(200) // what ends it, too
}
