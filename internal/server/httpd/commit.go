package httpd

import (
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// A call with many commits is cut into batches of at most so many commits, entries and bytes. A
// single commit is never cut.
const (
	maxBatchCommits = 128
	maxBatchEntries = perdure.MaxCommitEntries
	maxBatchBytes   = perdure.MaxCommitBytes
)

// commitParts returns the index after the last commit of each batch.
func commitParts(list []perdure.Commit) (parts []int) {
	from, entries, bytes := 0, 0, 0
	for i := range list {
		n, size := 1+list[i].Entries(), list[i].Size()
		if i > from && (i-from == maxBatchCommits || entries+n > maxBatchEntries || bytes+size > maxBatchBytes) {
			parts, from, entries, bytes = append(parts, i), i, 0, 0
		}
		entries, bytes = entries+n, bytes+size
	}
	return append(parts, len(list))
}

// commit writes a list of commits. Each has its own result. If there is only one and it is refused,
// its refusal is the error of the call.
func commit(c *call, in *api.Commits) (int, *api.CommitResults, error) {
	if len(in.Commits) == 0 || len(in.Commits) > perdure.MaxList {
		return 0, nil, perdure.Invalid("commits", "has 1 to %d entries", perdure.MaxList)
	}
	ops := make([]*life.Commit, len(in.Commits))
	list := make([]kernel.Op, len(in.Commits))
	errs := make([]error, len(in.Commits))
	for i, cm := range in.Commits {
		t, err := c.tenantOf(cm.RunID)
		if err != nil {
			return 0, nil, err
		}
		ops[i] = &life.Commit{Tenant: t, Worker: c.worker(), Commit: cm}
		list[i] = ops[i]
	}
	// The commits are written in batches that leave room for other operations. Commits of one run
	// keep their order.
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
