package httpd

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// A leaseOp runs an operation on leases of one tenant, and returns a result for each.
type leaseOp func(t perdure.TenantID, l []life.Lease) ([]life.LeaseResult, error)

// eachLease runs an operation on a worker's leases, tenant by tenant. The results have the order of
// the request. If the request has a single lease, its refusal is the error of the call.
func eachLease(c *call, in []api.ReleasedLease, do leaseOp) (int, *api.LeaseResults, error) {
	if len(in) == 0 || len(in) > perdure.MaxList {
		return 0, nil, perdure.Invalid("runs", "names 1 to %d runs", perdure.MaxList)
	}
	ids := make([]perdure.RunID, len(in))
	for i, l := range in {
		ids[i] = l.RunID
	}
	parts, err := byTenant(c, ids)
	if err != nil {
		return 0, nil, err
	}
	out := &api.LeaseResults{Results: make([]api.LeaseResult, len(in))}
	for t, at := range parts {
		list := make([]life.Lease, len(at))
		for k, i := range at {
			list[k] = life.Lease{RunID: in[i].RunID, Epoch: in[i].Epoch, NotBefore: in[i].NotBefore}
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

func leaseResult(r life.LeaseResult) api.LeaseResult {
	return api.LeaseResult{RunID: r.RunID, Epoch: r.Epoch, OK: r.OK, Cancel: r.Cancel, Error: refusal(r.Error)}
}

func startLeased(c *call, in *api.StartRuns) (int, *api.LeaseResults, error) {
	leases := make([]api.ReleasedLease, len(in.Runs))
	for i, l := range in.Runs {
		leases[i].Lease = l
	}
	return eachLease(c, leases, func(t perdure.TenantID, l []life.Lease) ([]life.LeaseResult, error) {
		op := &life.Start{Tenant: t, Worker: c.worker(), Leases: l}
		err := c.s.engine.Do(c.Context(), op)
		return op.Results, err
	})
}

func releaseRuns(c *call, in *api.ReleaseRuns) (int, *api.LeaseResults, error) {
	return eachLease(c, in.Runs, func(t perdure.TenantID, l []life.Lease) ([]life.LeaseResult, error) {
		op := &life.Release{Tenant: t, Worker: c.worker(), Leases: l}
		err := c.s.engine.Do(c.Context(), op)
		return op.Results, err
	})
}

// stepsAtOnce bounds the steps of one operation, each of which may write its run and four limits.
const stepsAtOnce = 250

func takeLimits(c *call, in *api.TakeLimits) (int, *api.LimitsTaken, error) {
	if len(in.Steps) == 0 || len(in.Steps) > perdure.MaxList {
		return 0, nil, perdure.Invalid("steps", "names 1 to %d steps", perdure.MaxList)
	}
	ids := make([]perdure.RunID, len(in.Steps))
	for i := range in.Steps {
		ids[i] = in.Steps[i].RunID
	}
	parts, err := byTenant(c, ids)
	if err != nil {
		return 0, nil, err
	}
	out := &api.LimitsTaken{Results: make([]api.StepTaken, len(in.Steps))}
	for t, at := range parts {
		for at := range slices.Chunk(at, stepsAtOnce) {
			op := &life.TakeLimits{Tenant: t, Worker: c.worker()}
			for _, i := range at {
				s := &in.Steps[i]
				op.Takes = append(op.Takes, life.StepTake{
					Lease: life.Lease{RunID: s.RunID, Epoch: s.Epoch},
					Step:  s.Step, Limits: s.Limits, Try: s.Try, GiveBack: s.GiveBack,
				})
			}
			if err := c.s.engine.Do(c.Context(), op); err != nil {
				return 0, nil, err
			}
			for k, i := range at {
				r := &op.Results[k]
				out.Results[i] = api.StepTaken{LeaseResult: leaseResult(r.LeaseResult), Taken: r.Taken,
					BlockedBy: r.Blocked, RetryMS: r.Retry.Milliseconds()}
			}
		}
	}
	if e := out.Results[0].Error; len(in.Steps) == 1 && e != nil {
		return 0, nil, within("steps[0]", &perdure.Error{Code: e.Code, Message: e.Detail, Field: e.Field})
	}
	return 0, out, nil
}

func heartbeat(c *call, in *api.Beats) (int, *api.Beaten, error) {
	ids := make([]perdure.RunID, len(in.Runs))
	for i, b := range in.Runs {
		// A malformed beat is an error of the call. As a lost lease it would make the worker stop
		// its work.
		if err := checkBeat(fmt.Sprintf("runs[%d]", i), &b); err != nil {
			return 0, nil, err
		}
		ids[i] = b.RunID
	}
	parts, err := byTenant(c, ids)
	if err != nil {
		return 0, nil, err
	}
	if len(in.Runs) == 0 {
		parts[c.tenant()] = nil // a worker without runs still gives a sign of life
	}
	out := &api.Beaten{Lost: []api.LeaseResult{}, Cancel: []api.LeaseResult{}}
	for t, at := range parts {
		op := &life.Heartbeat{Tenant: t, Worker: c.worker()}
		for _, i := range at {
			b := in.Runs[i]
			op.Beats = append(op.Beats, life.BeatOf{Lease: life.Lease{RunID: b.RunID, Epoch: b.Epoch},
				Activity: b.Activity, Progress: b.Progress, CancelAck: b.CancelAck})
		}
		if err := c.s.engine.Do(c.Context(), op); err != nil {
			return 0, nil, err
		}
		for _, r := range op.Lost {
			lost := leaseResult(r)
			if lost.NewEpoch = r.NewEpoch; r.NewEpoch != 0 {
				lost.ResultToken = c.s.engine.ProcessTokens(t, r.RunID, r.NewEpoch)[0]
			}
			out.Lost = append(out.Lost, lost)
		}
		for _, r := range op.Later {
			out.Later = append(out.Later, leaseResult(r))
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

func runJournal(c *call, _ *none) (int, *api.JournalPage, error) {
	epoch, after, limit, t, err := leaseQuery(c)
	if err != nil {
		return 0, nil, err
	}
	op := &life.Journal{Tenant: t, RunID: c.run(), Epoch: epoch, After: after}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if len(op.Page) > limit {
		op.Page, op.Next = op.Page[:limit], op.Page[limit-1].Seq
	}
	return 0, &api.JournalPage{Journal: journal(op.Page), Next: op.Next}, nil
}

func runInbox(c *call, _ *none) (int, *api.InboxPage, error) {
	epoch, after, limit, t, err := leaseQuery(c)
	if err != nil {
		return 0, nil, err
	}
	op := &life.Inbox{Tenant: t, RunID: c.run(), Epoch: epoch, After: after}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if len(op.Page) > limit { // the rest is marked as processing already, and the next page has it again
		op.Page, op.Next = op.Page[:limit], op.Page[limit-1].Seq
	}
	return 0, &api.InboxPage{Inbox: items(op.Page), Next: op.Next}, nil
}

func runMessages(c *call, _ *none) (int, *api.Messages, error) {
	epoch, after, limit, t, err := leaseQuery(c)
	if err != nil {
		return 0, nil, err
	}
	before, err := c.intParam("before", 0, 0, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	ms, err := c.s.engine.Runs.History(c.Context(), t, c.run(), epoch,
		reads.ThreadPart{After: after, Before: before, Limit: limit})
	if err != nil {
		return 0, nil, err
	}
	out := showMessages(ms, after)
	if before > 0 {
		out.NextAfter = after
		out.NextBefore = new(int64)
		if n := len(ms); n > 0 {
			*out.NextBefore = ms[n-1].Seq
		}
	}
	return 0, out, nil
}

// leaseQuery reads the parameters of a call about a leased run, and finds the run's tenant.
func leaseQuery(c *call) (epoch, after int64, limit int, t perdure.TenantID, err error) {
	if epoch, err = c.intParam("epoch", 0, 0, maxSeq); err != nil {
		return 0, 0, 0, "", err
	}
	if after, err = c.intParam("after", 0, 0, maxSeq); err != nil {
		return 0, 0, 0, "", err
	}
	n, err := c.intParam("limit", perdure.MaxList, 1, perdure.MaxList)
	if err != nil {
		return 0, 0, 0, "", err
	}
	t, err = c.tenantOf(c.run())
	return epoch, after, int(n), t, err
}

// byTenant groups the indexes of runs by their tenant.
func byTenant(c *call, ids []perdure.RunID) (map[perdure.TenantID][]int, error) {
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
