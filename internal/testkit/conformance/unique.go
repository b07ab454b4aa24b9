package conformance

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

// uniqueOp is a submission of a kind with a unique key.
func uniqueOp(u perdure.Unique, input string) *life.Submit {
	return &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "u", Class: perdure.Agent,
		Input: []byte(input), Unique: &u}}
}

// keyed submits a run with a unique key.
func (w *World) unique(u perdure.Unique, input string) *life.Submit {
	w.t.Helper()
	op := uniqueOp(u, input)
	w.do(op)
	return op
}

// debounced submits a debounced run.
func (w *World) debounced(key, input string, after, most time.Duration) *life.Submit {
	w.t.Helper()
	op := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "d", Class: perdure.Agent,
		Input: []byte(input), Timeout: minutes(60),
		Debounce: &perdure.Debounce{Key: key, For: perdure.Duration(after), Max: perdure.Duration(most)}}}
	w.do(op)
	return op
}

// refusedBy checks that an operation is refused because a run has the key.
func (w *World) refusedBy(op kernel.Op, id perdure.RunID) {
	w.t.Helper()
	err := w.E.Step(w.Now, op)[0]
	refused, ok := err.(*perdure.Error)
	w.check(ok && refused.Code == perdure.CodeNotUnique && refused.RunID == id, "error %v, want not_unique by %s",
		err, id)
}

