package httpd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// maxPoll bounds a long poll, and maxPairs what it looks at: all of it is one step of the store's only writer.
const (
	maxPoll  = time.Minute
	maxPairs = 1000
)

// pollBody is api.Poll as it comes in: a wait of 0s is one, and not the default.
type pollBody struct {
	api.Poll
	Wait *perdure.Duration `json:"wait,omitempty"`
}

func pollRuns(c *call, in *pollBody) (int, *api.Polled, error) {
	wait := 30 * time.Second
	if in.Wait != nil {
		wait = time.Duration(*in.Wait)
	}
	if wait < 0 || wait > maxPoll {
		return 0, nil, perdure.Invalid("wait", "must lie between 0s and %s", maxPoll)
	}
	if in.AllTenants && !c.key.Platform {
		return 0, nil, perdure.Errorf(api.CodeForbidden, "only a key of the platform leases for all tenants")
	}
	if in.News {
		return pollNews(c, in, wait)
	}
	if len(in.Holding) > 0 {
		return 0, nil, perdure.Invalid("holding", "is for a poll for news")
	}
	op, err := c.claim(in)
	if err != nil {
		return 0, nil, err
	}
	return c.poll(op, wait)
}

// claim is what a poll asks for.
func (c *call) claim(in *pollBody) (*engine.Claim, error) {
	op := &engine.Claim{Tenant: c.tenant(), AnyTenant: in.AllTenants, Worker: c.PathValue("id"), Queues: in.Queues, Kinds: in.Kinds, Slots: in.Slots, Start: in.Start}
	if len(op.Queues) == 0 {
		op.Queues = []string{perdure.DefaultQueue}
	}
	if len(op.Queues) > 100 || len(op.Kinds) > 1000 {
		return nil, perdure.Errorf(perdure.CodeTooLarge, "a poll names at most 100 queues and 1000 kinds")
	}
	if len(op.Queues)*len(op.Kinds) > maxPairs {
		return nil, perdure.Errorf(perdure.CodeTooLarge, "a poll looks at no more than %d pairs of a queue and a kind", maxPairs)
	}
	for i, q := range op.Queues {
		if err := perdure.CheckName(fmt.Sprintf("queues[%d]", i), q); err != nil {
			return nil, err
		}
	}
	for i, k := range op.Kinds {
		if err := perdure.CheckName(fmt.Sprintf("kinds[%d]", i), k); err != nil {
			return nil, err
		}
	}
	return op, nil
}

// poll looks for runs until there are some, or the time has passed. It takes a seat before it waits. Without one
// it has looked once, and is refused if it found nothing.
func (c *call) poll(op *engine.Claim, wait time.Duration) (int, *api.Polled, error) {
	topics := pollTopics(op)
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	out := &api.Polled{Runs: []api.Grant{}}
	var leave func() // its seat; nil: it has none yet
	defer func() {
		if leave != nil {
			leave()
		}
	}()
	for {
		rung, stop := c.s.bell.Listen(topics...)
		if err := c.lease(op, out); err != nil || len(out.Runs) > 0 {
			stop()
			return 0, out, err
		}
		if wait == 0 {
			stop()
			return 0, out, nil
		}
		err := c.hold()
		if err == nil && leave == nil {
			leave, err = c.seat(stream.Poll)
		}
		if err != nil {
			stop()
			return 0, nil, err
		}
		// Nobody needs to look by himself: the server looks for all once a second. This is for what that misses.
		again := time.NewTimer(10*c.s.opt.Poll + rand.N(10*c.s.opt.Poll))
		more := false
		select {
		case <-rung:
			more = true
		case <-again.C:
			more = true
		case <-deadline.C:
		case <-c.Context().Done():
		case <-c.s.closing:
		}
		again.Stop()
		stop()
		if !more {
			return 0, out, nil
		}
	}
}

// lease looks once, and puts what it leases into the answer. Memory for that is reserved before.
func (c *call) lease(op *engine.Claim, out *api.Polled) error {
	if err := c.valid(); err != nil { // nothing is granted under a key that died meanwhile
		return err
	}
	room, err := c.pollRoom()
	if err != nil {
		return err
	}
	op.Room = int(room)
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return err
	}
	c.s.looks.Add(1)
	if len(op.Grants) == 0 {
		c.leaveAnswer()
		return nil
	}
	c.changed = true
	for i := range op.Grants {
		if c.key.Platform {
			c.s.owners.note(op.Grants[i].Run.ID, op.Grants[i].Run.Tenant)
		}
		c.found += int64(op.Grants[i].Size())
		out.Runs = append(out.Runs, grant(&op.Grants[i], op.AnyTenant, c.s.engine.Policy()))
	}
	op.Grants = nil
	return nil
}

