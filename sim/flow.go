package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
)

// Flow control: limits of runs and of steps, unique and debounced runs, schedules.
//
// With Options.Flow a tenant has a handful of limits, which it changes, closes and opens. Runs and steps are
// under them, some runs are unique or debounced, and some are started by schedules. Everything is drawn from
// a stream of its own. Without the option a seed has the history that it always had.
//
// flow_check.go has the invariants.

// flow is everything about flow control of one simulation.
type flow struct {
	s    *sim
	dice stream
	// there are the limits that were acknowledged: what names another one would be refused.
	there []string
	// made counts the runs that flow control itself has submitted, or its schedules.
	made   int
	limits []*simLimit
	plans  map[string]*schedule.Plan         // acknowledged schedules, by name
	names  []string                          // of schedules, in order of creation
	fired  map[string]perdure.RunID          // runs of schedules, by schedule and instant
	owners map[string]perdure.RunID          // the run that has taken a unique key last, by kind and key
	stood  map[perdure.RunID]perdure.Instant // when a run last began to stand in the line of a limit
	takes  map[string][]perdure.LimitTake    // what steps take, by run and step
	fresh  []*row                            // runs that the current batch has made
}

// A simLimit is a limit, or one of its keys, as it was last committed.
type simLimit struct {
	ref    perdure.LimitRef
	values perdure.LimitValues
	closed perdure.Instant
	exists bool
	slots  int // that leased runs and steps hold
	// moved is when a run was last granted, offered or let go under it, and since when its values hold.
	moved, since perdure.Instant
	taken        []take // what was taken of its rate since then
	checked      int    // how many of these were checked
}

type take struct {
	at    perdure.Instant
	units int
	by    perdure.RunID
}

// The limits of a simulation. The tool has slots, the model a rate, the desk both, and a customer has slots
// for each key.
const (
	toolLimit, modelLimit, deskLimit, customerLimit = "tool", "model", "desk", "customer"
)

// minUnits is the smallest count of a rate, and the most units that a run takes.
const minUnits = 3

var customers = []string{"ada", "bob", "cyd"}

// addFlow adds flow control, if the options have it.
func (s *sim) addFlow(have bool) {
	if !have {
		return
	}
	f := &flow{s: s, dice: newStream(s.seed, "flow"), plans: make(map[string]*schedule.Plan),
		fired: make(map[string]perdure.RunID), owners: make(map[string]perdure.RunID),
		stood: make(map[perdure.RunID]perdure.Instant), takes: make(map[string][]perdure.LimitTake)}
	for _, name := range []string{toolLimit, modelLimit, deskLimit} {
		f.limits = append(f.limits, &simLimit{ref: perdure.LimitRef{Limit: name}})
	}
	for _, key := range append([]string{""}, customers...) {
		f.limits = append(f.limits, &simLimit{ref: perdure.LimitRef{Limit: customerLimit, Key: key}})
	}
	f.limits = append(f.limits, &simLimit{ref: perdure.LimitRef{Limit: perdure.LimitOfKind + "job"}})
	s.flow = f
}

// begin makes the limits, and begins to act.
func (f *flow) begin() {
	if f == nil {
		return
	}
	s := f.s
	for _, name := range []string{toolLimit, modelLimit, deskLimit, customerLimit} {
		f.set(name)
	}
	f.addSchedule()
	f.limitKind()
	s.after(f.dice.between(0, s.cfg.tempo), f.act)
}

// set makes a limit, or changes it.
func (f *flow) set(name string) {
	s, key := f.s, f.s.name("l")
	values := f.draw(name)
	s.sendUntilAnswered(func() kernel.Op {
		return &life.PutLimit{Tenant: tenant, Name: name, Values: values, PerKey: name == customerLimit, Key: key}
	}, func(r reply) {
		if r.err == nil && !slices.Contains(f.there, name) {
			f.there = append(f.there, name)
		}
	})
}

// limitKind bounds how many jobs run at once, and puts agents under limits. Only runs that are accepted later
// are under them.
func (f *flow) limitKind() {
	jobs := perdure.KindDef{Concurrency: f.dice.IntN(4) + 2}
	agents := perdure.KindDef{Limits: []string{toolLimit}}
	if f.dice.chance(0.5) {
		agents = perdure.KindDef{Limits: []string{toolLimit, customerLimit}, LimitKeyFrom: "/n"}
	}
	own := f.at(perdure.LimitRef{Limit: perdure.LimitOfKind + "job"})
	own.values, own.exists = perdure.LimitValues{Concurrency: jobs.Concurrency}, true
	f.patch("job", jobs)
	f.patch("agent", agents)
}

