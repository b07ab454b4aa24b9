package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/session"
)

// This file has a row for every method that changes something, of Client, of the client for operators
// and of the worker protocol. The test loses the first answer after the server has carried out the
// call, and checks that the retry makes it count once.

// reading lists the methods that change nothing.
var reading = strings.Fields(`
	Activity All Approval Approvals Artifact Artifacts Attention Audit Backup ChildActivity Close Counts
	DeadLetter
	DeadLetterCauses DeadLetters Deliverable Deliveries Delivery EventPage Events FailedJobs For Get Group Groups Health
	History HistoryBackwards Inbox InboxItem InboxItems Invariants JobHealth JobHeartbeats Join JoinGroup
	Journal Keys Kind KindStats Kinds LateResults Limit LimitKeys Limits
	List Locks Messages PlatformAudit Policy Queues Ready RunByName ThreadByName RecoveryMetrics RecoveryStatus Replay
	RunHistory Sentinels
	Schedule Schedules
	Session SigningKeys StaleJobs StartupLog Step Steps Stream Tenant Tenants Thread Threads Tree View Views Watchdog
	UpcomingInstants Webhook Webhooks Workers`)

// clients are the types whose methods are tested: for programs, for operators and for workers.
var clients = []reflect.Type{reflect.TypeFor[*client.Client](), reflect.TypeFor[*admin.Client](),
	reflect.TypeFor[session.Protocol]()}

// A loss is the test of one method.
type loss struct {
	t    *testing.T
	ctx  context.Context
	c    *client.Client // a client that loses nothing
	as   func(key string) *client.Client
	lost map[string]any // the lost answer

	sink    string        // URL of a receiver of webhooks
	letters <-chan string // ids of the messages that it got

	between func()        // runs before the retry
	once    func(got any) // checks that the call counted once
}

// A call calls the method under test.
type call func(c *client.Client) (any, error)

// run starts a run and returns its id.
func (l *loss) run(sub perdure.Submission) perdure.RunID {
	l.t.Helper()
	if sub.Kind == "" {
		sub.Kind = "job"
	}
	return ok[*api.Run](l.t)(l.c.Start(l.ctx, sub)).RunID
}

// lease starts a run and leases it.
func (l *loss) lease(start bool, sub perdure.Submission) api.Lease {
	l.t.Helper()
	l.run(sub)
	g := ok[*api.Polled](l.t)(session.Of(l.c).Poll(l.ctx, "w", api.Poll{Slots: 1, Start: start})).Runs[0]
	return api.Lease{RunID: g.RunID, Epoch: g.Epoch}
}

func (l *loss) commit(lease api.Lease, c perdure.Commit) api.CommitResult {
	l.t.Helper()
	c.ID, c.RunID, c.Epoch = "c", lease.RunID, lease.Epoch
	res := ok[[]api.CommitResult](l.t)(session.Of(l.c).Commit(l.ctx, "w", c))[0]
	if !res.OK {
		l.t.Fatalf("commit of run %s: %+v, want OK", lease.RunID, res)
	}
	return res
}

// dead creates a dead letter.
func (l *loss) dead() perdure.RunID {
	l.t.Helper()
	lease := l.lease(true, perdure.Submission{MaxAttempts: 1})
	fail := &perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: "broken"}}
	l.commit(lease, perdure.Commit{Outcome: fail})
	return lease.RunID
}

// kindPausedIs checks whether a kind is paused, by a run of it.
func (l *loss) kindPausedIs(kind string, want bool) {
	l.t.Helper()
	id := ok[*api.Run](l.t)(l.c.Start(l.ctx, perdure.Submission{Kind: kind})).RunID
	w := ok[*api.Run](l.t)(l.c.Get(l.ctx, id)).WaitingFor
	if w == nil || (w.Reason == perdure.WaitingKindPaused) != want {
		l.t.Errorf("a run of kind %s waits for %+v; paused = %t wanted", kind, w, want)
	}
}

// pausedIs checks whether a queue is paused.
func (l *loss) pausedIs(queue string, want bool) {
	l.t.Helper()
	for _, q := range ok[[]api.Queue](l.t)(l.c.Queues(l.ctx)) {
		if q.Name == queue && (q.Paused != nil) != want {
			l.t.Errorf("queue %s: paused = %+v, want paused %t", queue, q.Paused, want)
		}
	}
}

const hour = perdure.Duration(time.Hour)

// schedule makes a schedule, or changes it.
func (l *loss) schedule(name string, every perdure.Duration) {
	l.t.Helper()
	in := api.PutSchedule{Every: every, Submission: perdure.Submission{Kind: "job"}}
	ok[*api.Schedule](l.t)(l.c.PutSchedule(l.ctx, name, in))
}

func (l *loss) scheduleIs(name, want string) {
	l.t.Helper()
	if s := ok[*api.Schedule](l.t)(l.c.Schedule(l.ctx, name)); s.State != want {
		l.t.Errorf("schedule %s is %s, want %s", name, s.State, want)
	}
}

// limit makes a limit, or changes it.
func (l *loss) limit(name string, concurrency int, perKey bool) {
	l.t.Helper()
	ok[*api.Limit](l.t)(l.c.PutLimit(l.ctx, name, api.PutLimit{Concurrency: &concurrency, PerKey: perKey}))
}

func (l *loss) limitClosed(name string, want bool) {
	l.t.Helper()
	if x := ok[*api.Limit](l.t)(l.c.Limit(l.ctx, name)); (x.ClosedUntil != nil) != want {
		l.t.Errorf("limit %s is closed: %v, want %v", name, x.ClosedUntil != nil, want)
	}
}

// limitKey sets the values of key a.
func (l *loss) limitKey(name string, concurrency int) {
	l.t.Helper()
	ok[*api.LimitKey](l.t)(l.c.PutLimitKey(l.ctx, name, "a", api.PutLimitKey{Concurrency: &concurrency}))
}

func (l *loss) limitKeyIs(name string, want int) {
	l.t.Helper()
	keys := ok[[]api.LimitKey](l.t)(l.c.LimitKeys(l.ctx, name))
	if len(keys) != 1 || keys[0].Concurrency != want {
		l.t.Errorf("keys of %s = %+v, want one with %d", name, keys, want)
	}
}

