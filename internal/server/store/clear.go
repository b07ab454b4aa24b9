package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// The second phase of a removal; see removals.go.
//
// Each call stages one bounded part: at most clearRows rows and about clearBytes bytes. The
// removals that are due first come first. Small runs of the same tenant are removed together with
// one statement per table. A larger run, a thread or an upload is removed alone, over as many calls
// as it takes. These calls go table by table, in the order of each table's key.

// Clear stages the removal of a bounded part of what is due, oldest first. more tells whether
// something is left.
func (repo *Removals) Clear() (more bool, err error) {
	var list []removal
	err = removalTable.query(repo.in.sess,
		fmt.Sprintf("WHERE due_at<=? ORDER BY due_at, tenant, kind, id LIMIT %d", clearRuns+1),
		[]any{int64(repo.in.Now)}, func(r *removal) error {
			list = append(list, *r)
			return nil
		})
	if err != nil || len(list) == 0 {
		return false, err
	}
	small, lines := []removal(nil), int64(0)
	for _, r := range list[:min(len(list), clearRuns)] {
		if r.Kind != RemoveRun || r.Lines > smallRun || r.Tenant != list[0].Tenant {
			continue
		}
		if lines += r.Lines + int64(len(belongings[RemoveRun])); lines > clearRows {
			break
		}
		small = append(small, r)
	}
	small, hashes, err := repo.smallRuns(small)
	if err != nil {
		return false, err
	}
	if len(small) > 0 {
		repo.clearTogether(small, hashes)
	}
	more = len(list) > len(small)+1
	for _, r := range list {
		if !slices.Contains(small, r) {
			done, err := repo.clearOne(r)
			return more || !done, err
		}
	}
	return more, nil
}

// ClearOf stages the removal of a bounded part of one run, thread or upload, if it is being
// removed.
func (repo *Removals) ClearOf(t perdure.TenantID, kind, id string) (more bool, err error) {
	var list []removal
	err = removalTable.query(repo.in.sess, "WHERE tenant=? AND kind=? AND id=? AND due_at<=?",
		[]any{string(t), kind, id, int64(repo.in.Now)}, func(r *removal) error {
			list = append(list, *r)
			return nil
		})
	if err != nil || len(list) == 0 {
		return false, err
	}
	done, err := repo.clearOne(list[0])
	return !done, err
}

