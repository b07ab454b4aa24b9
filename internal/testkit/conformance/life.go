package conformance

import (
	"fmt"
	"reflect"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
)

var lifeScenarios = []Scenario{
	{"a whole life", func(w *World) {
		r := w.task()
		w.check(r.State == perdure.Queued && r.Ready, "a new run is claimable")
		g := w.poll("w1", 5)
		w.check(len(g) == 1 && g[0].Run.State == perdure.Dispatched && g[0].Run.Epoch == 1,
			"one grant under epoch 1: %+v", g)
		w.check(string(g[0].Input) == `{"n":1}`, "the grant has the input")
		w.do(&life.Start{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g[0])}})
		w.complete(g[0], `{"ok":true}`)
		d := w.get(r.ID)
		w.check(d.State == perdure.Completed && string(d.ResultText) == `{"ok":true}` && d.Attempt == 1,
			"completed: %+v", d.Run)
		want := []string{"run:created", "run:dispatched", "run:started", "run:completed"}
		w.check(reflect.DeepEqual(w.types(r.ID), want), "lines: %v", w.types(r.ID))
	}},
	{"a poll that starts", func(w *World) {
		r := w.task()
		op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 1, Start: true}
		w.do(op)
		w.check(op.Grants[0].Run.State == perdure.Running && !op.Grants[0].Run.HolderSeen, "running and not heard from")
		w.complete(op.Grants[0], `1`)
		w.state(r.ID, perdure.Completed)
		w.check(fmt.Sprint(w.types(r.ID)) == "[run:created run:dispatched run:started run:completed]",
			"lines: %v", w.types(r.ID))
	}},
}