// held creates a run that is on hold.
func (l *loss) held() perdure.RunID {
	l.t.Helper()
	lease := l.lease(true, perdure.Submission{})
	l.defect(lease, "first")
	return lease.RunID
}

// defect reports a defect of a leased run.
func (l *loss) defect(lease api.Lease, commit string) {
	l.t.Helper()
	res := ok[[]api.CommitResult](l.t)(session.Of(l.c).Commit(l.ctx, "w", perdure.Commit{ID: commit, RunID: lease.RunID,
		Epoch: lease.Epoch, Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Defect: true,
			Error: &perdure.Failure{Code: "panic"}}}))[0]
	if !res.OK || res.State != perdure.Queued {
		l.t.Fatalf("commit of run %s: %+v, want it queued", lease.RunID, res)
	}
}

// late creates an ended run with a late result.
func (l *loss) late() perdure.RunID {
	l.t.Helper()
	id := l.dead()
	ok[*api.Run](l.t)(l.c.Retry(l.ctx, id, api.Retry{}))
	finish(l.t, l.c, `1`)
	return id
}

func (l *loss) hook() perdure.WebhookID {
	l.t.Helper()
	in := api.CreateWebhook{URL: l.sink, Events: []string{"run:created"}}
	return ok[*api.NewWebhook](l.t)(l.c.CreateWebhook(l.ctx, in)).WebhookID
}

func (l *loss) delivery() string {
	l.t.Helper()
	id := l.hook()
	l.run(perdure.Submission{})
	var page *api.Deliveries
	eventually.True(l.t, "it is delivered", func() bool {
		page = ok[*api.Deliveries](l.t)(l.c.Deliveries(l.ctx, id, client.DeliveryFilter{State: "delivered"}))
		return len(page.Deliveries) == 1
	})
	return page.Deliveries[0].DeliveryID
}