// Paced calls step until there is no more to do. It sleeps three times as long as each step took,
// so that the store has three quarters of the time for other work.
func Paced(ctx context.Context, step func() (more bool, err error)) error {
	for {
		began := time.Now()
		more, err := step()
		if err != nil || !more {
			return err
		}
		select {
		case <-time.After(3 * time.Since(began)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// smallRuns selects those of some runs that can be removed together: without artifacts, with few
// bytes and few values. It also gives the hashes of these values.
func (repo *Removals) smallRuns(runs []removal) (out []removal, hashes []string, err error) {
	if len(runs) == 0 {
		return nil, nil, nil
	}
	t, ids := string(runs[0].Tenant), make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.ID
	}
	heavy := make(map[string]bool)
	err = eachPart(repo.in.dialect, ids, func(part []string) error {
		cond, args := repo.in.dialect.anyOf("run_id", part)
		return repo.in.sess.Query("SELECT DISTINCT run_id FROM artifacts WHERE tenant=? AND "+cond,
			append([]any{t}, args...), func(scan func(...any) error) error {
				var id string
				err := scan(&id)
				heavy[id] = true
				return err
			})
	})
	if err != nil {
		return nil, nil, err
	}
	of, bytes := make(map[string][]string), make(map[string]int64)
	err = eachPart(repo.in.dialect, ids, func(part []string) error {
		cond, args := repo.in.dialect.anyOf("r.owner", part)
		n, last := 0, ""
		const most = 4 * clearValues
		err := repo.in.sess.Query("SELECT r.owner, r.hash, b.size FROM blob_refs r "+
			"JOIN blobs b ON b.tenant=r.tenant AND b.hash=r.hash WHERE r.tenant=? AND "+cond+" ORDER BY r.owner"+atMost,
			append(append([]any{t}, args...), int64(most)), func(scan func(...any) error) error {
				hash, size := "", int64(0)
				err := scan(&last, &hash, &size)
				of[last], bytes[last], n = append(of[last], hash), bytes[last]+size, n+1
				return err
			})
		for _, id := range part {
			if n == most && id >= last {
				heavy[id] = true // not all of its values were read
			}
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, b := range belongings[RemoveRun] {
		if b.size == "" {
			continue
		}
		err := eachPart(repo.in.dialect, ids, func(part []string) error {
			cond, args := repo.in.dialect.anyOf(b.owner, part)
			return repo.in.sess.Query("SELECT "+b.owner+", CAST(sum("+b.size+") AS BIGINT) FROM "+b.table+
				" WHERE tenant=? AND "+cond+" GROUP BY "+b.owner, append([]any{t}, args...),
				func(scan func(...any) error) error {
					id, size := "", int64(0)
					err := scan(&id, &size)
					bytes[id] += size
					return err
				})
		})
		if err != nil {
			return nil, nil, err
		}
	}
	bytesLeft := int64(clearBytes)
	for _, r := range runs {
		if heavy[r.ID] || len(hashes)+len(of[r.ID]) > clearValues || bytes[r.ID] > bytesLeft {
			continue
		}
		bytesLeft -= bytes[r.ID]
		out, hashes = append(out, r), append(hashes, of[r.ID]...)
	}
	return out, hashes, nil
}

// clearTogether stages the removal of all records of some small runs of a tenant.
func (repo *Removals) clearTogether(runs []removal, hashes []string) {
	t, ids := runs[0].Tenant, make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.ID
	}
	slices.Sort(ids)
	_ = eachPart(repo.in.dialect, ids, func(part []string) error {
		remove := func(table, owner, more string) {
			cond, args := repo.in.dialect.anyOf(owner, part)
			repo.in.tx.Stage("DELETE FROM "+table+" WHERE tenant=? AND "+more+cond,
				append([]any{string(t)}, args...)...)
		}
		for _, b := range belongings[RemoveRun] {
			remove(b.table, b.owner, "")
		}
		if len(hashes) > 0 {
			remove("blob_refs", "owner", "")
		}
		remove("removals", "id", "kind='run' AND ")
		return nil
	})
	repo.values.dropBlobs(t, hashes)
}

// clearOne stages the removal of a part of one run, thread or upload, and tells whether that was
// the last.
func (repo *Removals) clearOne(r removal) (done bool, err error) {
	if r.Kind == RemoveUpload && !repo.in.dialect.ownClock {
		// A transaction that adds a chunk holds a lock on this row. The statements that follow see
		// that chunk.
		repo.in.tx.Stage("SELECT 1 FROM removals WHERE tenant=? AND kind=? AND id=? FOR UPDATE", string(r.Tenant),
			r.Kind, r.ID)
	}
	left := part{clearRows, clearBytes}
	for _, b := range belongings[r.Kind] {
		last, more, err := repo.take(&left, b, r)
		if err != nil {
			return false, err
		}
		where, args := "DELETE FROM "+b.table+" WHERE tenant=? AND "+b.owner+"=?", []any{string(r.Tenant), r.ID}
		switch {
		case !more:
			repo.in.tx.Stage(where, args...)
			continue
		case last != nil:
			repo.in.tx.Stage(where+" AND "+b.order+"<=?", append(args, last)...)
		}
		return false, nil
	}
	if r.Kind != RemoveUpload {
		if more, err := repo.values.drop(r.Tenant, r.ID); err != nil || more {
			return false, err
		}
	}
	if r.Kind == RemoveRun {
		if err := repo.artifacts.dropOf(r.Tenant, perdure.RunID(r.ID)); err != nil {
			return false, err
		}
	}
	repo.in.tx.Stage("DELETE FROM removals WHERE tenant=? AND kind=? AND id=?", string(r.Tenant), r.Kind, r.ID)
	return true, nil
}

// A part is how much one step may still remove.
type part struct {
	rows  int
	bytes int64
}

// take finds how many rows of a table fit into a part: up to last, or all of them if more is false.
// The first row of a part always fits.
func (repo *Removals) take(left *part, b belonging, r removal) (last any, more bool, err error) {
	size := "0"
	if b.size != "" {
		size = b.size
	}
	err = repo.in.sess.Query("SELECT "+b.order+", "+size+" FROM "+b.table+" WHERE tenant=? AND "+b.owner+
		"=? ORDER BY "+b.order+atMost,
		[]any{string(r.Tenant), r.ID, int64(left.rows + 1)}, func(scan func(...any) error) error {
			var at any
			var bytes int64
			if err := scan(&at, &bytes); err != nil {
				return err
			}
			if first := *left == (part{clearRows, clearBytes}); !first && (left.rows == 0 || left.bytes < bytes) {
				more = true
				return errEnough
			}
			last, left.rows, left.bytes = at, left.rows-1, left.bytes-bytes
			return nil
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return last, more, err
}
