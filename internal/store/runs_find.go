package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// where reads runs by anything but their id: what the database has, seen through what the batch has
// changed. match repeats the condition for rows of the batch. limit 0 means all.
func (repo *Runs) where(where string, args []any, limit int, match func(*perdure.Run) bool, order func(a, b *perdure.Run) int) ([]perdure.Run, error) {
	if limit > 0 {
		// Rows that the batch has taken out of the condition must not hide those behind them.
		where += fmt.Sprintf(" LIMIT %d", roundUp(limit+len(repo.rows.dirty)))
	}
	var out []perdure.Run
	seen := make(map[runKey]bool)
	err := runTable.query(repo.in.sess, where, args, func(r *perdure.Run) error {
		repo.absorb(r)
		k := runKey{r.Tenant, r.ID}
		seen[k] = true
		if cur, ok, _ := repo.rows.get(k); ok && match(&cur) {
			out = append(out, cur)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	repo.eachChanged(func(k runKey, r *perdure.Run) {
		if !seen[k] && match(r) {
			out = append(out, *r)
		}
	})
	slices.SortStableFunc(out, func(a, b perdure.Run) int { return order(&a, &b) })
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

// roundUp keeps the number of different statements small.
func roundUp(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func byID(a, b *perdure.Run) int { return strings.Compare(string(a.ID), string(b.ID)) }

// Ringing gives the runs whose alarm has rung, oldest alarm first.
func (repo *Runs) Ringing(limit int) ([]perdure.Run, error) {
	return repo.where("WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id", []any{int64(repo.in.Now)}, limit,
		func(r *perdure.Run) bool { return r.AlarmAt != 0 && r.AlarmAt <= repo.in.Now },
		func(a, b *perdure.Run) int {
			if a.AlarmAt != b.AlarmAt {
				return int(max(-1, min(1, a.AlarmAt-b.AlarmAt)))
			}
			return byID(a, b)
		})
}

// RingingRound gives runs whose alarm has rung where there are more than one sweep can do: it goes round the tenants, from the one
// after a given one on, and takes the oldest alarms of each.
func (repo *Runs) RingingRound(after perdure.TenantID, limit int) (out []perdure.Run, err error) {
	due, err := repo.in.tx.dueTenants("runs", after)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	for _, t := range due[:min(len(due), limit)] {
		part, err := repo.where("WHERE tenant=? AND alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, id", []any{string(t), int64(repo.in.Now)}, max(1, limit/len(due)),
			func(r *perdure.Run) bool { return r.Tenant == t && r.AlarmAt != 0 && r.AlarmAt <= repo.in.Now },
			func(a, b *perdure.Run) int { return cmp.Or(cmp.Compare(a.AlarmAt, b.AlarmAt), byID(a, b)) })
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// RingingRefs names runs whose alarm has rung, oldest alarm first.
func (repo *Runs) RingingRefs(limit int) (out []Ref, err error) {
	err = repo.in.sess.Query("SELECT tenant, id FROM runs WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id"+atMost, []any{int64(repo.in.Now), int64(limit)},
		func(scan func(...any) error) error {
			var r Ref
			err := scan(&r.Tenant, &r.Run)
			out = append(out, r)
			return err
		})
	return out, err
}

// LiveBefore walks through all live runs by their alarms, from the latest down: the patrol's net. A run whose alarm is
// put off meanwhile comes again; none is pushed out of sight.
func (repo *Runs) LiveBefore(alarm perdure.Instant, t perdure.TenantID, id perdure.RunID, limit int) ([]perdure.Run, error) {
	order := func(a, b *perdure.Run) int {
		return cmp.Or(cmp.Compare(b.AlarmAt, a.AlarmAt), cmp.Compare(b.Tenant, a.Tenant), byID(b, a))
	}
	at := perdure.Run{AlarmAt: alarm, Tenant: t, ID: id}
	return repo.where("WHERE alarm_at IS NOT NULL AND (alarm_at,tenant,id)<(?,?,?) ORDER BY alarm_at DESC, tenant DESC, id DESC",
		[]any{int64(alarm), string(t), string(id)}, limit,
		func(r *perdure.Run) bool { return r.State.Live() && order(r, &at) > 0 }, order)
}

// Cascading gives ended runs that still have live children to cancel.
func (repo *Runs) Cascading(limit int) ([]perdure.Run, error) {
	return repo.where("WHERE cascade=1 ORDER BY tenant, id", nil, limit, func(r *perdure.Run) bool { return r.Cascade }, byID)
}

// How many children are read at once, and how often in one operation.
const (
	childPage  = 64
	childPages = 4
)

// LiveChildren gives children of a run that have not ended and may not outlive it, in the order of their keys and after one of
// them. It looks at no more than childPages pages: children that are passed over, because they may outlive their parent or have
// been asked to stop already, must not make it read for long. next is the key to go on after; done tells that there are no more.
func (repo *Runs) LiveChildren(t perdure.TenantID, parent perdure.RunID, after string, limit int) (out []perdure.Run, next string, done bool, err error) {
	match := func(r *perdure.Run) bool {
		return r.Tenant == t && r.ParentID == parent && r.State.Live() && !r.MayOutlive() && r.Cancel.RequestedAt == 0 && r.JournalKey > after
	}
	seen := make(map[runKey]bool)
	for next, n := after, 0; ; n++ {
		read := 0
		err := runTable.query(repo.in.sess, fmt.Sprintf("WHERE tenant=? AND parent_id=? AND parent_id<>'' AND journal_key>? AND alarm_at IS NOT NULL "+
			"ORDER BY journal_key LIMIT %d", childPage), []any{string(t), string(parent), next}, func(r *perdure.Run) error {
			repo.absorb(r)
			read++
			next = r.JournalKey
			k := runKey{r.Tenant, r.ID}
			seen[k] = true
			if cur, ok, _ := repo.rows.get(k); ok && match(&cur) {
				out = append(out, cur)
			}
			return nil
		})
		if err != nil {
			return nil, "", false, err
		}
		if done = read < childPage; done {
			repo.eachChanged(func(k runKey, r *perdure.Run) { // children that the batch itself has spawned
				if _, stored := repo.read[k]; !stored && !seen[k] && match(r) {
					out = append(out, *r)
				}
			})
		}
		if !done && n < childPages && len(out) < limit {
			continue
		}
		slices.SortStableFunc(out, func(a, b perdure.Run) int { return strings.Compare(a.JournalKey, b.JournalKey) })
		if len(out) > limit {
			out = out[:limit]
			return out, out[limit-1].JournalKey, false, nil
		}
		return out, next, done, nil
	}
}

// Children gives those children of a run that are named by their journal keys, as far as they exist.
func (repo *Runs) Children(t perdure.TenantID, parent perdure.RunID, keys []string) (map[string]perdure.Run, error) {
	out := make(map[string]perdure.Run, len(keys))
	named := make(map[string]bool, len(keys))
	for _, key := range keys {
		named[key] = true
	}
	repo.eachChanged(func(k runKey, r *perdure.Run) {
		if r.ParentID == parent && k.t == t && named[r.JournalKey] {
			out[r.JournalKey] = *r
		}
	})
	stored := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { _, staged := out[key]; return staged })
	err := eachPart(repo.in.dialect, stored, func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "parent_id", "journal_key"}, []string{string(t), string(parent)}, part)
		return runTable.query(repo.in.sess, given+" AND parent_id<>''", args,
			func(r *perdure.Run) error {
				repo.absorb(r)
				out[r.JournalKey], _, _ = repo.rows.get(runKey{r.Tenant, r.ID})
				return nil
			})
	})
	return out, err
}

// maxFamily bounds how many children are looked at to find those that live.
const maxFamily = 1000

// Family gives children of a run: at most so many, those that live first, and each in the order of their keys.
func (repo *Runs) Family(t perdure.TenantID, parent perdure.RunID, limit int) ([]perdure.Run, error) {
	var live, ended []perdure.RunID
	err := repo.in.sess.Query("SELECT id, CASE WHEN alarm_at IS NULL THEN 0 ELSE 1 END FROM runs WHERE tenant=? AND parent_id=? AND parent_id<>'' ORDER BY journal_key"+atMost,
		[]any{string(t), string(parent), int64(maxFamily)}, func(scan func(...any) error) error {
			var id perdure.RunID
			var lives int64
			err := scan(&id, &lives)
			if lives == 1 {
				live = append(live, id)
			} else {
				ended = append(ended, id)
			}
			return err
		})
	if err != nil {
		return nil, err
	}
	chosen := append(live, ended...)
	chosen = chosen[:min(limit, len(chosen))]
	found, err := repo.ByID(t, chosen)
	if err != nil {
		return nil, err
	}
	byID := make(map[perdure.RunID]perdure.Run, len(found))
	for _, r := range found {
		byID[r.ID] = r
	}
	out := make([]perdure.Run, 0, len(found))
	for _, id := range chosen {
		if r, ok := byID[id]; ok {
			out = append(out, r)
		}
	}
	return out, nil
}

// NextOnThread gives the run whose turn on the thread is next: by its place, then by its age. The index has them in that order.
func (repo *Runs) NextOnThread(t perdure.TenantID, id perdure.ThreadID) (perdure.Run, bool, error) {
	found, err := repo.where("WHERE tenant=? AND thread_id=? AND thread_id<>'' AND alarm_at IS NOT NULL AND turn=? ORDER BY place, created_at, id",
		[]any{string(t), string(id), int64(perdure.TurnWaiting)}, 1,
		func(r *perdure.Run) bool {
			return r.Tenant == t && r.ThreadID == id && r.Turn == perdure.TurnWaiting && r.State.Live()
		},
		func(a, b *perdure.Run) int {
			return cmp.Or(cmp.Compare(a.Place(), b.Place()), cmp.Compare(a.CreatedAt, b.CreatedAt), byID(a, b))
		})
	if err != nil || len(found) == 0 {
		return perdure.Run{}, false, err
	}
	return found[0], true, nil
}

// CountEnds judges runs by their states: how many have ended, how many of these completed, and whether one of them is gone.
func (repo *Runs) CountEnds(t perdure.TenantID, ids []perdure.RunID) (ended, ok int, gone bool, err error) {
	var unknown []string
	count := func(state perdure.State) {
		if state.Terminal() {
			ended++
		}
		if state == perdure.Completed {
			ok++
		}
	}
	for _, id := range ids {
		switch r, exists, known := repo.rows.get(runKey{t, id}); {
		case !known:
			unknown = append(unknown, string(id))
		case !exists:
			gone = true
		default:
			count(r.State)
		}
	}
	found := 0
	err = eachPart(repo.in.dialect, unknown, func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return repo.in.sess.Query("SELECT state FROM runs "+given, args, func(scan func(...any) error) error {
			var state perdure.State
			err := scan(&state)
			found++
			count(state)
			return err
		})
	})
	return ended, ok, gone || found < len(unknown), err
}

// CountLive counts a tenant's live runs, no further than limit.
func (repo *Runs) CountLive(t perdure.TenantID, limit int) (n int, err error) {
	err = repo.in.sess.Query(fmt.Sprintf(countLive, roundUp(limit)),
		[]any{string(t)}, func(scan func(...any) error) error { return scan(&n) })
	for _, k := range repo.rows.dirty {
		if _, stored := repo.read[k]; !stored && k.t == t {
			n++
		}
	}
	return min(n, limit), err
}

const countLive = "SELECT count(*) FROM (SELECT 1 FROM runs WHERE tenant=? AND alarm_at IS NOT NULL LIMIT %d) AS live"

// ChangedAt gives when something last happened to a run: a sign of life, a line of its log, an item of its inbox. The row
// alone does not tell, because a signal that nobody waits for writes none of its instants.
func (repo *Runs) ChangedAt(r *perdure.Run) (perdure.Instant, error) {
	at := max(r.CreatedAt, r.StartedAt, r.SeenAt, r.FinishedAt)
	lines, err := repo.in.Events.Last(r.Tenant, r.ID, 1, 1)
	if err != nil {
		return 0, err
	}
	for i := range lines {
		at = max(at, lines[i].At)
	}
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND seq=?", []any{string(r.Tenant), string(r.ID), r.InboxSeq}, func(i *perdure.Item) error {
		at = max(at, i.CreatedAt)
		return nil
	})
	return at, err
}

// TenantOf gives the tenant of a run: the likely one, if it is its run, and otherwise whoever has it. Without
// such a run it is the likely one too.
func (repo *Runs) TenantOf(run perdure.RunID, likely perdure.TenantID) (perdure.TenantID, error) {
	found := false
	err := repo.in.sess.Query("SELECT 1 FROM runs WHERE tenant=? AND id=?", []any{string(likely), string(run)}, func(func(...any) error) error {
		found = true
		return nil
	})
	if err != nil || found {
		return likely, err
	}
	// Tenant by tenant: each is a look into the primary key, and there is no index by id alone.
	err = repo.in.sess.Query("SELECT r.tenant FROM tenants t CROSS JOIN runs r WHERE r.tenant=t.id AND r.id=?", []any{string(run)}, func(scan func(...any) error) error {
		return scan(&likely)
	})
	return likely, err
}