var uniqueScenarios = []Scenario{
	{"a key is taken until its run ends, and a caller gets that run", func(w *World) {
		u := perdure.Unique{Key: "k"}
		first := w.unique(u, `1`)
		again := w.unique(u, `2`)
		w.check(first.Created && !first.Existing && !again.Created && again.Existing && again.Run.ID == first.Run.ID,
			"first %+v, again %+v", first, again)
		w.refusedBy(uniqueOp(perdure.Unique{Key: "k", OnConflict: perdure.UniqueReject}, `2`), first.Run.ID)
		other := &life.Submit{Tenant: "theirs", Submission: perdure.Submission{Kind: "u", Unique: &u}}
		kind := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "v", Unique: &u}}
		w.do(other)
		w.do(kind)
		w.check(other.Created && kind.Created, "another tenant or kind shares the key")
		w.check(w.unique(perdure.Unique{Key: "K"}, `1`).Created, "keys are not compared byte by byte")
		g := w.take("w")
		w.restart()
		w.check(w.unique(u, `3`).Existing, "the key is free while its run is leased")
		w.complete(g, `1`)
		next := w.unique(u, `4`)
		w.check(next.Created && next.Run.ID != first.Run.ID, "after the end: %+v", next)
	}},
	{"a child may take the key of its own parent's other child", func(w *World) {
		spawn := func(key string) perdure.Spawn {
			return perdure.Spawn{Key: key, Kind: "u",
				Unique: &perdure.Unique{Key: "k", OnConflict: perdure.UniqueReplace}}
		}
		w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
		g := w.takeKind("parent")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{spawn("c#1")}})
		first := w.childOf(g.Run.ID)
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{spawn("c#2"), {Key: "c#3", Kind: "task"}},
			Waits: []perdure.WaitSpec{{ID: "j", Type: perdure.WaitChildren, Mode: perdure.ModeAll,
				Keys: []string{"c#1"}}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: []string{"j"}}})
		w.check(w.get(first).State == perdure.Cancelled, "the first child is %s, want cancelled", w.get(first).State)
		r := w.get(g.Run.ID)
		w.check(r.Children == 3 && r.State == perdure.Queued,
			"the parent is %s and has spawned %d children, want queued and 3", r.State, r.Children)
	}},
	{"a key that is taken until the start lets one run and one wait", func(w *World) {
		u := perdure.Unique{Key: "k", While: perdure.UniqueWaiting}
		first := w.unique(u, `1`)
		g := w.take("w")
		w.beat(g)
		second := w.unique(u, `2`)
		w.check(second.Created, "the key is taken while its run executes")
		third := w.unique(u, `3`)
		w.check(third.Existing && third.Run.ID == second.Run.ID, "a third one: %+v", third.Run.ID)
		w.complete(g, `1`) // the end of the first frees nothing of the second
		w.check(w.unique(u, `4`).Run.ID == second.Run.ID, "the end of run %s has freed the key", first.Run.ID)
		w.do(&life.Cancel{Tenant: tenant, RunID: second.Run.ID})
		w.check(w.unique(u, `5`).Created, "a run that ended without a start keeps the key")
	}},
	{"a key that is taken for a time outlives its run, also past the retention", func(w *World) {
		u := perdure.Unique{Key: "k", While: perdure.UniqueFor, For: perdure.Duration(60 * 24 * time.Hour)}
		first := w.unique(u, `1`)
		w.complete(w.take("w"), `1`)
		w.Now = w.Now.Add(40 * 24 * time.Hour)
		w.retire()
		again := w.unique(u, `2`)
		w.check(again.Existing && again.Run.ID == first.Run.ID && again.Run.State == perdure.Completed, "again: %+v",
			again.Run)
		w.Now = w.Now.Add(20*24*time.Hour + time.Hour)
		w.check(w.unique(u, `3`).Created, "the key is taken after its time")
		gone := w.unique(perdure.Unique{Key: "gone", While: perdure.UniqueFor, For: u.For}, `1`)
		w.do(&life.Cancel{Tenant: tenant, RunID: gone.Run.ID})
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: gone.Run.ID})
		w.check(w.unique(perdure.Unique{Key: "gone"}, `1`).Created, "the key of a deleted run is taken")
	}},
	{"a run that has not started is replaced, and the new one has its place in line", func(w *World) {
		u := perdure.Unique{Key: "k", OnConflict: perdure.UniqueReplace}
		first := w.unique(u, `1`)
		w.Now = w.Now.Add(time.Second)
		behind := w.submit(perdure.Submission{Kind: "u"})
		w.Now = w.Now.Add(time.Second)
		second := w.unique(u, `2`)
		w.check(second.Created && second.Run.CreatedAt == first.Run.CreatedAt, "replaced: %+v", second.Run)
		old := w.ended(first.Run.ID, perdure.Cancelled, perdure.CodeReplaced)
		w.check(old.StartedAt == 0, "the replaced run: %+v", old)
		g := w.take("w")
		w.check(g.Run.ID == second.Run.ID, "granted %s, want %s before %s", g.Run.ID, second.Run.ID, behind.ID)
		w.beat(g)
		w.refusedBy(uniqueOp(u, `3`), second.Run.ID)
		w.complete(g, `1`)
		w.check(w.unique(u, `4`).Created, "after the end")
	}},
	{"a repeated call comes before the unique key", func(w *World) {
		u := perdure.Unique{Key: "k"}
		op := func(input string) *life.Submit {
			x := uniqueOp(u, input)
			x.Key = "call"
			return x
		}
		first, again := op(`1`), op(`1`)
		w.do(first)
		w.do(again)
		w.check(again.Run.ID == first.Run.ID && !again.Existing && !again.Created, "repeated: %+v", again)
		w.refuse(perdure.CodeReused, op(`2`))
		other := uniqueOp(u, `3`)
		other.Key = "other"
		w.do(other)
		w.check(other.Existing, "another call: %+v", other)
		w.complete(w.take("w"), `1`)
		repeated := uniqueOp(u, `3`)
		repeated.Key = "other"
		w.do(repeated)
		w.check(repeated.Run.ID == first.Run.ID && !repeated.Created, "a repeated call made another run")
	}},
	{"a retry takes the key of its original, or is refused while another run has it", func(w *World) {
		u := perdure.Unique{Key: "k"}
		first := w.unique(u, `1`)
		w.do(&life.Cancel{Tenant: tenant, RunID: first.Run.ID})
		retry := &life.Retry{Tenant: tenant, RunID: first.Run.ID}
		w.do(retry)
		w.check(w.unique(u, `2`).Run.ID == retry.Run.ID, "the retry does not have the key")
		w.refusedBy(&life.Retry{Tenant: tenant, RunID: first.Run.ID}, retry.Run.ID)
		w.complete(w.take("w"), `1`)
		w.check(w.unique(u, `3`).Created, "after the end of the retry")
	}},
	{"a run that goes on as a new one takes its key along", func(w *World) {
		u := perdure.Unique{Key: "k"}
		first := w.unique(u, `1`)
		g := w.take("w")
		w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: []byte(`1`),
			ContinueWith: &perdure.ContinueWith{Input: []byte(`2`)}}})
		next := w.state(first.Run.ID, perdure.Completed).ContinuedBy
		got := w.unique(u, `3`)
		w.check(got.Existing && got.Run.ID == next, "the key belongs to %s, want %s", got.Run.ID, next)
		w.complete(w.take("w"), `1`)
		w.check(w.unique(u, `4`).Created, "after the end of the new run")
	}},
	{"a held run and one that is restored keep their key", func(w *World) {
		u := perdure.Unique{Key: "k"}
		first := w.unique(u, `1`)
		w.hold("7")
		w.check(w.unique(u, `2`).Run.ID == first.Run.ID, "the key of a held run is free")
	}},
	{"a child with a key that is taken is refused, and its parent goes on", func(w *World) {
		u := perdure.Unique{Key: "k"}
		has := w.unique(u, `1`)
		w.take("w")
		parent := w.submit(perdure.Submission{Kind: "p", Class: perdure.Agent})
		g := w.take("w")
		w.check(g.Run.ID == parent.ID, "granted %s", g.Run.ID)
		op := w.commitOf(g, perdure.Commit{Children: []perdure.Spawn{{Key: "c", Kind: "u", Unique: &u}}})
		err := w.E.Step(w.Now, op)[0]
		refused := op.Refused
		if refused == nil {
			refused, _ = err.(*perdure.Error)
		}
		w.check(refused != nil && refused.Code == perdure.CodeNotUnique, "spawn: %v, %v", err, op.Refused)
		w.do(&life.Cancel{Tenant: tenant, RunID: has.Run.ID, Reason: "free"})
	}},
	{"free keys are removed by retention", func(w *World) {
		w.unique(perdure.Unique{Key: "k"}, `1`)
		w.complete(w.take("w"), `1`)
		w.unique(perdure.Unique{Key: "short", While: perdure.UniqueFor, For: perdure.Duration(time.Minute)}, `1`)
		w.complete(w.take("w"), `1`)
		w.Now = w.Now.Add(3 * time.Hour)
		w.retire()
		w.check(w.rows("unique_runs") == 0, "%d rows of free keys", w.rows("unique_runs"))
	}},
	{"a key that makes no sense is refused", func(w *World) {
		for field, sub := range map[string]perdure.Submission{
			"unique.key":         {Unique: &perdure.Unique{}},
			"unique.while":       {Unique: &perdure.Unique{Key: "k", While: "always"}},
			"unique.for":         {Unique: &perdure.Unique{Key: "k", While: perdure.UniqueFor}},
			"unique.on_conflict": {Unique: &perdure.Unique{Key: "k", OnConflict: "wait"}},
			"debounce": {Unique: &perdure.Unique{Key: "k"},
				Debounce: &perdure.Debounce{Key: "k", For: 1, Max: 1}},
			"debounce.key": {Debounce: &perdure.Debounce{}},
			"debounce.for": {Debounce: &perdure.Debounce{Key: "k"}},
			"debounce.max": {Debounce: &perdure.Debounce{Key: "k", For: minutes(2), Max: minutes(1)}},
			"delay":        {Debounce: &perdure.Debounce{Key: "k", For: 1, Max: 1}, Delay: minutes(1)},
			"input": {Debounce: &perdure.Debounce{Key: "k", For: 1, Max: 1},
				Input: append([]byte(`"`), append(make([]byte, perdure.MaxDebounced), '"')...)},
		} {
			sub.Kind = "u"
			for i := range sub.Input {
				if sub.Input[i] == 0 {
					sub.Input[i] = 'x'
				}
			}
			err := w.E.Step(w.Now, &life.Submit{Tenant: tenant, Submission: sub})[0]
			refused, ok := err.(*perdure.Error)
			w.check(ok && refused.Field == field, "%s: %v", field, err)
		}
	}},
	{"debounced submissions become one run with the last input, not later than the first allows", func(w *World) {
		began := w.Now
		first := w.debounced("k", `1`, 30*time.Second, time.Minute)
		w.check(first.Created && !first.Run.Ready, "first: %+v", first)
		w.pass(20 * time.Second)
		second := w.debounced("k", `2`, 30*time.Second, time.Minute)
		w.check(second.Debounced && !second.Created && second.Run.ID == first.Run.ID &&
			second.Run.Options.Debounce.Count == 1 && second.Run.ReadyAt == w.Now.Add(30*time.Second), "second: %+v",
			second.Run)
		w.pass(25 * time.Second)
		third := w.debounced("k", `3`, 30*time.Second, time.Minute)
		w.check(third.Run.ReadyAt == began.Add(time.Minute) && third.Run.DeadlineAt == first.Run.DeadlineAt &&
			first.Run.DeadlineAt == began.Add(61*time.Minute), "third: ready %s, deadline %s", third.Run.ReadyAt,
			third.Run.DeadlineAt)
		w.check(w.debounced("other", `1`, time.Second, time.Minute).Created, "another key")
		w.restart()
		w.pass(14 * time.Second)
		w.do(&life.Cancel{Tenant: tenant, RunID: w.runsOf("d")[0].ID})
		w.check(len(w.poll("w", 1)) == 0, "granted before its time")
		w.pass(2 * time.Second)
		g := w.take("w")
		w.check(g.Run.ID == first.Run.ID && string(g.Input) == `3`, "granted %s with %s", g.Run.ID, g.Input)
		w.beat(g)
		next := w.debounced("k", `4`, time.Second, time.Minute)
		w.check(next.Created && next.Run.ID != first.Run.ID, "after the start: %+v", next.Run.ID)
		w.complete(g, `1`)
		w.check(w.debounced("k", `5`, time.Second, time.Minute).Run.ID == next.Run.ID,
			"the end of the first frees the key")
		w.check(w.count(first.Run.ID, perdure.LineDebounced) == 2, "lines: %v", w.types(first.Run.ID))
	}},
	{"a debounced run is signed again with its new input", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		first := w.debounced("k", `1`, 10*time.Second, time.Minute)
		second := w.debounced("k", `2`, 10*time.Second, time.Minute)
		w.check(second.Run.Signature != first.Run.Signature, "the signature is the old one")
		w.pass(11 * time.Second)
		g := w.take("w")
		w.check(g.Run.ID == first.Run.ID && string(g.Input) == `2`, "granted %s with %s", g.Run.ID, g.Input)
	}},
	{"a granted or cancelled debounced run takes no further input", func(w *World) {
		first := w.debounced("k", `1`, time.Second, time.Minute)
		w.pass(2 * time.Second)
		g := w.poll("w", 1)[0]
		next := w.debounced("k", `2`, time.Second, time.Minute)
		w.check(g.Run.ID == first.Run.ID && next.Created, "a granted run got another input: %+v", next.Run.ID)
		w.do(&life.Cancel{Tenant: tenant, RunID: next.Run.ID})
		w.check(w.debounced("k", `3`, time.Second, time.Minute).Created, "after a cancel")
	}},
}