// pollTopics is what a poll listens for: its kinds in its queues.
func pollTopics(op *engine.Claim) (out []doorbell.Topic) {
	for _, q := range op.Queues {
		t := doorbell.Queue(op.Tenant, q)
		if op.AnyTenant {
			t.Tenant = ""
		}
		if len(op.Kinds) == 0 {
			out = append(out, t)
		}
		for _, k := range op.Kinds {
			out = append(out, t.Of(k))
		}
	}
	return out
}

func grant(g *engine.Grant, named bool, p *perdure.Policy) api.Grant {
	r := &g.Run
	out := api.Grant{RunID: r.ID, Epoch: r.Epoch, Attempt: r.Attempt, Kind: r.Kind, Class: r.Class, Queue: r.Queue, ThreadID: r.ThreadID,
		ParentRunID: r.ParentID, RootRunID: r.RootID, State: r.State, Input: json.RawMessage(g.Input), LeaseMS: p.Lease.Milliseconds(), DeadlineAt: r.DeadlineAt,
		Journal: journal(g.Journal), JournalNext: g.JournalNext, Inbox: items(g.Inbox), InboxNext: g.InboxNext, Cancel: g.Cancel}
	if g.Cancel {
		out.CancelWhy = r.Cancel.Reason
	}
	if !r.Signature.IsZero() {
		out.Signature = &r.Signature
	}
	if named || out.Signature != nil {
		out.Tenant = r.Tenant
	}
	return out
}

func journal(rows []engine.JournalRow) []api.JournalEntry {
	out := make([]api.JournalEntry, len(rows))
	for i, j := range rows {
		out[i] = api.JournalEntry{Seq: j.Seq, Key: j.Key, Value: json.RawMessage(cmp.Or(j.Value, "null"))}
	}
	return out
}

func items(list []perdure.Item) []perdure.Item {
	if list == nil {
		return []perdure.Item{}
	}
	return list
}

// tenantOf is whose run this is: the key's tenant, unless a worker of the platform leases for others.
func (c *call) tenantOf(id perdure.RunID) (perdure.TenantID, error) {
	if !c.key.Platform {
		return c.tenant(), nil
	}
	if t, ok := c.s.owners.of(id); ok {
		return t, nil
	}
	return c.s.engine.Runs.TenantOf(c.Context(), id, c.tenant())
}

// owners remembers whose the runs are that were leased to workers of the platform: that never changes, and every
// heartbeat and commit of theirs asks.
type owners struct {
	mu         sync.Mutex
	young, old map[perdure.RunID]perdure.TenantID
}

const maxOwners = 1 << 16

func (o *owners) note(id perdure.RunID, t perdure.TenantID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.young == nil || len(o.young) >= maxOwners {
		o.young, o.old = make(map[perdure.RunID]perdure.TenantID), o.young
	}
	o.young[id] = t
}

func (o *owners) of(id perdure.RunID) (perdure.TenantID, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t, ok := o.young[id]
	if !ok {
		t, ok = o.old[id]
	}
	return t, ok
}

func (c *call) byTenant(ids []perdure.RunID) (map[perdure.TenantID][]int, error) {
	out := make(map[perdure.TenantID][]int)
	for i, id := range ids {
		t, err := c.tenantOf(id)
		if err != nil {
			return nil, err
		}
		out[t] = append(out[t], i)
	}
	return out, nil
}

// leases does something with a worker's leases, tenant by tenant, and answers in order.
func (c *call) leases(in []api.Lease, do func(t perdure.TenantID, l []engine.Lease) ([]engine.LeaseResult, error)) (int, *api.LeaseResults, error) {
	if len(in) == 0 || len(in) > perdure.MaxBatch {
		return 0, nil, perdure.Invalid("runs", "names 1 to %d runs", perdure.MaxBatch)
	}
	ids := make([]perdure.RunID, len(in))
	for i, l := range in {
		ids[i] = l.RunID
	}
	parts, err := c.byTenant(ids)
	if err != nil {
		return 0, nil, err
	}
	out := &api.LeaseResults{Results: make([]api.LeaseResult, len(in))}
	for t, at := range parts {
		list := make([]engine.Lease, len(at))
		for k, i := range at {
			list[k] = engine.Lease{RunID: in[i].RunID, Epoch: in[i].Epoch}
		}
		results, err := do(t, list)
		if err != nil {
			return 0, nil, err
		}
		for k, i := range at {
			out.Results[i] = leaseResult(results[k])
		}
	}
	if len(in) == 1 && out.Results[0].Error != nil {
		e := out.Results[0].Error
		return 0, nil, within("runs[0]", &perdure.Error{Code: e.Code, Message: e.Detail, Field: e.Field})
	}
	return 0, out, nil
}

