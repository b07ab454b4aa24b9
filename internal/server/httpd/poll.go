package httpd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/httpd/waiting"
)

const (
	// maxPairs bounds the pairs of a queue and a kind that a poll reads. A claim is one operation
	// of the store's only writer.
	maxPairs = 1000
)

// pollBody is api.Poll as it is received. The pointer tells a wait of 0s from one that is not
// given.
type pollBody struct {
	api.Poll
	Wait *perdure.Duration `json:"wait,omitempty"`
}

func pollRuns(c *call, in *pollBody) (int, *api.Polled, error) {
	wait := 30 * time.Second
	if in.Wait != nil {
		wait = time.Duration(*in.Wait)
	}
	if most := c.s.opt.MaxPollWait; wait < 0 || wait > most {
		return 0, nil, perdure.Invalid("wait", "must lie between 0s and %s", most)
	}
	if in.AllTenants && !c.key.Platform {
		return 0, nil, perdure.Errorf(api.CodeForbidden, "only a key of the platform leases for all tenants")
	}
	if len(in.ExceptTenants) > 0 && (!in.AllTenants || in.News) {
		return 0, nil, perdure.Invalid("except_tenants", "is for a poll with all_tenants")
	}
	if in.News {
		return pollNews(c, in, wait)
	}
	if len(in.Holding) > 0 {
		return 0, nil, perdure.Invalid("holding", "is for a poll for news")
	}
	if len(in.RunIDs) > 0 {
		return pollNamed(c, in)
	}
	op, err := claimOf(c, in)
	if err != nil {
		return 0, nil, err
	}
	status, out, err := pollLoop(c, op, wait)
	handBack(c, out)
	return status, out, err
}

// pollNamed leases the runs that a poll names. It does not wait for them.
func pollNamed(c *call, in *pollBody) (int, *api.Polled, error) {
	if len(in.Queues) > 0 || len(in.Kinds) > 0 || in.AllTenants {
		return 0, nil, perdure.Invalid("run_ids", "stands without queues, kinds and all_tenants")
	}
	op := &dispatch.Claim{Tenant: c.tenant(), Worker: c.worker(), Runs: in.RunIDs,
		Slots: in.Slots, Start: in.Start, Confirms: in.Confirms, Build: in.Build, Release: in.Release}
	out := &api.Polled{Runs: []api.Grant{}}
	err := leaseOnce(c, op, out)
	handBack(c, out)
	return 0, out, err
}

// handBack releases the runs of a worker that has hung up meanwhile. Otherwise these runs
// would wait for the end of leases that nobody knows of.
func handBack(c *call, out *api.Polled) {
	if out == nil || len(out.Runs) == 0 || c.Context().Err() == nil {
		return
	}
	leases := make(map[perdure.TenantID][]life.Lease)
	for _, g := range out.Runs {
		t := cmp.Or(g.Tenant, c.tenant())
		leases[t] = append(leases[t], life.Lease{RunID: g.RunID, Epoch: g.Epoch})
	}
	for t, l := range leases {
		op := &life.Release{Tenant: t, Worker: c.worker(), Leases: l, Unsent: true}
		if err := c.s.engine.Do(context.WithoutCancel(c.Context()), op); err != nil {
			c.s.log.Warn("runs of a worker that hung up wait for the end of their leases", "runs", len(l), "error", err)
		}
	}
}

// maxExcept bounds the tenants that a poll leaves out.
const maxExcept = 100

