package langgraph

import (
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

// object is a JSON object of the protocol.
type object = map[string]any

// A door has the readers of runs in memory, and nothing else.
type door struct {
	disconnects
	followers
}

// Door is the door for clients of the LangGraph Platform.
func Door(opt Options) *doors.Door {
	d := &door{disconnects: disconnects{after: opt.CancelAfter}}
	return &doors.Door{Name: "langgraph", Refuse: refuse, Notify: notify, Routes: d.routes(),
		Accepts: []string{"X-Auth-Scheme"}, Exposes: []string{"X-Pagination-Next", "X-Pagination-Total"}}
}

func (d *door) routes() (list []doors.Route) {
	on := func(method, pattern string, handle func(*doors.Call) error) {
		list = append(list, doors.Route{Method: method, Pattern: pattern, Handle: handle})
	}
	on("GET", "/ok", func(c *doors.Call) error { return c.JSON(http.StatusOK, object{"ok": true}) })
	on("GET", "/info", info)

	on("POST", "/assistants/search", searchAssistants)
	on("POST", "/assistants/count", countAssistants)
	on("GET", "/assistants/{assistant}", getAssistant)
	on("GET", "/assistants/{assistant}/schemas", getSchemas)
	for _, method := range []string{"PATCH", "DELETE"} {
		on(method, "/assistants/{assistant}", kindsAreFixed)
	}
	on("POST", "/assistants", kindsAreFixed)

	on("POST", "/threads", createThread)
	on("POST", "/threads/search", searchThreads)
	on("GET", "/threads/{thread}", getThread)
	on("PATCH", "/threads/{thread}", changeThread)
	on("DELETE", "/threads/{thread}", deleteThread)
	on("POST", "/threads/{thread}/copy", copyThread)
	on("GET", "/threads/{thread}/state", getState)
	on("POST", "/threads/{thread}/state", addToState)
	on("POST", "/threads/{thread}/history", getHistory)
	on("GET", "/threads/{thread}/stream", d.streamThread)

	on("POST", "/threads/{thread}/runs", d.createRun)
	on("GET", "/threads/{thread}/runs", listRuns)
	on("POST", "/threads/{thread}/runs/wait", d.waitForNewRun)
	on("POST", "/threads/{thread}/runs/stream", d.streamNewRun)
	on("GET", "/threads/{thread}/runs/{run}", getRun)
	on("DELETE", "/threads/{thread}/runs/{run}", deleteRun)
	on("GET", "/threads/{thread}/runs/{run}/join", d.joinRun)
	on("GET", "/threads/{thread}/runs/{run}/stream", d.streamRun)
	on("POST", "/threads/{thread}/runs/{run}/cancel", cancelRun)

	on("POST", "/runs", d.createRun)
	on("POST", "/runs/wait", d.waitForNewRun)
	on("POST", "/runs/stream", d.streamNewRun)
	on("POST", "/runs/batch", d.createBatch)
	on("POST", "/runs/cancel", cancelRuns)
	on("GET", "/runs/{run}", getRun)
	on("GET", "/runs/{run}/join", d.joinRun)
	on("GET", "/runs/{run}/stream", d.streamRun)
	on("POST", "/runs/{run}/cancel", cancelRun)
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
	return status, object{"detail": detail, "code": p.Code}
}

// unprocessable refuses what the door has no equivalent for.
func unprocessable(code perdure.Code, field, detail string) error {
	p := api.NewProblem(code, detail, field)
	p.Status = http.StatusUnprocessableEntity
	return p
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
	return c.JSON(http.StatusOK, object{"version": "perdure", "flags": object{"assistants": true, "crons": false,
		"store": false, "langsmith": false}})
}
