package perdure

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// Each event changes the fields that its name promises and no others, and writes its lines.
func TestFactsChangeOnlyTheirOwnFields(t *testing.T) {
	told := []Line{{Type: LineMessage, Data: `{"message_seq":1}`}, {Type: LineMessage, Data: `{"message_seq":2}`}}
	signal := Wait{ID: "w", Type: WaitSignal, Name: "go", TimeoutAt: start0}
	ended := func(state string) Wait { return Wait{ID: "w", Type: WaitSignal, Name: "go", State: state} }
	asked := Approval{ID: "apv_1", Title: "Pay", ActionHash: "abc"}
	decided := Approval{ID: "apv_1", State: ApprovalApproved, DecidedBy: &Decider{"k", "ada"}, Comment: "fine"}
	same := func(*Run) {}
	for _, c := range []struct {
		name  string
		event Event
		in    State
		want  func(*Run)
		lines []string
	}{
		{"a wait", WaitOpened{Wait: signal}, Running, func(r *Run) { r.WaitsOpen = 4 },
			[]string{`wait:opened {"wait_id":"w","type":"signal","name":"go",` +
				`"timeout_at":"2026-01-02T03:04:05.000000Z"}`}},
		{"a wait for children", WaitOpened{Wait: Wait{ID: "w", Type: WaitChildren, Mode: ModeAny}}, Running,
			func(r *Run) { r.WaitsOpen = 4 }, []string{`wait:opened {"wait_id":"w","type":"children","mode":"any"}`}},
		{"an approval", WaitOpened{Wait: Wait{ID: "w", Type: WaitApproval, Name: "pay"}, Approval: asked}, Running,
			func(r *Run) { r.WaitsOpen = 4 },
			[]string{`wait:opened {"wait_id":"w","type":"approval","name":"pay","approval_id":"apv_1",` +
				`"title":"Pay","action_hash":"abc"}`}},
		{"a satisfied wait", WaitEnded{Wait: ended(WaitSatisfied)}, Suspended, func(r *Run) { r.WaitsOpen = 2 },
			[]string{`wait:satisfied {"wait_id":"w","name":"go","outcome":"satisfied"}`}},
		{"a stalled wait", WaitEnded{Wait: ended(WaitStalled)}, Queued, func(r *Run) { r.WaitsOpen = 2 },
			[]string{`wait:satisfied {"wait_id":"w","name":"go","outcome":"stalled"}`}},
		{"a wait that timed out", WaitEnded{Wait: ended(WaitTimedOut)}, Running, func(r *Run) { r.WaitsOpen = 2 },
			[]string{`wait:timed_out {"wait_id":"w","name":"go","outcome":"timed_out"}`}},
		{"a decided approval", WaitEnded{ended(WaitSatisfied), decided}, Suspended, func(r *Run) { r.WaitsOpen = 2 },
			[]string{`wait:satisfied {"wait_id":"w","name":"go","outcome":"satisfied","approval_id":"apv_1",` +
				`"decision":"approve","by":{"key_id":"k","name":"ada"},"comment":"fine"}`}},
		{"a wait that gives back what satisfied it", WaitWithdrawn{WaitID: "w", Returned: 4}, Running, func(*Run) {},
			[]string{`wait:closed {"wait_id":"w","returned":4}`}},
		{"a withdrawn wait", WaitWithdrawn{WaitID: "w"}, Running, func(r *Run) { r.WaitsOpen = 2 },
			[]string{`wait:closed {"wait_id":"w"}`}},
		{"all waits", WaitsClosed{Count: 3}, Running, func(r *Run) { r.WaitsOpen = 0 }, nil},
		{"the wait clock", WaitClockReset{At: start0.Add(time.Hour)}, Suspended,
			func(r *Run) { r.WaitAt = start0.Add(time.Hour) }, nil},
		{"no wait clock", WaitClockReset{}, Suspended, func(r *Run) { r.WaitAt = 0 }, nil},
		{"a late callback", CallbackRefused{WaitID: "w", Shown: `{"result":1}`}, Failed, same,
			[]string{`wait:closed {"wait_id":"w","too_late":{"result":1}}`}},
		{"an item", ItemArrived{}, Suspended, func(r *Run) { r.InboxSeq, r.InboxOpen = 8, 6 }, nil},
		{"items for the holder", ItemsHandedOver{}, Running, same, nil},
		{"a reclaimed item", ItemReclaimed{}, Running, same, nil},
		{"items for a continuation", ItemsContinued{Count: 2}, Running, func(r *Run) { r.InboxOpen = 3 }, nil},
		{"a skipped item", ItemExpired{}, Cancelled, func(r *Run) { r.InboxOpen = 4 }, nil},
		{"a child's start", ChildStarted{Child: "c", Worker: "w1"}, Suspended, same,
			[]string{`worker:started {"job_id":"c","worker_id":"w1"}`}},
		{"a child's end", ChildEnded{Child: "c", State: Completed, Summary: "ok"}, Suspended,
			func(r *Run) { r.InboxSeq, r.InboxOpen = 8, 6 },
			[]string{`worker:completed {"job_id":"c","status":"completed","result_summary":"ok"}`}},
		{"a child's failure", ChildEnded{Child: "c", State: Failed,
			Failure: &Failure{Code: "boom", Message: "it broke"}}, Suspended,
			func(r *Run) { r.InboxSeq, r.InboxOpen = 8, 6 },
			[]string{`worker:completed {"job_id":"c","status":"failed","error":{"code":"boom","message":"it broke"}}`}},
		{"a question below", QuestionsBelow{Asked: []Question{{RunID: "c", Kind: "k", WaitID: "w", ApprovalID: "a",
			Title: "Go?"}}}, Suspended, same, []string{`worker:asks {"run_id":"c","kind":"k","wait_id":"w",` +
			`"approval_id":"a","title":"Go?","approvers":"tenant"}`}},
		{"an answer below", QuestionsBelow{Answered: []Question{{RunID: "c", Kind: "k", WaitID: "w", ApprovalID: "a",
			State: ApprovalApproved}}}, Running, same, []string{`worker:answered {"run_id":"c","kind":"k",` +
			`"wait_id":"w","approval_id":"a","outcome":"approved"}`}},
		{"a part of the children", CascadeAdvanced{More: true, After: "k2"}, Failed,
			func(r *Run) { r.Cascade, r.Stopped = true, "k2" }, nil},
		{"the last children", CascadeAdvanced{After: "k2"}, Failed, func(r *Run) {
			r.Cascade, r.Stopped = false, ""
		}, nil},
		{"a group", Gathered{}, Running, func(r *Run) { r.Counted = true }, nil},
		{"a chord", Gathered{Outlives: true}, Running,
			func(r *Run) { r.Counted, r.Options.OnParentEnd = true, DispositionContinue }, nil},
		{"messages", MessagesAppended{Lines: told}, Completed, same,
			[]string{`message:appended {"message_seq":1}`, `message:appended {"message_seq":2}`}},
		{"a continuation", Continued{By: "n", Trigger: "chord", Messages: told[:1]}, Completed,
			func(r *Run) { r.ContinuedBy = "n" },
			[]string{`message:appended {"message_seq":1}`,
				`run:continued {"continued_by_run_id":"n","trigger":"chord"}`}},
		{"a late result", LateResultKept{LateResult{N: 2, Epoch: 3, Attempt: 1, Worker: "w1", Summary: "ok"}}, Failed,
			func(r *Run) { r.Late = 2 },
			[]string{`run:late_result {"n":2,"epoch":3,"of_attempt":1,"worker_id":"w1","result_summary":"ok"}`}},
		{"a retry's result", LateResultKept{LateResult{N: 2, Attempt: 1, FromRun: "n"}}, Failed,
			func(r *Run) {
				r.Late = 2
			}, []string{`run:late_result {"n":2,"epoch":0,"of_attempt":1,"from_run_id":"n"}`}},
		{"a discarded result", LateResultDiscarded{N: 1}, Running, same,
			[]string{`run:late_result {"n":1,"discarded":true}`}},
		{"an adopted result", LateResultAdopted{N: 1, Result: "42", Summary: "ok", Messages: told[:1]}, TimedOut,
			func(r *Run) { r.Result, r.Summary = "42", "ok" },
			[]string{`message:appended {"message_seq":1}`, `run:late_result {"n":1,"adopted":true}`}},
		{"output", OutputKept{Epoch: 3, Lines: told[:1]}, Failed, same, []string{`message:appended {"message_seq":1}`}},
		{"findings", FindingsListed{NotUndone: []string{"pay"}, Text: "so far",
			Artifacts: []Artifact{{Name: "a", Size: 1}}},
			Failed, func(r *Run) {
				r.Fallback = `{"reason":"boom","not_undone":["pay"],"partial_text":"so far",` +
					`"artifacts":[{"name":"a","size":1}]}`
			}, nil},
		{"no findings", FindingsListed{}, Failed, same, nil},
		{"a waiter", WaiterAttached{}, Running, same, nil},
		{"a waiter less", WaiterLeft{}, Running, same, nil},
		{"a retry", Repeated{}, Failed, same, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := DefaultPolicy()
			r := suited(runIn(c.in), c.event)
			r.WaitsOpen, r.InboxSeq, r.InboxOpen, r.Late, r.Fallback = 3, 7, 5, 1, `{"reason":"boom"}`
			r.Cascade, r.Stopped = true, "k1"
			next, lines, err := p.Apply(r, c.event, start0)
			if err != nil {
				t.Fatalf("%s of a run that is %s: %v", EventName(c.event), c.in, err)
			}
			want := r
			c.want(&want)
			want.Version++
			want.Seq += int64(len(c.lines))
			want.AlarmAt = p.Alarm(&want)
			if !reflect.DeepEqual(next, want) {
				t.Errorf("%s:\n%+v\nwant\n%+v", EventName(c.event), next, want)
			}
			var got []string
			for _, l := range lines {
				got = append(got, string(l.Type)+" "+string(l.Data))
			}
			if !slices.Equal(got, c.lines) {
				t.Errorf("%s writes\n%q\nwant\n%q", EventName(c.event), got, c.lines)
			}
		})
	}
}

