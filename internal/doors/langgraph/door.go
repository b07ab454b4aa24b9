package langgraph

import (
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/assistants"
	"github.com/perdure/perdure/internal/doors/langgraph/follow"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/runs"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/start"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// Options are the options of the door.
type Options struct {
	// CancelAfter is how long a run has no reader before it is cancelled, if its callers have asked for that.
	// It has to be detach_grace of the policy. Zero means that no disconnect cancels a run.
	CancelAfter time.Duration
}

// Door is the door for clients of the LangGraph Platform. It has the readers of runs in memory, and nothing
// else.
func Door(opt Options) *doors.Door {
	return &doors.Door{Name: "langgraph", Refuse: refuse, Notify: frames.Notify, Routes: routes(opt),
		Accepts: []string{"X-Auth-Scheme"}, Exposes: []string{"X-Pagination-Next", "X-Pagination-Total"}}
}

func routes(opt Options) (list []doors.Route) {
	leaving := runs.NewDisconnects(opt.CancelAfter)
	starting, followed := &start.Starter{Leaving: leaving}, new(follow.Followers)
	on := func(method, pattern string, handle func(*doors.Call) error) {
		list = append(list, doors.Route{Method: method, Pattern: pattern, Handle: handle})
	}
	on("GET", "/ok", func(c *doors.Call) error { return c.JSON(http.StatusOK, shape.Object{"ok": true}) })
	on("GET", "/info", info)

	on("POST", "/assistants/search", assistants.Search)
	on("POST", "/assistants/count", assistants.Count)
	on("GET", "/assistants/{assistant}", assistants.Get)
	on("GET", "/assistants/{assistant}/schemas", assistants.Schemas)
	for _, method := range []string{"PATCH", "DELETE"} {
		on(method, "/assistants/{assistant}", kindsAreFixed)
	}
	on("POST", "/assistants", kindsAreFixed)

	on("POST", "/threads", threads.Create)
	on("POST", "/threads/search", threads.Search)
	on("GET", "/threads/{thread}", threads.Get)
	on("PATCH", "/threads/{thread}", threads.Change)
	on("DELETE", "/threads/{thread}", threads.Delete)
	on("POST", "/threads/{thread}/copy", threads.Copy)
	on("GET", "/threads/{thread}/state", threads.State)
	on("POST", "/threads/{thread}/state", threads.AddToState)
	on("POST", "/threads/{thread}/history", threads.History)
	on("GET", "/threads/{thread}/stream", followed.Stream)

	on("POST", "/threads/{thread}/runs", starting.Create)
	on("GET", "/threads/{thread}/runs", runs.List)
	on("POST", "/threads/{thread}/runs/wait", starting.Wait)
	on("POST", "/threads/{thread}/runs/stream", starting.Stream)
	on("GET", "/threads/{thread}/runs/{run}", runs.Get)
	on("DELETE", "/threads/{thread}/runs/{run}", runs.Delete)
	on("GET", "/threads/{thread}/runs/{run}/join", leaving.Join)
	on("GET", "/threads/{thread}/runs/{run}/stream", leaving.Stream)
	on("POST", "/threads/{thread}/runs/{run}/cancel", runs.Cancel)

	on("POST", "/runs", starting.Create)
	on("POST", "/runs/wait", starting.Wait)
	on("POST", "/runs/stream", starting.Stream)
	on("POST", "/runs/batch", starting.Batch)
	on("POST", "/runs/cancel", runs.CancelMany)
	on("GET", "/runs/{run}", runs.Get)
	on("GET", "/runs/{run}/join", leaving.Join)
	on("GET", "/runs/{run}/stream", leaving.Stream)
	on("POST", "/runs/{run}/cancel", runs.Cancel)
	for _, r := range []struct{ method, pattern string }{{"POST", "/runs/crons"}, {"POST", "/runs/crons/search"},
		{"POST", "/runs/crons/count"}, {"PATCH", "/runs/crons/{cron}"}, {"DELETE", "/runs/crons/{cron}"},
		{"POST", "/threads/{thread}/runs/crons"}} {
		on(r.method, r.pattern, notHere("crons are not here: make a schedule of Perdure (docs/schedules.md)"))
	}
	for _, r := range []struct{ method, pattern string }{{"PUT", "/store/items"}, {"GET", "/store/items"},
		{"DELETE", "/store/items"}, {"POST", "/store/items/search"}, {"POST", "/store/namespaces"}} {
		on(r.method, r.pattern, notHere("the store is not here: keep what agents remember in a database of yours"))
	}
	return list
}

// final are the statuses that no version of the SDK retries.
var final = map[int]bool{400: true, 401: true, 402: true, 403: true, 404: true, 405: true, 406: true, 407: true,
	408: true, 409: true, 422: true}

// refuse writes a refusal. A status that the SDK would post again with is left to what a second call may
// mend: too many calls, and a server that is not there.
func refuse(p *api.Problem, _ http.Header) (int, any) {
	status := p.Status
	switch {
	case p.Code == perdure.CodeThreadBusy:
		status = http.StatusUnprocessableEntity
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests && !final[status]:
		status = http.StatusUnprocessableEntity
	}
	detail := p.Detail
	if p.Field != "" {
		detail = p.Field + " " + detail
	}
	return status, shape.Object{"detail": detail, "code": p.Code}
}

// notHere refuses what the platform has and the door has not.
func notHere(why string) func(*doors.Call) error {
	return func(*doors.Call) error { return perdure.Errorf(perdure.CodeNotFound, "%s", why) }
}

func kindsAreFixed(*doors.Call) error {
	return perdure.Errorf(api.CodeMethod, "assistants are the kinds that workers announce; they are not changed here")
}

func info(c *doors.Call) error {
	if _, err := c.API.Session(c.Context()); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, shape.Object{"version": "perdure", "flags": shape.Object{"assistants": true,
		"crons": false, "store": false, "langsmith": false}})
}