// lines counts the events of a type in a run's log.
func (l *loss) lines(id perdure.RunID, typ perdure.LineType) (n int) {
	l.t.Helper()
	for _, e := range ok[*api.Events](l.t)(l.c.EventPage(l.ctx, id, 0, 0)).Events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// runs checks the number of runs.
func (l *loss) runs(want int) {
	l.t.Helper()
	if page := ok[*api.Runs](l.t)(l.c.List(l.ctx, client.Filter{})); len(page.Runs) != want {
		l.t.Errorf("%d runs, want %d", len(page.Runs), want)
	}
}

// same checks that the answer has the same fields as the lost one.
func (l *loss) same(got any, fields ...string) {
	l.t.Helper()
	var have map[string]any
	if err := json.Unmarshal(client.JSON(got), &have); err != nil {
		l.t.Fatal(err)
	}
	for _, f := range fields {
		if have[f] == nil || !reflect.DeepEqual(have[f], l.lost[f]) {
			l.t.Errorf("%s = %v, want %v as in the lost answer", f, have[f], l.lost[f])
		}
	}
}

// mutations has a row for every method that changes something. A row prepares the call and sets
// once.
var mutations = map[string]func(l *loss) call{
	"Start": func(l *loss) call {
		l.once = func(got any) { l.same(got, "run_id"); l.runs(1) }
		return func(c *client.Client) (any, error) { return c.Start(l.ctx, perdure.Submission{Kind: "job"}) }
	},
	"StartMany": func(l *loss) call {
		l.once = func(got any) {
			for i, r := range got.([]api.StartResult) {
				lost := l.lost["results"].([]any)[i].(map[string]any)["run"].(map[string]any)
				if r.Run == nil || !r.Duplicate || string(r.Run.RunID) != lost["run_id"] {
					l.t.Errorf("result %d = %+v, want the run %v of the lost answer", i, r, lost["run_id"])
				}
			}
			l.runs(3)
		}
		return func(c *client.Client) (any, error) {
			job := perdure.Submission{Kind: "job"}
			return c.StartMany(l.ctx,
				[]api.BatchRun{{Submission: job}, {Submission: job, IdempotencyKey: "k"}, {Submission: job}})
		}
	},
	"Run": func(l *loss) call {
		l.once = func(got any) { l.same(got, "run_id"); l.runs(1) }
		return func(c *client.Client) (any, error) {
			run, deferred, err := c.Run(l.ctx, perdure.Submission{Kind: "job"}, 30*time.Millisecond)
			if err == nil && !deferred {
				err = errors.New("the run is not deferred")
			}
			return run, err
		}
	},
	"AnnounceKind": func(l *loss) call {
		l.once = func(got any) { l.same(got, "kind", "build", "first_seen_at", "counts") }
		return func(c *client.Client) (any, error) {
			return session.Of(c).AnnounceKind(l.ctx, "job",
				api.AnnounceKind{Build: "1", KindDef: perdure.KindDef{Description: "d"}})
		}
	},
	"ChangeKind": func(l *loss) call {
		ok[*api.KindAnnounced](l.t)(session.Of(l.c).AnnounceKind(l.ctx, "job", api.AnnounceKind{}))
		// A change that came in between is not undone by the retry.
		l.between = func() {
			ok[*api.Kind](l.t)(l.c.ChangeKind(l.ctx, "job", api.ChangeKind{Remove: []string{"retry.backoff"}}))
		}
		l.once = func(any) {
			if k := ok[*api.Kind](l.t)(l.c.Kind(l.ctx, "job")); k.Retry == nil || k.Retry.MaxAttempts != 4 ||
				k.Retry.Backoff != 0 {
				l.t.Errorf("retry of the kind = %+v, want 4 attempts and no backoff", k.Retry)
			}
		}
		return func(c *client.Client) (any, error) {
			return c.ChangeKind(l.ctx, "job", api.ChangeKind{KindDef: perdure.KindDef{
				Retry: &perdure.KindRetry{MaxAttempts: 4, Backoff: perdure.Duration(time.Minute)}}})
		}
	},
	"DeleteKind": func(l *loss) call {
		l.announcedMeanwhile(api.AnnounceKind{})
		return func(c *client.Client) (any, error) { return nil, c.DeleteKind(l.ctx, "job") }
	},
	"DeletePlatformKind": func(l *loss) call {
		l.announcedMeanwhile(api.AnnounceKind{AllTenants: true})
		return func(c *client.Client) (any, error) { return nil, admin.New(c).DeletePlatformKind(l.ctx, "job") }
	},
	"PauseQueue": func(l *loss) call {
		// Somebody who has resumed the queue meanwhile is not overruled by the retry.
		l.between = func() { ok[*api.QueuePaused](l.t)(admin.New(l.c).ResumeQueue(l.ctx, "slow")) }
		l.once = func(any) { l.pausedIs("slow", false) }
		return func(c *client.Client) (any, error) {
			return admin.New(c).PauseQueue(l.ctx, "slow", api.PauseQueue{Reason: "x"})
		}
	},
	"SetQueueLimits": func(l *loss) call {
		l.between = func() {
			ok[*api.QueueLimitsSet](l.t)(admin.New(l.c).SetQueueLimits(l.ctx, "bound", api.QueueLimits{Concurrency: 2}))
		}
		l.once = func(any) {
			list := ok[[]api.Queue](l.t)(l.c.Queues(l.ctx))
			n := slices.IndexFunc(list, func(q api.Queue) bool { return q.Name == "bound" })
			if n < 0 || list[n].Concurrency != 2 {
				l.t.Errorf("queues %+v, want bound with what was set last", list)
			}
		}
		return func(c *client.Client) (any, error) {
			return admin.New(c).SetQueueLimits(l.ctx, "bound", api.QueueLimits{Concurrency: 1})
		}
	},
	"ResumeQueue": func(l *loss) call {
		pause := func() { ok[*api.QueuePaused](l.t)(admin.New(l.c).PauseQueue(l.ctx, "slow", api.PauseQueue{})) }
		pause()
		l.between = pause
		l.once = func(any) { l.pausedIs("slow", true) }
		return func(c *client.Client) (any, error) { return admin.New(c).ResumeQueue(l.ctx, "slow") }
	},
	"PauseKind": func(l *loss) call {
		l.between = func() { ok[*api.QueuePaused](l.t)(admin.New(l.c).ResumeKind(l.ctx, "slow")) }
		l.once = func(any) { l.kindPausedIs("slow", false) }
		return func(c *client.Client) (any, error) {
			return admin.New(c).PauseKind(l.ctx, "slow", api.PauseQueue{Reason: "x"})
		}
	},
	"ResumeKind": func(l *loss) call {
		pause := func() { ok[*api.QueuePaused](l.t)(admin.New(l.c).PauseKind(l.ctx, "slow", api.PauseQueue{})) }
		pause()
		l.between = pause
		l.once = func(any) { l.kindPausedIs("slow", true) }
		return func(c *client.Client) (any, error) { return admin.New(c).ResumeKind(l.ctx, "slow") }
	},
	"CreateSchedule": func(l *loss) call {
		l.once = func(got any) { l.same(got, "schedule_id") }
		return func(c *client.Client) (any, error) {
			return c.CreateSchedule(l.ctx, api.PutSchedule{Name: "new", Every: hour,
				Submission: perdure.Submission{Kind: "job"}})
		}
	},
	"PutSchedule": func(l *loss) call {
		// Somebody who has changed the schedule meanwhile is not overruled by the retry.
		l.between = func() { l.schedule("put", 2*hour) }
		l.once = func(any) {
			if s := ok[*api.Schedule](l.t)(l.c.Schedule(l.ctx, "put")); s.Every == nil || *s.Every != 2*hour {
				l.t.Errorf("every = %v, want what was set last", s.Every)
			}
		}
		return func(c *client.Client) (any, error) {
			return c.PutSchedule(l.ctx, "put",
				api.PutSchedule{Every: hour, Submission: perdure.Submission{Kind: "job"}})
		}
	},
	"PauseSchedule": func(l *loss) call {
		l.schedule("s", hour)
		l.between = func() { ok[*api.Schedule](l.t)(l.c.ResumeSchedule(l.ctx, "s")) }
		l.once = func(any) { l.scheduleIs("s", "active") }
		return func(c *client.Client) (any, error) { return c.PauseSchedule(l.ctx, "s") }
	},
	"ResumeSchedule": func(l *loss) call {
		l.schedule("s", hour)
		pause := func() { ok[*api.Schedule](l.t)(l.c.PauseSchedule(l.ctx, "s")) }
		pause()
		l.between = pause
		l.once = func(any) { l.scheduleIs("s", "paused") }
		return func(c *client.Client) (any, error) { return c.ResumeSchedule(l.ctx, "s") }
	},
	"TriggerSchedule": func(l *loss) call {
		l.schedule("s", hour)
		l.once = func(got any) {
			l.same(got, "run_id")
			if list := ok[*api.Runs](l.t)(l.c.List(l.ctx, client.Filter{Kind: "job"})); len(list.Runs) != 1 {
				l.t.Errorf("%d runs, want 1", len(list.Runs))
			}
		}
		return func(c *client.Client) (any, error) { return c.TriggerSchedule(l.ctx, "s") }
	},
	"DeleteSchedule": func(l *loss) call {
		l.schedule("s", hour)
		l.between = func() { l.schedule("s", 2*hour) }
		l.once = func(any) { l.scheduleIs("s", "active") }
		return func(c *client.Client) (any, error) { return nil, c.DeleteSchedule(l.ctx, "s") }
	},
	"PutLimit": func(l *loss) call {
		l.between = func() { l.limit("put", 2, false) }
		l.once = func(any) {
			if x := ok[*api.Limit](l.t)(l.c.Limit(l.ctx, "put")); x.Concurrency != 2 {
				l.t.Errorf("concurrency = %d, want what was set last", x.Concurrency)
			}
		}
		return func(c *client.Client) (any, error) {
			return c.PutLimit(l.ctx, "put", api.PutLimit{Concurrency: new(1)})
		}
	},
	"DeleteLimit": func(l *loss) call {
		l.limit("l", 1, false)
		l.between = func() { l.limit("l", 2, false) }
		l.once = func(any) { ok[*api.Limit](l.t)(l.c.Limit(l.ctx, "l")) }
		return func(c *client.Client) (any, error) { return nil, c.DeleteLimit(l.ctx, "l") }
	},
	"CloseLimit": func(l *loss) call {
		l.limit("l", 1, false)
		l.between = func() { ok[*api.Limit](l.t)(l.c.OpenLimit(l.ctx, "l", api.OpenLimit{})) }
		l.once = func(any) { l.limitClosed("l", false) }
		return func(c *client.Client) (any, error) { return c.CloseLimit(l.ctx, "l", api.CloseLimit{For: hour}) }
	},
	"OpenLimit": func(l *loss) call {
		l.limit("l", 1, false)
		shut := func() { ok[*api.Limit](l.t)(l.c.CloseLimit(l.ctx, "l", api.CloseLimit{For: hour})) }
		shut()
		l.between = shut
		l.once = func(any) { l.limitClosed("l", true) }
		return func(c *client.Client) (any, error) { return c.OpenLimit(l.ctx, "l", api.OpenLimit{}) }
	},
	"PutLimitKey": func(l *loss) call {
		l.limit("l", 1, true)
		l.between = func() { l.limitKey("l", 3) }
		l.once = func(any) { l.limitKeyIs("l", 3) }
		return func(c *client.Client) (any, error) {
			return c.PutLimitKey(l.ctx, "l", "a", api.PutLimitKey{Concurrency: new(2)})
		}
	},
	"DeleteLimitKey": func(l *loss) call {
		l.limit("l", 1, true)
		l.limitKey("l", 2)
		l.between = func() { l.limitKey("l", 3) }
		l.once = func(any) { l.limitKeyIs("l", 3) }
		return func(c *client.Client) (any, error) { return c.DeleteLimitKey(l.ctx, "l", "a") }
	},
	"Signal": func(l *loss) call {
		id := l.run(perdure.Submission{})
		l.once = func(got any) {
			l.same(got, "run_id")
			g := ok[*api.Polled](l.t)(session.Of(l.c).Poll(l.ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
			if len(g.Inbox) != 1 {
				l.t.Errorf("%d signals in the inbox, want 1", len(g.Inbox))
			}
		}
		return func(c *client.Client) (any, error) { return c.Signal(l.ctx, id, "go", client.JSON(1)) }
	},
	"Cancel": func(l *loss) call {
		// The run completes before the retry and leaves its child to a continuation. The retry must
		// not cancel the child.
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil))
		lease := l.lease(true, perdure.Submission{ThreadID: th.ThreadID})
		var child perdure.RunID
		l.between = func() {
			child = l.commit(lease, perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "kid"}},
				Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, ContinueOn: []string{"k"}}}).Children[0].RunID
		}
		l.once = func(got any) {
			l.same(got, "run_id")
			if n := l.lines(lease.RunID, perdure.LineCancelRequested); n != 1 {
				l.t.Errorf("%d cancel requests in the log, want 1", n)
			}
			if r := ok[*api.Run](l.t)(l.c.Get(l.ctx, child)); r.State != perdure.Queued {
				l.t.Errorf("the child is %s, want queued", r.State)
			}
		}
		return func(c *client.Client) (any, error) { return c.Cancel(l.ctx, lease.RunID, "enough", 0) }
	},
	"Defer": func(l *loss) call {
		id := l.run(perdure.Submission{})
		l.once = func(got any) {
			l.same(got, "run_id", "deferred_at")
			if n := l.lines(id, perdure.LineDeferred); n != 1 {
				l.t.Errorf("deferred %d times, want once", n)
			}
		}
		return func(c *client.Client) (any, error) { return c.Defer(l.ctx, id) }
	},
	"ReleaseHold": func(l *loss) call {
		id := l.held()
		// A worker holds the run again before the retry, which must not release it a second time.
		l.between = func() {
			g := ok[*api.Polled](l.t)(session.Of(l.c).Poll(l.ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
			l.defect(api.Lease{RunID: g.RunID, Epoch: g.Epoch}, "again")
		}
		l.once = func(got any) {
			l.same(got, "run_id")
			if r := ok[*api.Run](l.t)(l.c.Get(l.ctx, id)); r.Hold == nil || r.Hold.Count != 2 {
				l.t.Errorf("hold = %+v, want one after 2 defects", r.Hold)
			}
		}
		return func(c *client.Client) (any, error) { return admin.New(c).ReleaseHold(l.ctx, id) }
	},
	"DeadLetterRun": func(l *loss) call {
		id := l.held()
		l.once = func(got any) {
			l.same(got, "run_id", "state", "finished_at")
			if n := l.lines(id, perdure.LineDeadLettered); n != 1 {
				l.t.Errorf("%d run:dead_lettered events, want 1", n)
			}
		}
		return func(c *client.Client) (any, error) { return admin.New(c).DeadLetterRun(l.ctx, id) }
	},
	"Retry": func(l *loss) call {
		id := l.dead()
		l.once = func(got any) { l.same(got, "run_id"); l.runs(2) }
		return func(c *client.Client) (any, error) { return c.Retry(l.ctx, id, api.Retry{}) }
	},
	"RetryMany": func(l *loss) call {
		ids := []perdure.RunID{l.dead(), l.dead()}
		l.once = func(got any) { l.same(got, "results"); l.runs(4) }
		return func(c *client.Client) (any, error) { return c.RetryMany(l.ctx, api.RetryMany{RunIDs: ids}) }
	},
	"Adopt": func(l *loss) call {
		id := l.late()
		l.once = func(got any) {
			l.same(got, "run_id", "result")
			if n := l.lines(id, perdure.LineLateResult); n != 2 { // kept and adopted
				l.t.Errorf("%d run:late_result events, want 2", n)
			}
		}
		return func(c *client.Client) (any, error) { return c.Adopt(l.ctx, id, 1) }
	},
	"Discard": func(l *loss) call {
		id := l.late()
		l.once = func(got any) {
			l.same(got, "run_id")
			late := ok[[]api.LateResult](l.t)(l.c.LateResults(l.ctx, id))
			if len(late) != 1 || late[0].State != perdure.LateDiscarded {
				l.t.Errorf("late results: %+v, want one, discarded", late)
			}
		}
		return func(c *client.Client) (any, error) { return c.Discard(l.ctx, id, 1) }
	},
	"Continue": func(l *loss) call {
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil))
		lease := l.lease(true, perdure.Submission{ThreadID: th.ThreadID})
		l.commit(lease, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete}})
		l.once = func(got any) { l.same(got, "continued_by_run_id"); l.runs(2) }
		return func(c *client.Client) (any, error) {
			return c.Continue(l.ctx, lease.RunID, api.ContinueRun{JobID: "j"})
		}
	},
	"Callback": func(l *loss) call {
		lease := l.lease(true, perdure.Submission{})
		res := l.commit(lease, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "x", Type: perdure.WaitCallback}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		l.once = func(got any) {
			l.same(got, "run_id")
			g := ok[*api.Polled](l.t)(session.Of(l.c).Poll(l.ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
			if len(g.Inbox) != 1 {
				l.t.Errorf("%d callback items in the inbox, want 1", len(g.Inbox))
			}
		}
		return func(c *client.Client) (any, error) {
			return c.Callback(l.ctx, res.Callbacks[0].Token, api.UseCallback{Result: client.JSON(1)})
		}
	},
	"Decide": func(l *loss) call {
		wait := perdure.WaitSpec{ID: "x", Type: perdure.WaitApproval, Name: "push",
			Approval: &perdure.ApprovalSpec{Action: client.JSON("push")}}
		l.commit(l.lease(true, perdure.Submission{}), perdure.Commit{Waits: []perdure.WaitSpec{wait},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		id := ok[*api.Approvals](l.t)(l.c.Approvals(l.ctx, client.ApprovalFilter{})).Approvals[0].ID
		l.once = func(got any) {
			l.same(got, "approval_id", "state")
			g := ok[*api.Polled](l.t)(session.Of(l.c).Poll(l.ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
			if len(g.Inbox) != 1 {
				l.t.Errorf("%d decisions in the inbox, want 1", len(g.Inbox))
			}
		}
		return func(c *client.Client) (any, error) { return c.Decide(l.ctx, id, api.Decide{Decision: perdure.Approve}) }
	},
	"CreateThread": func(l *loss) call {
		l.once = func(got any) { l.same(got, "thread_id") }
		return func(c *client.Client) (any, error) { return c.CreateThread(l.ctx, client.JSON(map[string]int{"n": 1})) }
	},
	"CopyThread": func(l *loss) call {
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil)).ThreadID
		l.once = func(got any) { l.same(got, "thread_id") }
		return func(c *client.Client) (any, error) { return c.CopyThread(l.ctx, th, nil) }
	},
	"CreateNamedThread": func(l *loss) call {
		l.once = func(got any) { l.same(got, "thread_id") }
		return func(c *client.Client) (any, error) { return c.CreateNamedThread(l.ctx, "t", nil) }
	},
	"ChangeThread": func(l *loss) call {
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil)).ThreadID
		// Somebody who has changed the thread meanwhile is not overruled by the retry.
		l.between = func() {
			ok[*api.Thread](l.t)(l.c.ChangeThread(l.ctx, th, client.JSON(map[string]int{"n": 2})))
		}
		l.once = func(any) {
			if got := ok[*api.Thread](l.t)(l.c.Thread(l.ctx, th)); string(got.Metadata) != `{"n":2}` {
				l.t.Errorf("metadata = %s, want what was set last", got.Metadata)
			}
		}
		return func(c *client.Client) (any, error) {
			return c.ChangeThread(l.ctx, th, client.JSON(map[string]int{"n": 1}))
		}
	},
	"NameThread": func(l *loss) call {
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil)).ThreadID
		l.once = func(any) {
			got := ok[*api.Thread](l.t)(l.c.ThreadByName(l.ctx, "a b/ü"))
			if got.ThreadID != th || len(got.Names) != 1 {
				l.t.Errorf("thread by name = %+v, want %s", got, th)
			}
		}
		return func(c *client.Client) (any, error) { return c.NameThread(l.ctx, th, "a b/ü") }
	},
	"NameRun": func(l *loss) call {
		id := l.run(perdure.Submission{})
		l.once = func(any) {
			if got := ok[*api.Run](l.t)(l.c.RunByName(l.ctx, "r:../?")); got.RunID != id || got.FromSeq != 1 {
				l.t.Errorf("run by name = %s from %d, want %s from 1", got.RunID, got.FromSeq, id)
			}
		}
		return func(c *client.Client) (any, error) { return c.NameRun(l.ctx, id, "r:../?", api.NameRun{FromSeq: 1}) }
	},
	"AppendMessage": func(l *loss) call {
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil)).ThreadID
		l.once = func(got any) {
			l.same(got, "thread_id", "seq")
			if ms := ok[*api.Messages](l.t)(l.c.Messages(l.ctx, th, 0)); len(ms.Messages) != 1 {
				l.t.Errorf("%d messages, want 1", len(ms.Messages))
			}
		}
		return func(c *client.Client) (any, error) {
			return c.AppendMessage(l.ctx, th, perdure.Message{Role: "user", Content: client.JSON("hi")})
		}
	},
	"Chat": func(l *loss) call {
		l.once = func(got any) {
			l.same(got, "thread_id", "run_id")
			l.runs(1)
		}
		return func(c *client.Client) (any, error) { return c.Chat(l.ctx, api.Chat{Message: client.JSON("hi")}) }
	},
	"CreateGroup": func(l *loss) call {
		ids := []perdure.RunID{l.dead(), l.run(perdure.Submission{})}
		l.once = func(got any) { l.same(got, "group_id", "ended_runs") }
		return func(c *client.Client) (any, error) { return c.CreateGroup(l.ctx, api.CreateGroup{RunIDs: ids}) }
	},
	"Redrive": func(l *loss) call {
		id := l.dead()
		l.between = func() { // the dead letter is discarded before the retry
			if err := admin.New(l.c).DropDeadLetter(l.ctx, id); err != nil {
				l.t.Errorf("DropDeadLetter: %v", err)
			}
		}
		l.once = func(got any) { l.same(got, "run_id"); l.runs(2) }
		return func(c *client.Client) (any, error) { return admin.New(c).Redrive(l.ctx, id, api.Redrive{}) }
	},
	"PutArtifact": func(l *loss) call {
		lease := l.lease(true, perdure.Submission{})
		l.once = func(got any) {
			l.same(got, "name", "sha256", "at")
			if list := ok[[]perdure.Artifact](l.t)(l.c.Artifacts(l.ctx, lease.RunID)); len(list) != 1 {
				l.t.Errorf("%d artifacts, want 1", len(list))
			}
		}
		return func(c *client.Client) (any, error) {
			return session.Of(c).PutArtifact(l.ctx, lease, "x.txt", "text/plain", strings.NewReader("hello"))
		}
	},
	"Delete": func(l *loss) call {
		id := l.dead()
		l.once = func(any) { l.runs(0) }
		return func(c *client.Client) (any, error) { return nil, c.Delete(l.ctx, id) }
	},
	"DeleteThread": func(l *loss) call {
		th := ok[*api.Thread](l.t)(l.c.CreateThread(l.ctx, nil))
		l.once = func(any) {
			if _, err := l.c.Thread(l.ctx, th.ThreadID); client.CodeOf(err) != perdure.CodeNotFound {
				l.t.Errorf("the deleted thread: %v, want %s", err, perdure.CodeNotFound)
			}
		}
		return func(c *client.Client) (any, error) { return nil, c.DeleteThread(l.ctx, th.ThreadID) }
	},
	"DropDeadLetter": func(l *loss) call {
		id := l.dead()
		l.once = func(any) {
			if err := admin.New(l.c).DropDeadLetter(l.ctx, id); client.CodeOf(err) != perdure.CodeNotFound {
				l.t.Errorf("the discarded dead letter: %v, want %s", err, perdure.CodeNotFound)
			}
		}
		return func(c *client.Client) (any, error) { return nil, admin.New(c).DropDeadLetter(l.ctx, id) }
	},
	"RedriveMany": func(l *loss) call {
		l.dead()
		l.dead()
		l.once = func(got any) { l.same(got, "results"); l.runs(3) } // one of two dead letters is redriven, once
		return func(c *client.Client) (any, error) {
			return admin.New(c).RedriveMany(l.ctx, api.RedriveMany{ChooseLetters: api.ChooseLetters{Kind: "job",
				Limit: new(1)}})
		}
	},
	"DropDeadLetters": func(l *loss) call {
		id := l.dead()
		l.once = func(got any) { l.same(got, "results") }
		return func(c *client.Client) (any, error) {
			return admin.New(c).DropDeadLetters(l.ctx, api.ChooseLetters{IDs: []perdure.RunID{id}})
		}
	},
	"ResumeJobs": func(l *loss) call {
		id := l.run(perdure.Submission{Class: perdure.Process})
		l.once = func(got any) { l.same(got, "results") }
		return func(c *client.Client) (any, error) { return admin.New(c).ResumeJobs(l.ctx, []perdure.RunID{id}) }
	},
	"ChangeTenant": func(l *loss) call {
		no := false
		l.once = func(got any) { l.same(got, "tenant", "created_at") }
		return func(c *client.Client) (any, error) {
			return admin.New(c).ChangeTenant(l.ctx, "acme", api.ChangeTenant{RequireSignatures: &no})
		}
	},
	"CreateKey": func(l *loss) call {
		l.once = func(got any) { l.oneKey(got.(*api.NewKey), l.c) }
		return func(c *client.Client) (any, error) {
			return admin.New(c).CreateKey(l.ctx, api.CreateKey{Name: "k", Scopes: []string{"keys:admin"}})
		}
	},
	"CreateTenantKey": func(l *loss) call {
		l.once = func(got any) { l.oneKey(got.(*api.NewKey), nil) }
		return func(c *client.Client) (any, error) {
			return admin.New(c).CreateTenantKey(l.ctx, "acme", api.CreateKey{Name: "k", Scopes: []string{"keys:admin"}})
		}
	},
	"CreatePlatformKey": func(l *loss) call {
		l.once = func(got any) { l.oneKey(got.(*api.NewKey), l.c) }
		return func(c *client.Client) (any, error) {
			return admin.New(c).CreatePlatformKey(l.ctx, api.CreateKey{Name: "k", Scopes: []string{"keys:admin"}})
		}
	},
	"RevokePlatformKey": func(l *loss) call {
		id := ok[*api.NewKey](l.t)(admin.New(l.c).CreatePlatformKey(l.ctx,
			api.CreateKey{Name: "k", Scopes: []string{"runs:read"}})).ID
		l.once = func(got any) { l.same(got, "key_id", "revoked_at") }
		return func(c *client.Client) (any, error) { return admin.New(c).RevokePlatformKey(l.ctx, id) }
	},
	"LoginLink": func(l *loss) call {
		l.once = func(got any) { // a second link, of which the first is never used
			_, secret, _ := strings.Cut(got.(*api.LoginLink).Path, "#login=")
			if _, err := l.as(secret).List(l.ctx, client.Filter{}); client.CodeOf(err) != api.CodeUnauthorized {
				l.t.Errorf("a list with the secret %q of a login link: %v, want unauthorized", secret, err)
			}
		}
		return func(c *client.Client) (any, error) { return admin.New(c).LoginLink(l.ctx, api.OpenSession{}) }
	},
	"RevokeKey": func(l *loss) call {
		id := ok[*api.NewKey](l.t)(admin.New(l.c).CreateKey(l.ctx, api.CreateKey{Name: "k",
			Scopes: []string{"runs:read"}})).ID
		l.once = func(got any) { l.same(got, "key_id", "revoked_at") }
		return func(c *client.Client) (any, error) { return admin.New(c).RevokeKey(l.ctx, id) }
	},
	"RevokeTenantKey": func(l *loss) call {
		in := api.CreateKey{Name: "k", Scopes: []string{"runs:read"}}
		id := ok[*api.NewKey](l.t)(admin.New(l.c).CreateTenantKey(l.ctx, "acme", in)).ID
		l.once = func(got any) { l.same(got, "key_id", "revoked_at") }
		return func(c *client.Client) (any, error) { return admin.New(c).RevokeTenantKey(l.ctx, "acme", id) }
	},
	"CreateWebhook": func(l *loss) call {
		l.once = func(got any) {
			l.same(got, "webhook_id", "secret")
			if list := ok[[]api.Webhook](l.t)(l.c.Webhooks(l.ctx)); len(list) != 1 {
				l.t.Errorf("%d webhooks, want 1", len(list))
			}
		}
		return func(c *client.Client) (any, error) { return c.CreateWebhook(l.ctx, api.CreateWebhook{URL: l.sink}) }
	},
	"ChangeWebhook": func(l *loss) call {
		id, text, other := l.hook(), "mine", "theirs"
		l.between = func() {
			ok[*api.Webhook](l.t)(l.c.ChangeWebhook(l.ctx, id, api.ChangeWebhook{Description: &other}))
		}
		l.once = func(got any) {
			if got.(*api.Webhook).Description != other { // the retry does not overwrite a later change
				l.t.Errorf("webhook: %+v, want the description %q", got, other)
			}
		}
		return func(c *client.Client) (any, error) {
			return c.ChangeWebhook(l.ctx, id, api.ChangeWebhook{Description: &text})
		}
	},
	"DeleteWebhook": func(l *loss) call {
		id := l.hook()
		l.once = func(any) {
			if err := l.c.DeleteWebhook(l.ctx, id); client.CodeOf(err) != perdure.CodeNotFound {
				l.t.Errorf("the deleted webhook: %v, want %s", err, perdure.CodeNotFound)
			}
		}
		return func(c *client.Client) (any, error) { return nil, c.DeleteWebhook(l.ctx, id) }
	},
	"RotateWebhook": func(l *loss) call {
		id := l.hook()
		l.once = func(got any) { l.same(got, "secret", "rotated_at") }
		return func(c *client.Client) (any, error) { return c.RotateWebhook(l.ctx, id) }
	},
	"TestWebhook": func(l *loss) call {
		id := l.hook()
		l.once = func(got any) { // sent twice with the same id
			l.same(got, "delivered", "status")
			if a, b := <-l.letters, <-l.letters; a != b {
				l.t.Errorf("message ids %s and %s, want the same", a, b)
			}
		}
		return func(c *client.Client) (any, error) { return c.TestWebhook(l.ctx, id) }
	},
	"Redeliver": func(l *loss) call {
		id := l.delivery()
		delivered := func() bool {
			return ok[*api.DeliveryHistory](l.t)(l.c.Delivery(l.ctx, id)).State == "delivered"
		}
		l.between = func() { eventually.True(l.t, "the redelivery succeeds", delivered) }
		l.once = func(any) {
			d := ok[*api.DeliveryHistory](l.t)(l.c.Delivery(l.ctx, id))
			if len(d.History) != 2 || d.State != "delivered" {
				l.t.Errorf("delivery: %+v, want two attempts and delivered", d)
			}
		}
		return func(c *client.Client) (any, error) { return c.Redeliver(l.ctx, id) }
	},

	// In the worker protocol, a lease or a commit_id takes the place of the idempotency key.
	"StartRuns": func(l *loss) call {
		lease := l.lease(false, perdure.Submission{})
		l.once = func(got any) {
			if res := got.([]api.LeaseResult); !res[0].OK || l.lines(lease.RunID, perdure.LineStarted) != 1 {
				l.t.Errorf("StartRuns: %+v, want OK and one run:started", res)
			}
		}
		return func(c *client.Client) (any, error) { return session.Of(c).StartRuns(l.ctx, "w", lease) }
	},
	"Heartbeat": func(l *loss) call {
		lease := l.lease(true, perdure.Submission{})
		l.once = func(got any) {
			if b := got.(*api.Beaten); len(b.Lost) != 0 {
				l.t.Errorf("Heartbeat: %+v, want nothing lost", b)
			}
		}
		return func(c *client.Client) (any, error) {
			return session.Of(c).Heartbeat(l.ctx, "w", api.Beat{RunID: lease.RunID, Epoch: lease.Epoch})
		}
	},
	"Commit": func(l *loss) call {
		lease := l.lease(true, perdure.Submission{})
		l.once = func(got any) {
			if res := got.([]api.CommitResult); !res[0].OK || res[0].State != perdure.Completed {
				l.t.Errorf("Commit: %+v, want OK and completed", res)
			}
		}
		return func(c *client.Client) (any, error) {
			return session.Of(c).Commit(l.ctx, "w", perdure.Commit{ID: "1", RunID: lease.RunID, Epoch: lease.Epoch,
				Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete}})
		}
	},
	"TakeLimits": func(l *loss) call {
		l.limit("take", 2, false)
		lease := l.lease(true, perdure.Submission{})
		l.once = func(got any) { // the retry finds that the step has its slot
			x := ok[*api.Limit](l.t)(l.c.Limit(l.ctx, "take"))
			if res := got.([]api.StepTaken); !res[0].Taken || x.Leased != 1 {
				l.t.Errorf("TakeLimits: %+v, limit %+v, want one slot taken", res, x)
			}
		}
		return func(c *client.Client) (any, error) {
			return session.Of(c).TakeLimits(l.ctx, "w", api.StepLimits{Lease: lease, Step: "call#1",
				Limits: []perdure.LimitTake{{Name: "take"}}})
		}
	},
	"Release": func(l *loss) call {
		lease := l.lease(true, perdure.Submission{})
		l.once = func(got any) { // the retry finds the lease gone, and the run was released once
			res := got.([]api.LeaseResult)
			r := ok[*api.Run](l.t)(l.c.Get(l.ctx, lease.RunID))
			stale := res[0].Error != nil && res[0].Error.Code == perdure.CodeStaleEpoch
			if !stale || r.State != perdure.Queued || r.Epoch != lease.Epoch+1 || r.Attempt != 1 {
				l.t.Errorf("Release: %+v, run %+v, want %s and the run queued in epoch %d",
					res, r, perdure.CodeStaleEpoch, lease.Epoch+1)
			}
		}
		return func(c *client.Client) (any, error) {
			return session.Of(c).Release(l.ctx, "w", api.ReleasedLease{Lease: lease})
		}
	},
	"Poll": func(l *loss) call {
		id := l.run(perdure.Submission{})
		l.once = func(got any) { // the run of the lost answer is granted again
			if p := got.(*api.Polled); len(p.Runs) != 1 || p.Runs[0].RunID != id || p.Runs[0].Attempt != 1 {
				l.t.Errorf("Poll: %+v, want run %s in its first attempt", p, id)
			}
		}
		return func(c *client.Client) (any, error) {
			_, err := session.Of(c).Poll(l.ctx, "w", api.Poll{Slots: 1})
			if client.CodeOf(err) != perdure.CodeUnknown { // Poll is not retried; a worker's loop polls again
				return nil, fmt.Errorf("sent again: %w", err)
			}
			return session.Of(c).Poll(l.ctx, "w", api.Poll{Slots: 1})
		}
	},
}

