package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// settled checks class and deadline of a run, as they are stored and as a fresh server reads them.
func (w *World) settled(r perdure.Run, class perdure.Class, deadline perdure.Instant) {
	w.t.Helper()
	w.restart() // what was kept in memory is read anew
	got := w.get(r.ID)
	w.check(got.ShownClass() == class && got.DeadlineAt == deadline, "run %s of kind %s: class %s until %s, want %s "+
		"until %s", r.ID, r.Kind, got.ShownClass(), got.DeadlineAt, class, deadline)
	want := class
	if class == perdure.Open {
		want = perdure.Agent // that is how a release that knows no open class treats it
	}
	stored := w.rowsOf(fmt.Sprintf("SELECT class||' '||deadline_at FROM runs WHERE id='%s'", r.ID))
	w.check(len(stored) == 1 && stored[0] == fmt.Sprintf("%s %d", want, deadline), "stored: %q, want %s %d", stored,
		want, deadline)
}

var openClassScenarios = []Scenario{
	{"a run of an unknown kind is open until the first worker that leases it decides", func(w *World) {
		p, began := w.E.Policy(), w.Now
		agents := began.Add(p.Timeouts.Agent.Default)
		silent := w.submit(perdure.Submission{Kind: "silent"})
		agent := w.submit(perdure.Submission{Kind: "research"})
		short := w.submit(perdure.Submission{Kind: "tool"})
		process := w.submit(perdure.Submission{Kind: "shell"})
		for _, r := range []perdure.Run{silent, agent, short, process} {
			w.settled(r, perdure.Open, agents)
		}
		w.leap(p.Timeouts.Task.Default + time.Hour)
		w.state(silent.ID, perdure.Queued)
		w.announce("research", "1", perdure.KindDef{Class: perdure.Agent})
		w.announce("tool", "1", perdure.KindDef{Class: perdure.Task, Timeout: minutes(2)})
		w.announce("shell", "1", perdure.KindDef{Class: perdure.Process})

		g := w.takeKind("silent")
		w.check(g.Run.Class == perdure.Task, "class in the grant = %s, want task: its worker has announced none",
			g.Run.Class)
		w.settled(silent, perdure.Task, w.Now.Add(p.Timeouts.Task.Default))
		line := w.lastLine(silent.ID, perdure.LineDispatched)
		w.check(strings.Contains(line, `"class":"task"`) && strings.Contains(line, `"deadline_at":`),
			"line of the grant = %s, want the class and the deadline", line)
		w.takeKind("research")
		w.settled(agent, perdure.Agent, agents)
		w.takeKind("tool")
		w.settled(short, perdure.Task, w.Now.Add(2*time.Minute))
		g = w.takeKind("shell")
		w.settled(process, perdure.Process, min(agents, w.Now.Add(p.Timeouts.Process.Default)))
		w.check(g.Run.Options.Process, "a process is judged by its lease")

		w.leap(p.Timeouts.Task.Default + time.Minute)
		w.ended(silent.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.fsck()
	}},
	{"the class is settled once", func(w *World) {
		p := w.E.Policy()
		r := w.submit(perdure.Submission{Kind: "late"})
		g := w.takeKind("late")
		deadline := w.Now.Add(p.Timeouts.Task.Default)
		w.announce("late", "1", perdure.KindDef{Class: perdure.Agent, Timeout: minutes(1)})
		w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail,
			Error: &perdure.Failure{Code: "broke"}}})
		w.pass(time.Minute)
		w.takeKind("late")
		w.settled(r, perdure.Task, deadline)
	}},
	{"a deadline is never later for being settled, and a given timeout stays", func(w *World) {
		p, began := w.E.Policy(), w.Now
		near := w.submit(perdure.Submission{Kind: "unknown"})
		w.leap(p.Timeouts.Agent.Default - time.Minute)
		w.takeKind("unknown")
		w.settled(near, perdure.Task, began.Add(p.Timeouts.Agent.Default))

		began = w.Now
		long := w.submit(perdure.Submission{Kind: "unknown", Timeout: perdure.Duration(5 * p.Timeouts.Task.Max)})
		brief := w.submit(perdure.Submission{Kind: "brief", Timeout: minutes(3)})
		w.announce("unknown", "1", perdure.KindDef{Class: perdure.Task, Timeout: minutes(2)})
		w.takeKind("unknown")
		w.settled(long, perdure.Task, began.Add(5*p.Timeouts.Task.Max))
		w.takeKind("brief")
		w.settled(brief, perdure.Task, began.Add(3*time.Minute))
		w.cancel(long.ID)
		w.leap(p.CancelGrace + 2*time.Minute)
		w.state(long.ID, perdure.Cancelled)
		again := w.retry(long.ID, "")
		w.settled(again, perdure.Task, w.Now.Add(p.Timeouts.Task.Max))
		w.refuse(perdure.CodeInvalid, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "new",
			Timeout: perdure.Duration(p.Timeouts.Agent.Max + time.Second)}})
	}},
	{"a class that is given, a thread and a known kind leave nothing open", func(w *World) {
		p := w.E.Policy()
		w.settled(w.submit(perdure.Submission{Kind: "unknown", Class: perdure.Task}), perdure.Task,
			w.Now.Add(p.Timeouts.Task.Default))
		w.settled(w.submit(perdure.Submission{Kind: "unknown", ThreadID: w.thread()}), perdure.Agent,
			w.Now.Add(p.Timeouts.Agent.Default))
		w.announce("silent", "1", perdure.KindDef{})
		w.settled(w.submit(perdure.Submission{Kind: "silent"}), perdure.Task, w.Now.Add(p.Timeouts.Task.Default))
	}},
	{"a run that ends open is open again when it is retried", func(w *World) {
		p := w.E.Policy()
		first, second := w.submit(perdure.Submission{Kind: "a"}), w.submit(perdure.Submission{Kind: "b"})
		later := w.submit(perdure.Submission{Kind: "c", Delay: perdure.Duration(48 * time.Hour)})
		w.settled(later, perdure.Open, w.Now.Add(48*time.Hour+p.Timeouts.Agent.Default))
		w.leap(p.Timeouts.Agent.Default + time.Minute)
		for _, r := range []perdure.Run{first, second} {
			w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
			w.check(w.get(r.ID).ShownClass() == perdure.Open, "class of an ended run that nobody took = %s, want open",
				w.get(r.ID).ShownClass())
		}
		w.announce("b", "1", perdure.KindDef{Class: perdure.Task, Timeout: minutes(2)})
		again := w.retry(first.ID, "")
		w.settled(again, perdure.Open, w.Now.Add(p.Timeouts.Agent.Default))
		w.settled(w.retry(second.ID, ""), perdure.Task, w.Now.Add(2*time.Minute))
		w.takeKind("a")
		w.settled(again, perdure.Task, w.Now.Add(p.Timeouts.Task.Default))
	}},
	{"a child of an unknown kind is open, within its parent's time", func(w *World) {
		p := w.E.Policy()
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent, Timeout: perdure.Duration(2 * time.Hour)})
		g := w.takeKind("job")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "unknown"}}})
		child := *w.get(ans.Children[0].RunID)
		w.settled(child.Run, perdure.Open, g.Run.DeadlineAt)
		w.takeKind("unknown")
		w.settled(child.Run, perdure.Task, w.Now.Add(p.Timeouts.Task.Default))
	}},
	{"a signed run is signed again when its class is settled", func(w *World) {
		p := w.E.Policy()
		w.signWith("a")
		w.requireSignatures(true)
		r := w.submit(perdure.Submission{Kind: "unknown"})
		w.signed(r.ID)
		w.pass(time.Minute)
		w.takeKind("unknown")
		w.settled(r, perdure.Task, w.Now.Add(p.Timeouts.Task.Default))
		w.signed(r.ID)
	}},
}
