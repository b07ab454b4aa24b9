package conformance

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// ada may decide. bot is an agent's own key. ops is a platform key, which may do both.
var (
	ada = perdure.Key{ID: "k-ada", Name: "ada", Scopes: []perdure.Scope{perdure.ScopeRead, perdure.ScopeApprove,
		perdure.ScopeControl}}
	eve = perdure.Key{ID: "k-eve", Name: "eve", Scopes: []perdure.Scope{perdure.ScopeApprove}}
	bot = perdure.Key{ID: "k-bot", Name: "bot", Scopes: perdure.Scopes}
	ops = perdure.Key{ID: "k-ops", Name: "ops", Scopes: perdure.Scopes, Platform: true}
)

const push = `{"push":{"branch":"main","commits":3}}`

func forYes(id string, change ...func(*perdure.WaitSpec)) perdure.WaitSpec {
	s := perdure.WaitSpec{ID: id, Type: perdure.WaitApproval, Name: "approve_push",
		Approval: &perdure.ApprovalSpec{Title: "Push to main?", Action: json.RawMessage(push)}}
	for _, f := range change {
		f(&s)
	}
	return s
}

func yes() perdure.Decision { return perdure.Decision{Decision: perdure.Approve} }

// askApproval gives a run that is suspended on an approval, and the approval's id.
func (w *World) askApproval(change ...func(*perdure.WaitSpec)) (perdure.Run, perdure.ApprovalID) {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: "deploy", Class: perdure.Agent})
	w.commit(w.take("w1"), perdure.Commit{Waits: wait(forYes("ok", change...)), Outcome: suspend})
	w.state(r.ID, perdure.Suspended)
	return r, perdure.IDOfApproval(tenant, r.ID, "ok")
}

func (w *World) decide(id perdure.ApprovalID, by perdure.Key, d perdure.Decision) *life.Decide {
	return &life.Decide{Tenant: tenant, ID: id, Decision: d, By: by}
}

func (w *World) approval(id perdure.ApprovalID) (a perdure.Approval) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) {
		var ok bool
		if a, ok, err = v.Approvals.ByID(tenant, id); !ok {
			w.t.Fatalf("no approval %s", id)
		}
		return err
	})
	return a
}

// lastLine gives the data of the last log line of a type.
func (w *World) lastLine(id perdure.RunID, typ perdure.LineType) (data string) {
	w.t.Helper()
	for _, l := range w.lines(id) {
		if l.Type == typ {
			data = string(l.Data)
		}
	}
	return data
}