// announcedMeanwhile has a worker announce a kind before and after its deletion. The kind stays.
func (l *loss) announcedMeanwhile(in api.AnnounceKind) {
	l.t.Helper()
	announce := func() { ok[*api.KindAnnounced](l.t)(session.Of(l.c).AnnounceKind(l.ctx, "job", in)) }
	announce()
	l.between = announce
	l.once = func(any) {
		if list := ok[[]api.Kind](l.t)(l.c.Kinds(l.ctx)); len(list) != 1 {
			l.t.Errorf("%d kinds, want 1: the retry deleted what was announced since", len(list))
		}
	}
}

// oneKey checks that one of the created keys is valid: the one whose secret the caller has.
func (l *loss) oneKey(made *api.NewKey, lister *client.Client) {
	l.t.Helper()
	mine := l.as(made.Secret)
	if lister == nil {
		lister = mine
	}
	good := 0
	for _, k := range ok[[]perdure.Key](l.t)(admin.New(lister).Keys(l.ctx)) {
		if k.Name == "k" && k.RevokedAt == 0 {
			good++
		}
	}
	if good != 1 || l.lost["key_id"] == made.ID {
		l.t.Errorf("%d valid keys, want 1; the secret of %v was lost, and the caller has %s",
			good, l.lost["key_id"], made.ID)
	}
	ok[[]perdure.Key](l.t)(admin.New(mine).Keys(l.ctx))
}

