package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// where reads runs by a condition: committed rows, overlaid with the changes of the batch. match is
// the same condition for rows of the batch. limit 0 means all.
func (repo *Runs) where(
	where string, args []any, limit int, match func(*perdure.Run) bool, order func(a, b *perdure.Run) int,
) ([]perdure.Run, error) {
	if limit > 0 {
		// Rows that the batch has changed may no longer match. Read more rows, so that enough are
		// left.
		where += fmt.Sprintf(" LIMIT %d", roundUp(limit+len(repo.rows.dirty)))
	}
	var out []perdure.Run
	seen := make(map[runKey]bool)
	err := runTable.query(repo.in.sess, where, args, func(r *perdure.Run) error {
		repo.absorb(r)
		k := runKey{r.Tenant, r.ID}
		seen[k] = true
		if cur, ok, _ := getRow(&repo.rows, k); ok && match(&cur) {
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

// roundUp gives the next power of two, so that few different statements are prepared.
func roundUp(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func byID(a, b *perdure.Run) int { return strings.Compare(string(a.ID), string(b.ID)) }

// Ringing gives the runs whose alarm has passed, oldest alarm first.
func (repo *Runs) Ringing(limit int) ([]perdure.Run, error) {
	return repo.where("WHERE "+rung+" ORDER BY alarm_at, tenant, id",
		[]any{int64(repo.in.Now)}, limit,
		func(r *perdure.Run) bool { return r.AlarmAt != 0 && r.AlarmAt <= repo.in.Now },
		func(a, b *perdure.Run) int {
			if a.AlarmAt != b.AlarmAt {
				return int(max(-1, min(1, a.AlarmAt-b.AlarmAt)))
			}
			return byID(a, b)
		})
}

// RingingRound gives runs whose alarm has passed when there are more than one sweep can handle. It
// goes through the tenants, beginning after the given one, and takes the oldest alarms of each.
func (repo *Runs) RingingRound(after perdure.TenantID, limit int) (out []perdure.Run, err error) {
	due, err := repo.in.tx.dueTenants("runs", after)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	for _, t := range due[:min(len(due), limit)] {
		part, err := repo.where("WHERE tenant=? AND "+rung+" ORDER BY alarm_at, id",
			[]any{string(t), int64(repo.in.Now)}, max(1, limit/len(due)),
			func(r *perdure.Run) bool { return r.Tenant == t && r.AlarmAt != 0 && r.AlarmAt <= repo.in.Now },
			func(a, b *perdure.Run) int { return cmp.Or(cmp.Compare(a.AlarmAt, b.AlarmAt), byID(a, b)) })
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// HeldInside gives references to leased runs that workers inside a server with an instance hold, at
// most limit. It reads the alarms of all live runs: it is for the start of a server, not for a
// call.
func (repo *Runs) HeldInside(instance string, limit int) (out []Ref, err error) {
	err = repo.in.sess.Query("SELECT tenant, id FROM runs WHERE alarm_at IS NOT NULL AND worker LIKE ? "+
		"AND state IN ('dispatched','running')"+atMost, []any{"%~" + instance, int64(limit)},
		func(scan func(...any) error) error {
			var r Ref
			err := scan(&r.Tenant, &r.Run)
			out = append(out, r)
			return err
		})
	return out, err
}

// LiveBefore pages through all live runs by their alarms, from the latest down, for the watchdog's
// patrol. A run whose alarm is postponed meanwhile is seen again; none is skipped.
func (repo *Runs) LiveBefore(
	alarm perdure.Instant, t perdure.TenantID, id perdure.RunID, limit int,
) ([]perdure.Run, error) {
	order := func(a, b *perdure.Run) int {
		return cmp.Or(cmp.Compare(b.AlarmAt, a.AlarmAt), cmp.Compare(b.Tenant, a.Tenant), byID(b, a))
	}
	at := perdure.Run{AlarmAt: alarm, Tenant: t, ID: id}
	return repo.where("WHERE alarm_at IS NOT NULL AND (alarm_at,tenant,id)<(?,?,?) "+
		"ORDER BY alarm_at DESC, tenant DESC, id DESC",
		[]any{int64(alarm), string(t), string(id)}, limit,
		func(r *perdure.Run) bool { return r.State.Live() && order(r, &at) > 0 }, order)
}

// Cascading gives ended runs that still have live children to cancel: first those of the tenants
// after a given one, then from the first tenant on.
func (repo *Runs) Cascading(after perdure.TenantID, limit int) ([]perdure.Run, error) {
	out, err := repo.where("WHERE cascade=1 AND tenant>? ORDER BY tenant, id", []any{string(after)}, limit,
		func(r *perdure.Run) bool { return r.Cascade && r.Tenant > after }, byID)
	if err != nil || after == "" || len(out) == limit {
		return out, err
	}
	rest, err := repo.where("WHERE cascade=1 AND tenant<=? ORDER BY tenant, id", []any{string(after)}, limit-len(out),
		func(r *perdure.Run) bool { return r.Cascade && r.Tenant <= after }, byID)
	return append(out, rest...), err
}

// childPage is how many children one query reads, childPages the number of queries in one call.
const (
	childPage  = 64
	childPages = 4
)

// LiveChildren gives live children of a run that may not outlive it, in the order of their journal
// keys, after one of them. It reads at most childPages pages: children that may outlive the parent,
// or were asked to stop, must not make it read for long. next is the key to continue after. done
// tells that there are no more.
func (repo *Runs) LiveChildren(
	t perdure.TenantID, parent perdure.RunID, after string, limit int,
) (out []perdure.Run, next string, done bool, err error) {
	match := func(r *perdure.Run) bool {
		return r.Tenant == t && r.ParentID == parent && r.State.Live() && !r.MayOutlive() &&
			r.Cancel.RequestedAt == 0 && r.JournalKey > after
	}
	seen := make(map[runKey]bool)
	for next, n := after, 0; ; n++ {
		read := 0
		err := runTable.query(repo.in.sess,
			fmt.Sprintf("WHERE tenant=? AND parent_id=? AND parent_id<>'' AND journal_key>? AND alarm_at IS NOT NULL "+
				"ORDER BY journal_key LIMIT %d", childPage), []any{string(t), string(parent), next},
			func(r *perdure.Run) error {
				repo.absorb(r)
				read++
				next = r.JournalKey
				k := runKey{r.Tenant, r.ID}
				seen[k] = true
				if cur, ok, _ := getRow(&repo.rows, k); ok && match(&cur) {
					out = append(out, cur)
				}
				return nil
			})
		if err != nil {
			return nil, "", false, err
		}
		if done = read < childPage; done {
			repo.eachChanged(func(k runKey, r *perdure.Run) { // children that the batch has spawned
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

// Children gives the children of a run with the given journal keys, as far as they exist.
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
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "parent_id", "journal_key"},
			[]string{string(t), string(parent)}, part)
		return runTable.query(repo.in.sess, given+" AND parent_id<>''", args,
			func(r *perdure.Run) error {
				repo.absorb(r)
				out[r.JournalKey], _, _ = getRow(&repo.rows, runKey{r.Tenant, r.ID})
				return nil
			})
	})
	return out, err
}

// maxFamily bounds the number of children that Family reads.
const maxFamily = 1000

// Family gives at most limit children of a run: the live ones first, each part in the order of
// their keys.
func (repo *Runs) Family(t perdure.TenantID, parent perdure.RunID, limit int) ([]perdure.Run, error) {
	var live, ended []perdure.RunID
	err := repo.in.sess.Query("SELECT id, CASE WHEN alarm_at IS NULL THEN 0 ELSE 1 END FROM runs WHERE tenant=? "+
		"AND parent_id=? AND parent_id<>'' ORDER BY journal_key"+atMost,
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

// NextOnThread gives the run that is next on a thread: by place, then by age. The index has this
// order.
func (repo *Runs) NextOnThread(t perdure.TenantID, id perdure.ThreadID) (perdure.Run, bool, error) {
	found, err := repo.where("WHERE tenant=? AND thread_id=? AND thread_id<>'' AND alarm_at IS NOT NULL AND turn=? "+
		"ORDER BY place, created_at, id",
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

// CountEnds counts how many runs have ended and how many of these completed, and tells whether one
// of them is gone.
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
		switch r, exists, known := getRow(&repo.rows, runKey{t, id}); {
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

// CountLive counts a tenant's live runs, up to limit.
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

// ChangedAt gives when a run last changed: by a heartbeat, a log line or an inbox item. The row
// alone does not tell, because a signal that no wait matches changes none of its instants.
func (repo *Runs) ChangedAt(r *perdure.Run) (perdure.Instant, error) {
	at := max(r.CreatedAt, r.StartedAt, r.SeenAt, r.FinishedAt)
	lines, err := repo.events.Last(r.Tenant, r.ID, 1, 1)
	if err != nil {
		return 0, err
	}
	for i := range lines {
		at = max(at, lines[i].At)
	}
	err = itemTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND seq=?",
		[]any{string(r.Tenant), string(r.ID), r.InboxSeq}, func(i *perdure.Item) error {
			at = max(at, i.CreatedAt)
			return nil
		})
	return at, err
}

// TenantOf gives the tenant of a run. It tries the likely one first, and gives that one too if the
// run does not exist.
func (repo *Runs) TenantOf(run perdure.RunID, likely perdure.TenantID) (perdure.TenantID, error) {
	found := false
	err := repo.in.sess.Query("SELECT 1 FROM runs WHERE tenant=? AND id=?", []any{string(likely), string(run)},
		func(func(...any) error) error {
			found = true
			return nil
		})
	if err != nil || found {
		return likely, err
	}
	// One lookup by primary key for each tenant: there is no index by id alone.
	err = repo.in.sess.Query("SELECT r.tenant FROM tenants t CROSS JOIN runs r WHERE r.tenant=t.id AND r.id=?",
		[]any{string(run)}, func(scan func(...any) error) error {
			return scan(&likely)
		})
	return likely, err
}

// unwatched selects live runs whose alarm never passes: it is missing, or no valid instant. The
// text is the condition of a partial index.
const unwatched = "(alarm_at IS NULL OR alarm_at<=0 OR alarm_at>=253402300800000000) " +
	"AND state IN ('queued','dispatched','running','suspended')"

// Unwatched gives live runs without a valid alarm, after one of them. No sweep finds these runs.
func (repo *Runs) Unwatched(after perdure.RunID, limit int) ([]perdure.Run, error) {
	return repo.where("WHERE "+unwatched+" AND id>? ORDER BY id", []any{string(after)}, limit,
		func(r *perdure.Run) bool {
			return r.State.Live() && (r.AlarmAt <= 0 || r.AlarmAt >= maxInstant) && r.ID > after
		}, byID)
}