var approvalScenarios = []Scenario{
	{"an approval is shown, decided once, and wakes who asked", func(w *World) {
		r, id := w.askApproval()
		a := w.approval(id)
		hash, _ := perdure.ActionHash(json.RawMessage(push))
		w.check(a.State == perdure.ApprovalOpen && a.ActionHash == hash && string(a.Action) == push &&
			a.Kind == "deploy" && a.Name == "approve_push" &&
			a.ExpiresAt == a.OpenedAt.Add(10*time.Minute), "%+v", a)
		line := w.lastLine(r.ID, perdure.LineWaitOpened)
		w.check(strings.Contains(line, string(id)) && strings.Contains(line, `"title":"Push to main?"`) &&
			strings.Contains(line, hash), "%s", line)
		w.do(w.decide(id, ada, perdure.Decision{Decision: "approve", Comment: "go", ActionHash: hash}))
		w.state(r.ID, perdure.Queued)
		line = w.lastLine(r.ID, perdure.LineWaitSatisfied)
		w.check(strings.Contains(line, `"decision":"approve","by":{"key_id":"k-ada","name":"ada"},"comment":"go"`),
			"%s", line)
		a = w.approval(id)
		w.check(a.State == perdure.ApprovalApproved && *a.DecidedBy == (perdure.Decider{KeyID: "k-ada",
			Name: "ada"}) && a.DecidedAt == w.Now && a.Comment == "go", "%+v", a)
		// The same decision again, by any key, counts once. Another decision is refused.
		before := w.fingerprint()
		w.do(w.decide(id, eve, perdure.Decision{Decision: "approve", Comment: "go"}))
		w.do(w.decide(id, ada, perdure.Decision{Decision: "approve", Comment: "went"}))
		w.do(w.decide(id, ada, perdure.Decision{Decision: "approve"}))
		w.check(w.fingerprint() == before && w.approval(id).DecidedBy.Name == "ada" &&
			w.approval(id).Comment == "go", "the same again changes nothing, whatever is said beside it")
		w.refuse(perdure.CodeAlreadyDecided, w.decide(id, ada, perdure.Decision{Decision: "reject"}))
		w.refuse(perdure.CodeAlreadyDecided, w.decide(id, ada, perdure.Decision{Decision: "approve",
			Answer: json.RawMessage(`{"where":"eu"}`)}))
		g := w.take("w1")
		w.check(len(g.Inbox) == 1, "%+v", g.Inbox)
		i := g.Inbox[0]
		at, _ := w.approval(id).DecidedAt.MarshalJSON()
		w.check(i.Type == perdure.ItemApproval && i.WaitID == "ok" && i.Name == "approve_push" &&
			i.Outcome == perdure.WaitSatisfied &&
			string(i.Data) == `{"approval_id":"`+string(id)+
				`","decision":"approve","comment":"go","by":{"key_id":"k-ada","name":"ada"},"at":`+string(at)+
				`,"action_hash":"`+hash+`"}`, "%+v", i)
		w.complete(g, `1`)
		w.do(w.decide(id, ada, perdure.Decision{Decision: "approve", Comment: "go"})) // still the same
		w.refuse(perdure.CodeAlreadyDecided, w.decide(id, ada, perdure.Decision{Decision: "reject"}))
	}},
	{"a decision is about the action that was shown", func(w *World) {
		r, id := w.askApproval()
		other, _ := perdure.ActionHash(json.RawMessage(`{"push":{"branch":"main","commits":300}}`))
		w.refuse(perdure.CodeActionChanged, w.decide(id, ada, perdure.Decision{Decision: "approve", ActionHash: other}))
		w.state(r.ID, perdure.Suspended)
	}},
	{"a replay asks for the same approval, and another action is a contradiction", func(w *World) {
		w.submit(perdure.Submission{Kind: "deploy", Class: perdure.Agent})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forYes("ok"))})
		before := w.count(g.Run.ID, perdure.LineWaitOpened)
		respelled := forYes("ok", func(s *perdure.WaitSpec) {
			s.Approval.Action = json.RawMessage(`{ "push": {"commits": 3, "branch": "m\u0061in"} }`)
		})
		w.commit(g, perdure.Commit{Waits: wait(respelled)})
		w.check(w.count(g.Run.ID, perdure.LineWaitOpened) == before, "opened once")
		other := forYes("ok", func(s *perdure.WaitSpec) {
			s.Approval.Action = json.RawMessage(`{"push":{"branch":"main","commits":4}}`)
		})
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{Waits: wait(other)}))
		other = forYes("ok", func(s *perdure.WaitSpec) { s.Name = "approve_pull" })
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{Waits: wait(other)}))
		signal := perdure.WaitSpec{ID: "ok", Type: perdure.WaitSignal, Name: "approve_push"}
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{Waits: wait(signal)}))
	}},
	{"silence counts as no, or as the default", func(w *World) {
		for _, c := range []struct{ def, want perdure.DecisionKind }{{"", "reject"}, {"reject", "reject"},
			{"approve", "approve"}} {
			r, id := w.askApproval(func(s *perdure.WaitSpec) { s.Approval.Default = c.def })
			w.pass(599 * time.Second)
			w.state(r.ID, perdure.Suspended)
			w.pass(2 * time.Second)
			w.state(r.ID, perdure.Queued)
			a := w.approval(id)
			w.check(a.State == perdure.ApprovalTimedOut && a.DecidedBy == nil, "%+v", a)
			w.refuse(perdure.CodeWaitClosed, w.decide(id, ada, yes()))
			g := w.take("w1")
			i := g.Inbox[0]
			w.check(i.Type == perdure.ItemTimeout && i.Outcome == perdure.WaitTimedOut && i.WaitID == "ok" &&
				strings.Contains(string(i.Data), `"decision":"`+string(c.want)+`","action_hash":"`+a.ActionHash+`"`),
				"%+v", i)
			w.check(strings.Contains(w.lastLine(r.ID, perdure.LineWaitTimedOut), `"decision":"`+string(c.want)),
				"in the log too")
			w.complete(g, `1`)
		}
	}},
	{"an answer after its time is too late, also where nobody has looked yet", func(w *World) {
		r, id := w.askApproval(func(s *perdure.WaitSpec) { s.Timeout = perdure.Duration(time.Minute) })
		w.Now = w.Now.Add(time.Minute)
		op := w.decide(id, ada, yes())
		w.do(op)
		w.check(op.Refused != nil && op.Refused.Code == perdure.CodeWaitClosed, "%v", op.Refused)
		w.state(r.ID, perdure.Queued)
		w.check(w.approval(id).State == perdure.ApprovalTimedOut, "%+v", w.approval(id))
		w.refuse(perdure.CodeWaitClosed, w.decide(id, ada, yes()))
		w.check(w.take("w1").Inbox[0].Type == perdure.ItemTimeout, "it is told so")

		r = w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		ans := w.commit(w.take("w1"), perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "pay",
			Type: perdure.WaitCallback, Timeout: perdure.Duration(time.Minute)}), Outcome: suspend})
		w.Now = w.Now.Add(time.Minute)
		for range 2 {
			late := &life.Callback{Token: ans.Callbacks[0].Token, Result: json.RawMessage(`1`)}
			err := w.E.Step(w.Now, late)[0]
			w.check(perdure.CodeOf(err) == perdure.CodeWaitClosed || late.Refused != nil &&
				late.Refused.Code == perdure.CodeWaitClosed, "%v %v", err, late.Refused)
		}
		w.state(r.ID, perdure.Queued)
		w.check(w.count(r.ID, perdure.LineWaitTimedOut) == 1 && w.count(r.ID, perdure.LineWaitClosed) == 1,
			"%v", w.types(r.ID))
		w.check(w.take("w1").Inbox[0].Type == perdure.ItemTimeout, "it is told so")
	}},
	{"whatever ends the wait ends the approval", func(w *World) {
		_, gone := w.askApproval()
		w.do(&life.Cancel{Tenant: tenant, RunID: w.approval(gone).RunID})
		w.pass(time.Minute)
		r := w.submit(perdure.Submission{Kind: "deploy", Class: perdure.Agent})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forYes("ok"))})
		closed := perdure.IDOfApproval(tenant, r.ID, "ok")
		w.commit(g, perdure.Commit{Close: []string{"ok"}})
		for _, id := range []perdure.ApprovalID{gone, closed} {
			w.check(w.approval(id).State == perdure.ApprovalClosed, "%+v", w.approval(id))
			w.refuse(perdure.CodeWaitClosed, w.decide(id, ada, yes()))
		}
	}},
	{"an agent's own key does not approve", func(w *World) {
		r, id := w.askApproval()
		data := json.RawMessage(`{"decision":"approve"}`)
		reader := perdure.Key{ID: "k", Scopes: []perdure.Scope{perdure.ScopeRead, perdure.ScopeControl}}
		for _, k := range []perdure.Key{bot, reader, {}} {
			w.refuse(perdure.CodeForbidden, w.decide(id, k, yes()))
			w.refuse(perdure.CodeForbidden, &life.Signal{Tenant: tenant, RunID: r.ID, Name: "approve_push",
				Data: data, By: k})
		}
		w.do(w.decide(id, ops, yes()))
		w.check(w.approval(id).DecidedBy.Name == "ops", "the platform's may")
	}},
	{"what the platform decides, no key of a tenant decides", func(w *World) {
		ofPlatform := func(s *perdure.WaitSpec) { s.Approval.Approvers = perdure.ApproversPlatform }
		r, id := w.askApproval(ofPlatform)
		w.check(w.approval(id).Approvers == perdure.ApproversPlatform, "%+v", w.approval(id))
		line := w.lastLine(r.ID, perdure.LineWaitOpened)
		w.check(strings.Contains(line, `"approvers":"platform"`), "%s", line)
		_, other := w.askApproval()
		before := w.fingerprint()
		for _, d := range []perdure.DecisionKind{perdure.Approve, perdure.Reject} {
			for _, k := range []perdure.Key{ada, eve} {
				w.refuse(perdure.CodePlatformDecides, w.decide(id, k, perdure.Decision{Decision: d}))
				w.refuse(perdure.CodePlatformDecides, &life.Signal{Tenant: tenant, RunID: r.ID,
					Name: "approve_push", Decision: &perdure.Decision{Decision: d}, By: k})
				w.refuse(perdure.CodePlatformDecides, &life.Signal{Tenant: tenant, RunID: r.ID,
					Name: "approve_push", Data: json.RawMessage(`{"decision":"` + string(d) + `"}`), By: k})
			}
		}
		w.check(w.fingerprint() == before, "a refused decision changes nothing")
		// A platform key that reads every tenant decides about what is the platform's, and in place of a
		// tenant only with platform:admin.
		guard := perdure.Key{ID: "k-guard", Name: "guard", Tenant: "default", Platform: true,
			Scopes: []perdure.Scope{perdure.ScopeApprove, perdure.ScopePlatformRead}}
		w.refuse(perdure.CodeForbidden, w.decide(other, guard, yes()))
		list := func(cursor string, limit int) (out []perdure.Approval, next string) {
			w.view(func(v *store.View) (err error) {
				out, next, err = v.Approvals.OpenOfPlatform(cursor, limit, 1<<20)
				return err
			})
			return out, next
		}
		w.pass(time.Second) // they are ordered by when they were asked
		_, second := w.askApproval(ofPlatform)
		first, next := list("", 1)
		w.check(len(first) == 1 && first[0].ID == id && first[0].Owner == tenant && next != "" &&
			string(first[0].Action) == push, "%+v %q", first, next)
		rest, end := list(next, 10)
		w.check(len(rest) == 1 && rest[0].ID == second && end == "", "%+v %q", rest, end)
		w.do(w.decide(id, guard, yes()))
		a := w.approval(id)
		w.check(a.State == perdure.ApprovalApproved && a.DecidedBy.KeyID == "k-guard", "%+v", a)
		rest, _ = list(next, 10) // the cursor outlives the decision about its row
		w.check(len(rest) == 1 && rest[0].ID == second, "%+v", rest)
		// The approval permits its action to its run, and nothing else.
		w.check(a.Permits(r.ID, json.RawMessage(push)) == nil, "it permits what was approved")
		w.check(a.Permits("another", json.RawMessage(push)) != nil, "a retry has to ask again")
		w.check(a.Permits(r.ID, json.RawMessage(`{"push":{"branch":"prod"}}`)) != nil, "another action")
		b := w.approval(second)
		w.check(b.Permits(b.RunID, json.RawMessage(push)) != nil, "it is not decided")
		w.passQuietly(time.Hour)
		b = w.approval(second)
		w.check(b.State == perdure.ApprovalTimedOut && b.Permits(b.RunID, json.RawMessage(push)) != nil, "%+v", b)
		// Its silence is no approval.
		w.submit(perdure.Submission{Kind: "deploy", Class: perdure.Agent})
		g := w.take("w1")
		for _, change := range []func(*perdure.WaitSpec){
			func(s *perdure.WaitSpec) { ofPlatform(s); s.Approval.Default = perdure.Approve },
			func(s *perdure.WaitSpec) { s.Approval.Approvers = "nobody" },
		} {
			w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Waits: wait(forYes("no", change))}))
		}
	}},
	{"a form is answered as it asks", func(w *World) {
		_, id := w.askApproval(func(s *perdure.WaitSpec) {
			s.Approval.Form = []perdure.FormField{{Name: "where", Type: perdure.FieldChoice,
				Options: []string{"eu", "us"}, Required: true}, {Name: "note", Type: perdure.FieldText}}
		})
		for _, bad := range []string{``, `{}`, `[]`, `{"where":"mars"}`, `{"where":"eu","note":1}`,
			`{"where":"eu","what":1}`} {
			w.refuse(perdure.CodeAnswerInvalid, w.decide(id, ada, perdure.Decision{Decision: "approve",
				Answer: json.RawMessage(bad)}))
		}
		answer := json.RawMessage(`{"where":"eu","note":"` + strings.Repeat("x", 10_000) +
			`"}`) // more than stands in a row
		w.do(w.decide(id, ada, perdure.Decision{Decision: "approve", Answer: answer}))
		w.check(string(w.approval(id).Answer) == string(answer), "%+v", w.approval(id))
		w.do(w.decide(id, ada, perdure.Decision{Decision: "approve",
			Answer: json.RawMessage(strings.Replace(string(answer), ":", ": ", 1))}))
		w.check(strings.Contains(string(w.take("w1").Inbox[0].Data), `"answer":{"where":"eu"`), "it gets there")
	}},
	{"a signal of an approval's name is the decision", func(w *World) {
		signal := func(id perdure.RunID, name, data string) *life.Signal {
			return &life.Signal{Tenant: tenant, RunID: id, Name: name, Data: json.RawMessage(data), By: ada}
		}
		r, id := w.askApproval()
		for _, bad := range []string{``, `1`, `"approve"`, `{"decision":"perhaps"}`, `{"decision":null}`} {
			w.refuse(perdure.CodeInvalid, signal(r.ID, "approve_push", bad))
		}
		w.do(signal(r.ID, "approve_push", `{"decision":"reject","comment":"not on a Friday"}`))
		w.check(w.approval(id).State == perdure.ApprovalRejected && w.approval(id).Comment == "not on a Friday",
			"%+v", w.approval(id))
		g := w.take("w1")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].Type == perdure.ItemApproval,
			"one item, and no signal beside it: %+v", g.Inbox)
		// After the decision, nothing is kept for the next approval.
		w.refuse(perdure.CodeNoOpenApproval, signal(r.ID, "approve_push", `{"decision":"approve"}`))
		w.refuse(perdure.CodeNoOpenApproval, signal(r.ID, "approve_push", `1`))
		w.complete(g, `1`)
		// A name without the prefix is treated alike.
		r, _ = w.askApproval(func(s *perdure.WaitSpec) { s.Name = "deploy" })
		op := signal(r.ID, "deploy", ``)
		op.Decision, op.Key = &perdure.Decision{Decision: "approve"}, "once"
		w.do(op)
		again := *op
		w.do(&again)
		w.refuse(perdure.CodeNoOpenApproval, signal(r.ID, "deploy", `{"decision":"approve"}`))
		w.do(signal(r.ID, "deploy", `"a plain one"`))
		g = w.take("w1")
		w.check(len(g.Inbox) == 2 && g.Inbox[1].Type == perdure.ItemSignal, "%+v", g.Inbox)
		op = signal(r.ID, "other", ``)
		op.Decision = &perdure.Decision{Decision: "approve"}
		w.refuse(perdure.CodeNoOpenApproval, op)
	}},
	{"a decision by signal says which action it means, once there was another approval of its name", func(w *World) {
		for _, over := range []string{"timed out", "decided", "closed", "open"} {
			r := w.submit(perdure.Submission{Kind: "deploy", Class: perdure.Agent})
			g := w.take("w1")
			w.commit(g, perdure.Commit{Waits: wait(forYes("ok"))})
			signal := func(data string) *life.Signal {
				return &life.Signal{Tenant: tenant, RunID: r.ID, Name: "approve_push",
					Data: json.RawMessage(data), By: ada}
			}
			c := perdure.Commit{Outcome: suspend}
			switch over {
			case "timed out":
				w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend,
					Waits: []string{"ok"}}})
				w.pass(601 * time.Second)
				g = w.take("w1")
			case "decided":
				w.do(signal(`{"decision":"reject"}`))
			case "closed":
				c.Close = []string{"ok"}
			}
			const wipe = `{"wipe":"everything"}`
			c.Waits = wait(forYes("again", func(s *perdure.WaitSpec) { s.Approval.Action = json.RawMessage(wipe) }))
			w.commit(g, c)
			id, hash := perdure.IDOfApproval(tenant, r.ID, "again"), func(action string) string {
				h, _ := perdure.ActionHash(json.RawMessage(action))
				return h
			}
			for _, d := range []perdure.DecisionKind{"approve", "reject"} {
				w.refuse(perdure.CodeActionChanged, signal(`{"decision":"`+string(d)+`"}`))
				bare := signal(``)
				bare.Decision = &perdure.Decision{Decision: d}
				w.refuse(perdure.CodeActionChanged, bare)
			}
			w.check(w.approval(id).State == perdure.ApprovalOpen, "%s: %+v", over, w.approval(id))
			if over != "open" {
				w.refuse(perdure.CodeActionChanged, signal(`{"decision":"approve","action_hash":"`+hash(push)+`"}`))
			}
			w.do(signal(`{"decision":"approve","action_hash":"` + hash(wipe) + `"}`))
			w.check(w.approval(id).State == perdure.ApprovalApproved, "%s: %+v", over, w.approval(id))
			w.complete(w.take("w1"), `1`)
		}
	}},
	{"a signal that says approve is not kept, unless a run waits for just that", func(w *World) {
		r := w.task()
		early := &life.Signal{Tenant: tenant, RunID: r.ID, Name: "approve_push", Key: "k"}
		w.refuse(perdure.CodeNoOpenApproval, early)
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "ok", Type: perdure.WaitSignal,
			Name: "approve_push"}), Outcome: suspend})
		w.do(early)
		w.do(early)
		w.state(r.ID, perdure.Queued)
		w.refuse(perdure.CodeNoOpenApproval, &life.Signal{Tenant: tenant, RunID: r.ID, Name: "approve_push"})
		w.check(len(w.take("w1").Inbox) == 1, "once")
	}},
	{"names have timeouts of their own", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.commit(w.take("w1"), perdure.Commit{Waits: []perdure.WaitSpec{
			{ID: "a", Type: perdure.WaitSignal, Name: "start_task"}, {ID: "b", Type: perdure.WaitSignal,
				Name: "approve_push"}, forYes("c"),
			forYes("d", func(s *perdure.WaitSpec) { s.Name = "start_task" }),
			forYes("e", func(s *perdure.WaitSpec) { s.Timeout = perdure.Duration(time.Hour) }),
			forYes("f", func(s *perdure.WaitSpec) { s.Timeout = perdure.Never })}, Outcome: suspend})
		w.view(func(v *store.View) error {
			all, err := v.Waits.List(tenant, r.ID)
			want := map[string]time.Duration{"a": 300 * time.Second, "b": 600 * time.Second,
				"c": 600 * time.Second, "d": 300 * time.Second, "e": time.Hour}
			for _, x := range all {
				d := time.Duration(0)
				if x.TimeoutAt != 0 {
					d = x.TimeoutAt.Sub(x.OpenedAt)
				}
				w.check(d == want[x.ID], "%s: %s", x.ID, d)
			}
			return err
		})
		f, c := w.approval(perdure.IDOfApproval(tenant, r.ID, "f")), w.approval(perdure.IDOfApproval(tenant, r.ID, "c"))
		w.check(f.ExpiresAt == r.DeadlineAt && f.ExpiresBy == perdure.ExpiresByDeadline,
			"approval f ends at %s by %q, want the run's deadline, %s", f.ExpiresAt, f.ExpiresBy, r.DeadlineAt)
		w.check(c.ExpiresBy == perdure.ExpiresByTimeout, "approval c ends by %q, want its timeout", c.ExpiresBy)
	}},
	{"of many approvals each is found, the oldest first", func(w *World) {
		var ids []perdure.ApprovalID
		var last perdure.Run
		for range 5 {
			r, id := w.askApproval()
			ids, last = append(ids, id), r
			w.Now = w.Now.Add(time.Second)
		}
		w.do(w.decide(ids[2], ada, yes()))
		w.view(func(v *store.View) error {
			var got []perdure.ApprovalID
			f := store.ApprovalFilter{State: perdure.ApprovalOpen, Limit: 2, Bytes: 1 << 20}
			for more := true; more; {
				page, rest, err := v.Approvals.List(tenant, f)
				if err != nil {
					return err
				}
				for _, a := range page {
					got = append(got, a.ID)
				}
				more, f.After = rest, got[len(got)-1]
			}
			w.check(len(got) == 4 && got[0] == ids[0] && got[2] == ids[3], "%v of %v", got, ids)
			few, more, err := v.Approvals.List(tenant, store.ApprovalFilter{Limit: 1000, Bytes: 10})
			w.check(len(few) == 1 && more, "a page is not larger than it may be: %d", len(few))
			if err != nil {
				return err
			}
			of, _, err := v.Approvals.List(tenant, store.ApprovalFilter{RunID: last.ID, Limit: 10, Bytes: 1 << 20})
			w.check(len(of) == 1 && of[0].ID == ids[4], "%+v", of)
			return err
		})
	}},
}