// claimOf makes the operation of a poll.
func claimOf(c *call, in *pollBody) (*dispatch.Claim, error) {
	op := &dispatch.Claim{Tenant: c.tenant(), AnyTenant: in.AllTenants, Except: in.ExceptTenants,
		Worker: c.worker(), Queues: in.Queues, Kinds: in.Kinds, Slots: in.Slots, Start: in.Start,
		Confirms: in.Confirms, Build: in.Build, Release: in.Release, Key: c.key.ID, KeyExpires: c.key.ExpiresAt}
	if len(op.Queues) == 0 {
		op.Queues = []string{perdure.DefaultQueue}
	}
	if len(op.Queues) > 100 || len(op.Kinds) > 1000 {
		return nil, perdure.Errorf(perdure.CodeTooLarge, "a poll names at most 100 queues and 1000 kinds")
	}
	if len(op.Queues)*len(op.Kinds) > maxPairs {
		return nil, perdure.Errorf(perdure.CodeTooLarge,
			"a poll looks at no more than %d pairs of a queue and a kind", maxPairs)
	}
	if len(op.Except) > maxExcept {
		return nil, perdure.Errorf(perdure.CodeTooLarge, "a poll leaves out at most %d tenants", maxExcept)
	}
	for i, t := range op.Except {
		if err := perdure.CheckName(fmt.Sprintf("except_tenants[%d]", i), string(t)); err != nil {
			return nil, err
		}
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

// pollLoop claims runs until it gets some or the time has passed. Before it blocks for the first time
// it asks the limiter. A poll that may not block has claimed once, and is refused if it got
// nothing.
func pollLoop(c *call, op *dispatch.Claim, wait time.Duration) (int, *api.Polled, error) {
	topics := op.Topics()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	out := &api.Polled{Runs: []api.Grant{}}
	defer c.share.unblock()
	for {
		rung, stop := c.s.bell.Listen(topics...)
		if err := leaseOnce(c, op, out); err != nil || len(out.Runs) > 0 {
			stop()
			return 0, out, err
		}
		if wait == 0 {
			stop()
			return 0, out, nil
		}
		err := c.watchKey()
		if err == nil {
			err = block(c, stream.Poll)
		}
		if err != nil {
			stop()
			return 0, nil, err
		}
		// The server rings for all claimable runs every Poll. This timer is for a ring that gets
		// lost.
		fallback := time.NewTimer(10*c.s.opt.Poll + rand.N(10*c.s.opt.Poll))
		standby := c.s.engine.StandBy(op)
		why := c.s.waits.Pause(c.Context(),
			waiting.Pause{Rung: rung, Also: standby.Settled(), Fallback: fallback.C, Deadline: deadline.C})
		fallback.Stop()
		stop()
		if op.Grants = standby.End(); len(op.Grants) > 0 {
			addGrants(c, op, out)
			return 0, out, nil
		}
		if why == waiting.Over {
			return 0, out, nil
		}
	}
}

// leaseOnce looks at all places once and adds the grants to the answer. It reserves memory for them first, and
// limits the claim to that.
func leaseOnce(c *call, op *dispatch.Claim, out *api.Polled) error {
	if err := c.checkKey(); err != nil { // the key may have been revoked while the poll waited
		return err
	}
	room, err := c.share.reservePoll(c.Context())
	if err != nil {
		return err
	}
	op.Room = int(room)
	// A claim reads a bounded number of rows. A poll for more places goes on, one claim after the
	// other, until it has found a run or seen all of them.
	for op.More = true; op.More; {
		if err := c.s.engine.Do(c.Context(), op); err != nil {
			return err
		}
		c.s.pollReads.Add(1)
	}
	if len(op.Grants) == 0 {
		c.share.releaseAnswer()
		return nil
	}
	addGrants(c, op, out)
	return nil
}

// addGrants adds the grants of a claim to the answer.
func addGrants(c *call, op *dispatch.Claim, out *api.Polled) {
	c.share.changed = true
	for i := range op.Grants {
		if c.key.Platform {
			c.s.runTenants.put(op.Grants[i].Run.ID, op.Grants[i].Run.Tenant)
		}
		c.found += int64(op.Grants[i].Size())
		out.Runs = append(out.Runs, grant(&op.Grants[i], op.AnyTenant, c.s.engine))
	}
	op.Grants = nil
}

// grant shows a grant to its worker. named adds the tenant, which a worker for all tenants needs.
// The signature covers the tenant, so a signed run always has it.
func grant(g *dispatch.Grant, named bool, e *engine.Engine) api.Grant {
	r, p := &g.Run, e.Policy()
	out := api.Grant{RunID: r.ID, Epoch: r.Epoch, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Kind: r.Kind,
		Class: r.Class, Queue: r.Queue, ThreadID: r.ThreadID, ParentRunID: r.ParentID,
		RootRunID: r.RootID, State: r.State, Input: json.RawMessage(g.Input),
		LeaseMS: p.Lease.Milliseconds(), DeadlineAt: r.DeadlineAt,
		Journal: journal(g.Journal), JournalNext: g.JournalNext,
		OriginRunID: r.Origin(), FirstEpoch: r.FirstEpoch,
		Inbox: items(g.Inbox), InboxNext: g.InboxNext, Cancel: g.Cancel}
	if g.Cancel {
		out.CancelWhy = r.Cancel.Reason
	}
	if !r.Signature.IsZero() {
		out.Signature = &r.Signature
	}
	if r.Class == perdure.Process {
		out.ResultToken = e.ProcessTokens(r.Tenant, r.ID, r.Epoch)[0]
	}
	if named || out.Signature != nil || out.ResultToken != "" {
		out.Tenant = r.Tenant
	}
	return out
}

func journal(rows []life.JournalRow) []api.JournalEntry {
	out := make([]api.JournalEntry, len(rows))
	for i, j := range rows {
		out[i] = api.JournalEntry{Seq: j.Seq, Key: j.Key, Value: json.RawMessage(cmp.Or(j.Value, "null"))}
	}
	return out
}

// items returns a list that is encoded as [] if it is empty.
func items(list []perdure.Item) []perdure.Item {
	if list == nil {
		return []perdure.Item{}
	}
	return list
}