// patch announces a kind, and sets fields of it.
func (f *flow) patch(kind string, def perdure.KindDef) {
	s := f.s
	s.sendUntilAnswered(func() kernel.Op {
		return &rules.AnnounceKind{Tenant: tenant, Kind: kind, Build: "f1"}
	}, func(reply) {
		s.sendUntilAnswered(func() kernel.Op { return &rules.PatchKind{Tenant: tenant, Kind: kind, Def: def} }, nil)
	})
}

// draw draws the values of a limit.
func (f *flow) draw(name string) (v perdure.LimitValues) {
	if name != modelLimit {
		v.Concurrency = f.dice.IntN(3) + 1
	}
	if name == modelLimit || name == deskLimit {
		per := max(time.Second, f.dice.scaled(f.s.cfg.tempo, 10*f.s.cfg.tempo))
		v.Rate = &perdure.LimitRate{Count: f.dice.IntN(4) + minUnits, Per: perdure.Duration(per), Burst: f.dice.IntN(4)}
	}
	return v
}

// act does one of the things that a tenant does with its limits, keys and schedules.
func (f *flow) act() {
	s := f.s
	if s.faultsStopped {
		return
	}
	s.after(f.dice.between(s.cfg.tempo/16, s.cfg.tempo/2), f.act)
	if !s.reachable() {
		return
	}
	switch x := f.dice.Float64(); {
	case x < 0.15 && len(f.there) > 0:
		f.change(pick(f.dice, f.there...))
	case x < 0.35:
		f.useSchedule()
	case x < 0.60:
		f.submitUnique()
	case x < 0.85:
		f.submitDebounced()
	default:
		f.cancelHolder()
	}
}

// change changes the values of a limit, or of a customer, closes it or opens it.
func (f *flow) change(name string) {
	s, customer := f.s, ""
	if name == customerLimit && f.dice.chance(0.6) {
		customer = pick(f.dice, customers...)
	}
	switch x := f.dice.IntN(4); {
	case x < 2 && name == deskLimit && f.dice.chance(0.4):
		f.delete(name)
	case x == 0 && customer != "":
		values, key := f.draw(name), s.name("l")
		if f.dice.chance(0.3) {
			values = perdure.LimitValues{}
		}
		s.sendUntilAnswered(func() kernel.Op {
			return &life.PutLimitKey{Tenant: tenant, Name: name, LimitKey: customer, Values: values, Key: key}
		}, nil)
	case x == 0:
		f.set(name)
	case x == 1:
		s.sendOnce(func() kernel.Op {
			return &life.CloseLimit{Tenant: tenant, Name: name, LimitKey: customer, Open: true}
		})
	default:
		d := max(time.Millisecond, f.dice.scaled(s.cfg.tempo/8, 4*s.cfg.tempo))
		s.sendOnce(func() kernel.Op {
			return &life.CloseLimit{Tenant: tenant, Name: name, LimitKey: customer, For: d, Reason: "busy"}
		})
	}
}

// delete deletes a limit, and makes it anew after a while.
func (f *flow) delete(name string) {
	s := f.s
	f.there = slices.DeleteFunc(f.there, func(x string) bool { return x == name })
	s.sendUntilAnswered(func() kernel.Op { return &life.DeleteLimit{Tenant: tenant, Name: name} }, func(reply) {
		s.sometimes("a limit was deleted")
		s.after(f.dice.between(0, 4*s.cfg.tempo), func() { f.set(name) })
	})
}

// cancelHolder cancels a run that holds a slot, or waits for one.
func (f *flow) cancelHolder() {
	s := f.s
	var found []perdure.RunID
	for _, id := range s.model.order {
		if r := s.model.rows[id]; r.State.Live() && r.Limited != nil {
			found = append(found, id)
		}
	}
	if len(found) > 0 && f.dice.chance(0.4) {
		id := pick(f.dice, found...)
		s.sendOnce(func() kernel.Op { return &life.Cancel{Tenant: tenant, RunID: id, Reason: "no longer needed"} })
	}
}