func leaseResult(r engine.LeaseResult) api.LeaseResult {
	return api.LeaseResult{RunID: r.RunID, Epoch: r.Epoch, OK: r.OK, Cancel: r.Cancel, Error: refusal(r.Error)}
}

func refusal(e *perdure.Error) *api.Refusal {
	if e == nil {
		return nil
	}
	return &api.Refusal{Code: e.Code, Detail: e.Message, Field: e.Field}
}

// within names the field of a refusal as the body does that has the one thing inside that was refused.
func within(entry string, err error) error {
	var e *perdure.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	return &perdure.Error{Code: e.Code, Message: e.Message, Field: entry + "." + e.Field}
}

func startLeased(c *call, in *api.StartRuns) (int, *api.LeaseResults, error) {
	return c.leases(in.Runs, func(t perdure.TenantID, l []engine.Lease) ([]engine.LeaseResult, error) {
		op := &engine.Start{Tenant: t, Worker: c.PathValue("id"), Leases: l}
		err := c.s.engine.Do(c.Context(), op)
		return op.Results, err
	})
}

func releaseRuns(c *call, in *api.ReleaseRuns) (int, *api.LeaseResults, error) {
	return c.leases(in.Runs, func(t perdure.TenantID, l []engine.Lease) ([]engine.LeaseResult, error) {
		op := &engine.Release{Tenant: t, Worker: c.PathValue("id"), Leases: l}
		err := c.s.engine.Do(c.Context(), op)
		return op.Results, err
	})
}

func heartbeat(c *call, in *api.Beats) (int, *api.Beaten, error) {
	ids := make([]perdure.RunID, len(in.Runs))
	for i, b := range in.Runs {
		// A beat that is malformed is not a lease that is lost: nobody shall stop his work for it.
		if err := checkBeat(fmt.Sprintf("runs[%d]", i), &b); err != nil {
			return 0, nil, err
		}
		ids[i] = b.RunID
	}
	parts, err := c.byTenant(ids)
	if err != nil {
		return 0, nil, err
	}
	if len(in.Runs) == 0 {
		parts[c.tenant()] = nil // a worker without runs says that it lives
	}
	out := &api.Beaten{Lost: []api.LeaseResult{}, Cancel: []api.LeaseResult{}}
	for t, at := range parts {
		op := &engine.Heartbeat{Tenant: t, Worker: c.PathValue("id")}
		for _, i := range at {
			b := in.Runs[i]
			op.Beats = append(op.Beats, engine.BeatOf{Lease: engine.Lease{RunID: b.RunID, Epoch: b.Epoch}, Activity: b.Activity, Progress: b.Progress, CancelAck: b.CancelAck})
		}
		if err := c.s.engine.Do(c.Context(), op); err != nil {
			return 0, nil, err
		}
		for _, r := range op.Lost {
			out.Lost = append(out.Lost, leaseResult(r))
		}
		for _, r := range op.Cancel {
			out.Cancel = append(out.Cancel, leaseResult(r))
		}
	}
	return 0, out, nil
}

func checkBeat(field string, b *api.Beat) error {
	if b.RunID == "" {
		return perdure.Invalid(field+".run_id", "is missing")
	}
	if err := perdure.CheckEpoch(field+".epoch", b.Epoch); err != nil {
		return err
	}
	return perdure.CheckText(field+".activity", b.Activity)
}

// commitsAtOnce is how many commits of one call share a batch, and entriesAtOnce how many entries these have together: a
// commit is never cut, and a call of many is.
const (
	commitsAtOnce = 128
	entriesAtOnce = perdure.MaxCommitEntries
	bytesAtOnce   = perdure.MaxCommitBytes
)