func TestEveryCallWithLostAnswerCountsOnce(t *testing.T) {
	seen := make(map[string]reflect.Type)
	for _, of := range clients {
		for m := range of.Methods() {
			if _, changes := mutations[m.Name]; changes == slices.Contains(reading, m.Name) {
				t.Errorf("%s.%s needs a row in mutations if it changes something, or its name in reading", of, m.Name)
			}
			if other := seen[m.Name]; other != nil {
				t.Errorf("%s.%s is also a method of %s, want one place for it", of, m.Name, other)
			}
			seen[m.Name] = of
		}
	}
	for name := range mutations {
		if seen[name] == nil {
			t.Errorf("mutations has a row for %s, which is no method", name)
		}
	}
	for name, prepare := range mutations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := perdure.DefaultPolicy()
			policy.DispatchedRetry = 50 * time.Millisecond
			srv := servertest.Open(t, embedded.Options{Store: storetest.Address(t), Policy: &policy,
				WebhookAllow: []string{"127.0.0.0/8"}})
			letters := make(chan string, 10)
			sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				letters <- r.Header.Get("webhook-id")
			}))
			t.Cleanup(sink.Close)
			as := func(key string) *client.Client {
				return client.New("http://perdure", key, client.Options{Transport: srv.Transport()})
			}
			l := &loss{t: t, ctx: within(t), c: as(srv.Key()), as: as, sink: sink.URL, letters: letters}
			call := prepare(l)
			sent := 0
			wire := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
				res, err := srv.Transport().RoundTrip(r)
				if sent++; sent > 1 || err != nil {
					return res, err
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode/100 != 2 || json.Unmarshal(body, &l.lost) != nil {
					t.Errorf("the first answer: %d %s, %v, want 2xx with JSON", res.StatusCode, body, err)
				}
				if l.between != nil {
					l.between()
				}
				return nil, errors.New("the connection was reset")
			})
			got, err := call(client.New("http://perdure", srv.Key(), client.Options{Transport: wire}))
			if err != nil || sent < 2 {
				t.Fatalf("sent %d times: %v, want at least 2 times and no error", sent, err)
			}
			l.once(got)
		})
	}
}