// dress puts a submission under limits.
func (f *flow) dress(sub *perdure.Submission) {
	if f == nil || len(f.there) == 0 || !f.dice.chance(0.7) {
		return
	}
	for range f.dice.IntN(2) + 1 {
		if name := pick(f.dice, f.there...); !slices.Contains(sub.Limits, name) {
			sub.Limits = append(sub.Limits, name)
		}
	}
	sub.LimitKey = pick(f.dice, append([]string{""}, customers...)...)
	if f.dice.chance(0.3) {
		sub.Units = f.dice.IntN(minUnits) + 1
	}
}

// dressSpawn puts a child under limits, and gives it a key. It is drawn from the child's input: a spawn that is
// sent again has the same.
func (f *flow) dressSpawn(k *perdure.Spawn) {
	var in input
	if f == nil || json.Unmarshal(k.Input, &in) != nil {
		return
	}
	r := stream{rand.New(rand.NewPCG(in.N, 13))}
	if r.chance(0.5) {
		k.Limits = []string{pick(r, toolLimit, modelLimit, customerLimit)}
		k.LimitKey = pick(r, customers...)
	}
	if r.chance(0.15) {
		k.Unique = &perdure.Unique{Key: pick(r, uniqueKeys...), OnConflict: perdure.UniqueReplace}
	}
}

// job gives a small submission, or false if there were enough.
func (f *flow) job() (sub perdure.Submission, key string, ok bool) {
	s := f.s
	if f.made > 40 {
		return sub, "", false
	}
	f.made++
	n := f.dice.Uint64()>>12 + 1
	key = s.name("s")
	s.model.asked(n, key)
	sub = perdure.Submission{Kind: pick(f.dice, "job", "agent"), Queue: pick(f.dice, "default", "other")}
	sub.Input, _ = json.Marshal(input{n, 0})
	f.dress(&sub)
	return sub, key, true
}

// submit submits a run, and sometimes its copy through another node.
func (f *flow) submit(sub perdure.Submission, key string) {
	s := f.s
	send := func() kernel.Op { return &life.Submit{Tenant: tenant, Submission: sub, Key: key} }
	s.sendUntilAnswered(send, nil)
	if f.dice.chance(0.3) {
		s.after(f.dice.between(0, s.cfg.tempo), func() { s.sendOnce(send) })
	}
}

// uniqueKeys are few, so that they meet.
var uniqueKeys = []string{"one", "two"}

func (f *flow) submitUnique() {
	sub, key, ok := f.job()
	if !ok {
		return
	}
	u := &perdure.Unique{Key: pick(f.dice, uniqueKeys...),
		While: pick(f.dice, perdure.UniqueLive, perdure.UniqueWaiting, perdure.UniqueFor),
		OnConflict: pick(f.dice, perdure.UniqueReturn, perdure.UniqueReject, perdure.UniqueReplace,
			perdure.UniqueReplace)}
	if u.While == perdure.UniqueFor {
		u.For = perdure.Duration(max(time.Second, f.dice.scaled(f.s.cfg.tempo, 20*f.s.cfg.tempo)))
	}
	sub.Unique = u
	if f.dice.chance(0.3) {
		sub.Delay = perdure.Duration(f.dice.between(0, 4*f.s.cfg.tempo))
	}
	f.submit(sub, key)
}

func (f *flow) submitDebounced() {
	sub, key, ok := f.job()
	if !ok {
		return
	}
	d := max(time.Second, f.dice.scaled(f.s.cfg.tempo/2, 4*f.s.cfg.tempo))
	sub.Debounce = &perdure.Debounce{Key: pick(f.dice, uniqueKeys...), For: perdure.Duration(d),
		Max: perdure.Duration(d + f.dice.between(0, 3*d))}
	f.submit(sub, key)
}