// commitParts cuts a call between its commits.
func commitParts(list []perdure.Commit) (parts []int) {
	from, entries, bytes := 0, 0, 0
	for i := range list {
		n, size := 1+list[i].Entries(), list[i].Size()
		if i > from && (i-from == commitsAtOnce || entries+n > entriesAtOnce || bytes+size > bytesAtOnce) {
			parts, from, entries, bytes = append(parts, i), i, 0, 0
		}
		entries, bytes = entries+n, bytes+size
	}
	return append(parts, len(list))
}

// commit takes a batch of commits. Each has its own answer; a single one that is refused is an HTTP problem.
func commit(c *call, in *api.Commits) (int, *api.CommitResults, error) {
	if len(in.Commits) == 0 || len(in.Commits) > perdure.MaxBatch {
		return 0, nil, perdure.Invalid("commits", "has 1 to %d entries", perdure.MaxBatch)
	}
	ops := make([]*engine.Commit, len(in.Commits))
	list := make([]engine.Op, len(in.Commits))
	errs := make([]error, len(in.Commits))
	for i, cm := range in.Commits {
		t, err := c.tenantOf(cm.RunID)
		if err != nil {
			return 0, nil, err
		}
		ops[i] = &engine.Commit{Tenant: t, Worker: c.PathValue("id"), Commit: cm}
		list[i] = ops[i]
	}
	// They came together and are written together as far as a batch holds them, in parts that leave room for others. Those of one run keep their order.
	from := 0
	for _, to := range commitParts(in.Commits) {
		copy(errs[from:], c.s.engine.DoAll(c.Context(), list[from:to]...))
		from = to
	}
	out := &api.CommitResults{Results: make([]api.CommitResult, len(ops))}
	for i, op := range ops {
		r := &out.Results[i]
		r.RunID = op.Commit.RunID
		err := errs[i]
		if err == nil && op.Refused != nil {
			err = op.Refused
		}
		if err != nil {
			if len(ops) == 1 {
				return 0, nil, within("commits[0]", err)
			}
			r.Error = refusal(c.s.refused(err))
			continue
		}
		a := op.Answer
		r.OK, r.State, r.Cancel = true, a.State, a.Cancel
		for _, k := range a.Children {
			r.Children = append(r.Children, api.Child{Key: k.Key, RunID: k.RunID})
		}
		for _, k := range a.Callbacks {
			r.Callbacks = append(r.Callbacks, api.Callback{WaitID: k.WaitID, Token: k.Token})
		}
	}
	return http.StatusOK, out, nil
}

func runJournal(c *call, _ *none) (int, *api.JournalPage, error) {
	epoch, after, limit, t, err := c.leaseQuery()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.Journal{Tenant: t, RunID: c.run(), Epoch: epoch, After: after}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if len(op.Page) > limit {
		op.Page, op.Next = op.Page[:limit], op.Page[limit-1].Seq
	}
	return 0, &api.JournalPage{Journal: journal(op.Page), Next: op.Next}, nil
}

func runInbox(c *call, _ *none) (int, *api.InboxPage, error) {
	epoch, after, limit, t, err := c.leaseQuery()
	if err != nil {
		return 0, nil, err
	}
	op := &engine.Inbox{Tenant: t, RunID: c.run(), Epoch: epoch, After: after}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if len(op.Page) > limit { // what is cut off is handed over already, and comes again with the next page
		op.Page, op.Next = op.Page[:limit], op.Page[limit-1].Seq
	}
	return 0, &api.InboxPage{Inbox: items(op.Page), Next: op.Next}, nil
}

func runMessages(c *call, _ *none) (int, *api.Messages, error) {
	epoch, after, limit, t, err := c.leaseQuery()
	if err != nil {
		return 0, nil, err
	}
	ms, err := c.s.engine.Runs.History(c.Context(), t, c.run(), epoch, after, limit)
	if err != nil {
		return 0, nil, err
	}
	return 0, showMessages(ms, after), nil
}

func (c *call) leaseQuery() (epoch, after int64, limit int, t perdure.TenantID, err error) {
	if epoch, err = c.whole("epoch", 0, 0, maxSeq); err != nil {
		return 0, 0, 0, "", err
	}
	if after, err = c.whole("after", 0, 0, maxSeq); err != nil {
		return 0, 0, 0, "", err
	}
	n, err := c.whole("limit", perdure.MaxBatch, 1, perdure.MaxBatch)
	if err != nil {
		return 0, 0, 0, "", err
	}
	t, err = c.tenantOf(c.run())
	return epoch, after, int(n), t, err
}