// Calls of the worker protocol are idempotent by their epoch, commit_id or build.
func TestEveryCallThatChangesSomethingTakesCallOptions(t *testing.T) {
	for _, of := range clients {
		for m := range of.Methods() {
			_, changes := mutations[m.Name]
			want := changes && of != reflect.TypeFor[session.Protocol]()
			n := m.Type.NumIn()
			got := n > 0 && m.Type.In(n-1) == reflect.TypeFor[[]client.CallOptions]()
			if got != want {
				t.Errorf("%s.%s takes CallOptions: %t, want %t", of, m.Name, got, want)
			}
		}
	}
}

func TestCallersIdempotencyKey(t *testing.T) {
	w := open(t, false, nil)
	ctx, c := within(t), w.Client()
	in := api.CreateKey{Name: "k", Scopes: []string{"runs:read"}}
	first := ok[*api.NewKey](t)(admin.New(c).CreateKey(ctx, in, client.IdempotencyKey("mine")))
	// A second call must not revoke the key, whose secret the first caller has.
	again := ok[*api.NewKey](t)(admin.New(c).CreateKey(ctx, in, client.IdempotencyKey("mine")))
	if first.Secret == "" || again.Secret != "" || again.ID != first.ID || again.RevokedAt != 0 {
		t.Errorf("keys %+v, then %+v, want the same key, the second time without its secret", first, again)
	}
	a := ok[*api.Thread](t)(c.CreateThread(ctx, nil, client.IdempotencyKey("mine")))
	if b := ok[*api.Thread](t)(c.CreateThread(ctx, nil, client.IdempotencyKey("mine"))); a.ThreadID != b.ThreadID {
		t.Errorf("threads %s, then %s, want the same", a.ThreadID, b.ThreadID)
	}
	if _, err := c.CreateThread(ctx, nil, client.IdempotencyKey("")); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("an empty idempotency key: %v, want %s", err, perdure.CodeInvalid)
	}
}

func TestCancelContinuesAfterServerShutdown(t *testing.T) {
	w := open(t, false, nil)
	ctx, c := within(t), w.Client()
	run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
	g := ok[*api.Polled](t)(session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
	// The first answer comes before the run has ended, as from a server that shuts down.
	var keys []string
	x := servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) == 1 {
			r.URL.RawQuery = "wait=0s"
		} else {
			ok[[]api.CommitResult](t)(session.Of(c).Commit(ctx, "w",
				perdure.Commit{ID: "c", RunID: g.RunID, Epoch: g.Epoch, CancelAck: true,
					Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}}))
		}
		return w.Wire.RoundTrip(r)
	})
	run, err := client.New(w.URL, w.Key(), client.Options{Transport: x}).Cancel(ctx, run.RunID, "enough",
		time.Minute)
	if err != nil || run.State != perdure.Cancelled || len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("Cancel = %+v, %v, with the keys %v, want a cancelled run and one key used twice", run, err, keys)
	}
}