// useSchedule makes a schedule, or pauses, resumes or triggers one.
func (f *flow) useSchedule() {
	s := f.s
	if len(f.names) < 3 && f.dice.chance(0.5) {
		f.addSchedule()
		return
	}
	if len(f.plans) == 0 {
		return
	}
	name, key := pick(f.dice, f.names...), s.name("y")
	switch f.dice.IntN(4) {
	case 0:
		if f.made < 40 {
			f.made++
			s.sendUntilAnswered(func() kernel.Op {
				return &life.TriggerSchedule{Tenant: tenant, Name: name, Key: key}
			}, nil)
		}
	default:
		paused := f.dice.chance(0.4)
		s.sendUntilAnswered(func() kernel.Op {
			return &life.PauseSchedule{Tenant: tenant, Name: name, Paused: paused, Key: key}
		}, nil)
	}
}

func (f *flow) addSchedule() {
	s := f.s
	name, key := s.name("schedule"), s.name("y")
	every := max(schedule.MinEvery, f.dice.scaled(s.cfg.tempo, 10*s.cfg.tempo).Round(time.Second))
	plan := &schedule.Plan{Every: perdure.Duration(every),
		Overlap: pick(f.dice, schedule.OverlapAllow, schedule.OverlapSkip, schedule.OverlapQueue,
			schedule.OverlapCancelOld),
		Missed: pick(f.dice, schedule.MissedOnce, schedule.MissedSkip, schedule.MissedAll)}
	if plan.Missed == schedule.MissedAll { // hours of absence are to give a handful of runs
		plan.Every = perdure.Duration(max(every, 20*time.Minute))
	}
	if f.dice.chance(0.4) {
		plan.Jitter = perdure.Duration((every / 3).Truncate(time.Second))
	}
	n := f.dice.Uint64()>>12 + 1
	s.model.asked(n, "")
	sub := perdure.Submission{Kind: "job"}
	sub.Input, _ = json.Marshal(input{n, 0})
	f.dress(&sub)
	f.names = append(f.names, name)
	s.sendUntilAnswered(func() kernel.Op {
		return &life.PutSchedule{Tenant: tenant, Name: name, Plan: *plan, Submission: sub, Key: key}
	}, func(r reply) {
		if r.err == nil {
			f.plans[name] = plan
		}
	})
}

// faultsStop opens the limits and pauses the schedules, so that everything comes to its end.
func (f *flow) faultsStop() {
	if f == nil {
		return
	}
	for _, name := range f.there {
		for _, key := range append([]string{""}, customers...) {
			if key != "" && name != customerLimit {
				continue
			}
			f.s.sendUntilAnswered(func() kernel.Op {
				return &life.CloseLimit{Tenant: tenant, Name: name, LimitKey: key, Open: true}
			}, nil)
		}
	}
	for _, name := range f.names {
		f.s.sendUntilAnswered(func() kernel.Op {
			return &life.PauseSchedule{Tenant: tenant, Name: name, Paused: true}
		}, nil)
	}
}

// takesOf gives the limits of a step, drawn from the number in the run's input.
func takesOf(n uint64, key string) (out []perdure.LimitTake) {
	r := stream{rand.New(rand.NewPCG(n, 12+uint64(len(key))))}
	if !r.chance(0.5) {
		return nil
	}
	for _, name := range []string{toolLimit, modelLimit} {
		if r.chance(0.6) {
			out = append(out, perdure.LimitTake{Name: name, Units: r.IntN(3)})
		}
	}
	if r.chance(0.3) {
		out = append(out, perdure.LimitTake{Name: customerLimit, Key: pick(r, customers...)})
	}
	return out
}

// takesLimits has a task ask for the slots of its next step, if it has none yet. It tells whether the task
// does that now.
func (t *task) takesLimits() bool {
	f := t.w.s.flow
	if f == nil || t.cancel || t.pending != nil || t.granted.Options.Process || len(f.there) < 4 {
		return false
	}
	st, key := t.current()
	if st == nil || st.do != "step" || t.admitted[key] {
		return false
	}
	takes := takesOf(t.plan.n, key)
	if len(takes) == 0 {
		return false
	}
	if f.dice.chance(0.05) {
		f.giveBack(t, key, takes)
	}
	f.noteTakes(t)
	f.s.send(t.take(key, takes, false), func(r reply) { t.tookLimits(key, r) })
	return true
}

// noteTakes notes what the steps of a task take, for the checks.
func (f *flow) noteTakes(t *task) {
	_, key := t.current()
	for _, step := range t.stepsAtOnce(key) {
		f.takes[string(t.run)+"/"+step] = takesOf(t.plan.n, step)
	}
}