func TestAcceptedRunHasItsFirstLine(t *testing.T) {
	p := DefaultPolicy()
	r := Run{ID: "r", State: Queued, Attempt: 1, MaxAttempts: 3, Kind: "job", Queue: "default", ThreadID: "t",
		ParentID: "p", RetryOf: "o", DeadlineAt: start0.Add(time.Hour)}
	r, lines, err := p.Apply(r, Accepted{}, start0)
	if err != nil {
		t.Fatal(err)
	}
	want := Line{Seq: 1, Type: LineCreated, At: start0, Attempt: 1}
	want.Data = `{"thread_id":"t","task":"job","queue":"default",` +
		`"deadline_at":"2026-01-02T04:04:05.000000Z","parent_run_id":"p","retry_of_run_id":"o"}`
	if len(lines) != 1 || lines[0] != want {
		t.Errorf("the log of a new run has %+v, want %+v", lines, want)
	}
	if _, _, err := p.Apply(r, Accepted{}, start0); CodeOf(err) != CodeWrongState {
		t.Errorf("accepted twice: %v, want %s", err, CodeWrongState)
	}
}

// An alarm that was lost is set to the first clock again.
func TestRepairedAlarmIsTheFirstClock(t *testing.T) {
	p := DefaultPolicy()
	r := runIn(Running)
	want := r.AlarmAt
	r.AlarmAt = 0
	if next, _, err := p.Apply(r, AlarmRepaired{}, start0); err != nil || next.AlarmAt != want {
		t.Errorf("the alarm is %s, want %s (error %v)", next.AlarmAt, want, err)
	}
}