func (t *task) take(key string, takes []perdure.LimitTake, back bool) func() kernel.Op {
	return func() kernel.Op {
		return &life.TakeLimits{Tenant: tenant, Worker: t.w.id, Takes: []life.StepTake{{
			Lease: life.Lease{RunID: t.run, Epoch: t.epoch}, Step: key, Limits: takes, GiveBack: back}}}
	}
}

// giveBack gives the slots of a step back, as an agent does whose step was not recorded.
func (f *flow) giveBack(t *task, key string, takes []perdure.LimitTake) {
	f.s.sendOnce(t.take(key, takes, true))
}

// tookLimits handles the answer: the step begins, or the run is suspended until its limits have room.
func (t *task) tookLimits(key string, r reply) {
	s := t.w.s
	if !t.w.alive || t.done || t.hung || t.pending != nil {
		return
	}
	if r.unsure() {
		t.soon()
		return
	}
	if r.err != nil {
		s.violate("limits", "%s was refused the limits of step %s: %v", s.short(t.run), key, r.err)
		return
	}
	res := &r.op.(*life.TakeLimits).Results[0]
	switch {
	case !res.OK:
		t.drop()
	case res.Taken:
		t.admitted[key] = true
		s.sometimes("a step took its limits")
		t.soon()
	case s.flow.dice.chance(0.3): // it waits in place
		t.soon()
	default:
		c := &perdure.Commit{ID: s.name("k"), RunID: t.run, Epoch: t.epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}}
		for _, step := range t.stepsAtOnce(key) {
			w := perdure.WaitSpec{ID: fmt.Sprintf("limit:%s:%d", step, t.epoch), Type: perdure.WaitLimit, Name: step,
				Limits: takesOf(t.plan.n, step), Timeout: perdure.Never}
			c.Waits, c.Outcome.Waits = append(c.Waits, w), append(c.Outcome.Waits, w.ID)
		}
		t.pending, t.tries = c, 0
		s.sometimes("a run was suspended on the limits of a step")
		if len(c.Waits) > 1 {
			s.sometimes("a run was suspended on the limits of two steps")
		}
		t.commit()
	}
}

// stepsAtOnce gives a step, and in some runs another one that is executed beside it: both are recorded together.
func (t *task) stepsAtOnce(key string) []string {
	if beside := "beside-" + key; t.plan.n%3 == 0 && len(takesOf(t.plan.n, beside)) > 0 {
		return []string{key, beside}
	}
	return []string{key}
}

// recordWith records the step that is executed beside the one of a commit.
func (t *task) recordWith(c *perdure.Commit) {
	if t.w.s.flow == nil || len(c.Journal) == 0 || !t.admitted[c.Journal[0].Key] {
		return
	}
	for _, step := range t.stepsAtOnce(c.Journal[0].Key)[1:] {
		c.Journal = append(c.Journal, perdure.JournalEntry{Key: step, Value: json.RawMessage("1")})
	}
}

// closeWith adds closures of limits to the commit of a step: somebody has refused a call.
func (f *flow) closeWith(c *perdure.Commit) {
	if f == nil || f.s.faultsStopped || len(c.Journal) == 0 || !f.dice.chance(0.05) {
		return
	}
	d := max(time.Second, f.dice.scaled(f.s.cfg.tempo/4, 3*f.s.cfg.tempo))
	c.Limits = []perdure.LimitClosure{{Name: pick(f.dice, modelLimit, customerLimit), Key: pick(f.dice, customers...),
		ClosedFor: perdure.Duration(d), Reason: "429"}}
}

// read reads a limit as it is stored now.
func (l *simLimit) read(v *store.View) error {
	limit, ok, err := v.Limits.Get(tenant, l.ref.Limit)
	if err != nil {
		return err
	}
	key, _, err := v.LimitKeys.Get(tenant, l.ref)
	if err != nil {
		return err
	}
	if strings.HasPrefix(l.ref.Limit, perdure.LimitOfKind) {
		return nil
	}
	l.exists, l.values = ok && limit.DeletedAt == 0, perdure.LimitValues{}
	if l.exists {
		l.values = limit.Values()
	}
	own := key.Values()
	l.values.Overlay(&own)
	l.closed = max(limit.ClosedUntil, key.ClosedUntil)
	return nil
}
