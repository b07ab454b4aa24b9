package store

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// Get gives a run of a tenant; ok is false when there is none.
func (repo *Runs) Get(t perdure.TenantID, id perdure.RunID) (r perdure.Run, ok bool, err error) {
	k := runKey{t, id}
	if r, ok, known := repo.rows.get(k); known {
		return r, ok, nil
	}
	if err := repo.Load(t, []perdure.RunID{id}); err != nil {
		return r, false, err
	}
	r, ok, _ = repo.rows.get(k)
	return r, ok, nil
}

// Staged gives the version of a run as the batch has it, if it has it.
func (repo *Runs) Staged(t perdure.TenantID, id perdure.RunID) (version int64, ok bool) {
	r, ok, _ := repo.rows.get(runKey{t, id})
	return r.Version, ok
}

// Load reads many runs at once.
func (repo *Runs) Load(t perdure.TenantID, ids []perdure.RunID) error {
	var want []perdure.RunID
	asked := make(map[perdure.RunID]bool, len(ids))
	for _, id := range ids {
		if _, _, known := repo.rows.get(runKey{t, id}); !known && !asked[id] && !repo.recall(runKey{t, id}) {
			want, asked[id] = append(want, id), true
		}
	}
	return eachPart(repo.in.s.dialect, texts(want), func(part []string) error {
		given, args := repo.in.s.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		err := runTable.query(repo.in.sess, given, args, func(r *perdure.Run) error {
			repo.absorb(r)
			return nil
		})
		if err != nil {
			return err // what could not be read is not known to be absent
		}
		for _, id := range part {
			repo.rows.absorb(runKey{t, perdure.RunID(id)}, perdure.Run{}, false)
		}
		return nil
	})
}

func (repo *Runs) absorb(r *perdure.Run) {
	k := runKey{r.Tenant, r.ID}
	if _, _, known := repo.rows.get(k); !known {
		repo.rows.absorb(k, *r, true)
		repo.read[k] = r.Version
	}
}

// Moved tells whether somebody has changed a run since the batch has read it. It is for those who look at many rows one
// after the other and find that they don't fit: they were perhaps read at different times.
func (repo *Runs) Moved(r *perdure.Run) (moved bool, err error) {
	k := runKey{r.Tenant, r.ID}
	moved = true // or gone
	err = repo.in.sess.Query("SELECT version FROM runs WHERE tenant=? AND id=?", []any{string(k.t), string(k.r)}, func(scan func(...any) error) error {
		var version int64
		err := scan(nullable[int64]{&version})
		moved = version != repo.read[k]
		return err
	})
	return moved, err
}

// Put stages a run, new or changed, and the lines that this adds to its log.
func (repo *Runs) Put(r perdure.Run, lines []perdure.Line) {
	if repo.in.tx.doubt {
		lines = repo.renumber(&r, lines)
	}
	repo.rows.put(repo.in.tx, runKey{r.Tenant, r.ID}, r)
	rows := make([]EventRow, len(lines))
	for i, l := range lines {
		rows[i] = EventRow{r.Tenant, r.ID, l}
		repo.in.tx.bytes += len(l.Data) // taken back with the row
	}
	push(repo.in.tx, &repo.in.Events.rows, rows...)
}

// renumber puts lines behind those that a run's log has, whatever its row says: that may be damaged. An error shows when the lines
// are written.
func (repo *Runs) renumber(r *perdure.Run, lines []perdure.Line) []perdure.Line {
	last := int64(0)
	_ = repo.in.sess.Query("SELECT coalesce(max(seq),0) FROM events WHERE tenant=? AND run_id=?", []any{string(r.Tenant), string(r.ID)}, func(scan func(...any) error) error {
		return scan(&last)
	})
	for i := range repo.in.Events.rows {
		if e := &repo.in.Events.rows[i]; e.Tenant == r.Tenant && e.RunID == r.ID {
			last = max(last, e.Seq)
		}
	}
	out := slices.Clone(lines)
	for i := range out {
		if out[i].Seq <= last {
			out[i].Seq = last + 1
		}
		last = out[i].Seq
	}
	r.Seq = max(r.Seq, last)
	return out
}

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

// claimOrder is who goes first: priority, then those that have been suspended before, then age.
func claimOrder(a, b *perdure.Run) int {
	switch {
	case a.Priority != b.Priority:
		return b.Priority - a.Priority
	case a.Resumed != b.Resumed:
		if a.Resumed {
			return -1
		}
		return 1
	case a.CreatedAt != b.CreatedAt:
		return int(max(-1, min(1, a.CreatedAt-b.CreatedAt)))
	}
	return byID(a, b)
}

// A claimPage names what the database has to claim in a queue, read once for all polls of a batch.
type claimPage struct {
	heads []perdure.Run // in order, and only what ClaimOrder compares
	limit int           // how many were asked for: fewer are all there are
}

type claimKey struct {
	t           perdure.TenantID
	queue, kind string
}

// A ClaimQueue goes through the runs of a queue and kind that a poll may take, first ones first. It reads who they are and
// what decides their order, not the runs. The polls of a batch share a page of the database: each takes what those
// before it left.
type ClaimQueue struct {
	tx    *Tx
	key   claimKey
	fresh []perdure.Run // that became claimable within the batch
	ask   int           // how much of the database is read at first
	at    int           // in the page
}

// Queues gives the claim queues of a batch at this moment. ask is how many runs each reads at first; where they do not
// suffice it reads more.
func (repo *Claims) Queues(ask int) func(t perdure.TenantID, queue, kind string) *ClaimQueue {
	fresh := make(map[claimKey][]perdure.Run)
	repo.in.Runs.eachChanged(func(_ runKey, r *perdure.Run) {
		if r.Ready {
			k := claimKey{r.Tenant, r.Queue, r.Kind}
			fresh[k] = append(fresh[k], *r)
		}
	})
	return func(t perdure.TenantID, queue, kind string) *ClaimQueue {
		k := claimKey{t, queue, kind}
		slices.SortStableFunc(fresh[k], ClaimOrder)
		return &ClaimQueue{tx: repo.in.tx, key: k, fresh: fresh[k], ask: ask}
	}
}

// Peek gives the first run of what is left; of its fields those that say who it is and what decides its order.
func (q *ClaimQueue) Peek() (r perdure.Run, ok bool, err error) {
	stored, err := q.stored()
	switch {
	case err != nil:
		return r, false, err
	case stored == nil && len(q.fresh) == 0:
		return r, false, nil
	case stored == nil || len(q.fresh) > 0 && claimOrder(&q.fresh[0], stored) < 0:
		return q.fresh[0], true, nil
	}
	return *stored, true, nil
}

// Take takes what Peek has given.
func (q *ClaimQueue) Take(r *perdure.Run) {
	if len(q.fresh) > 0 && q.fresh[0].ID == r.ID {
		q.fresh = q.fresh[1:]
		return
	}
	q.at++
}

// More tells whether there seems to be something left for another poll.
func (q *ClaimQueue) More() bool { return len(q.fresh) > 0 || q.at < len(q.tx.Claims.pages[q.key].heads) }

// stored gives the first run of the page that the batch has left alone.
func (q *ClaimQueue) stored() (*perdure.Run, error) {
	for {
		page := q.tx.Claims.pages[q.key]
		if page.limit < q.ask {
			page = claimPage{limit: q.ask}
			if err := q.tx.Claims.readPage(q.key, &page); err != nil {
				return nil, err
			}
			q.tx.Claims.pages[q.key] = page
		}
		for ; q.at < len(page.heads); q.at++ {
			if q.free(&page.heads[q.at]) {
				return &page.heads[q.at], nil
			}
		}
		if len(page.heads) < page.limit {
			return nil, nil
		}
		q.ask = 4 * page.limit // what is taken already fills the page: there may be more behind it
	}
}

// free tells whether a run of the page is as the database has it. What the batch has changed is fresh or not to be had.
func (q *ClaimQueue) free(h *perdure.Run) bool {
	k := runKey{q.key.t, h.ID}
	if sl := q.tx.Runs.rows.slots[k]; sl != nil && (sl.dirty || !sl.exists || !sl.val.Ready || sl.val.Queue != q.key.queue || sl.val.Kind != q.key.kind) {
		return false
	}
	return !q.tx.Runs.Locked(k.t, k.r)
}

// wholePage is the size from which on a page that is not remembered is read with its runs at once.
const wholePage = 256

// readPage reads a page of what there is to claim: its order, or whole runs when it is large and the last one like
// it was hardly remembered.
func (repo *Claims) readPage(ck claimKey, page *claimPage) error {
	rest := fmt.Sprintf("WHERE ready=1 AND tenant=? AND queue=? AND kind=? ORDER BY priority DESC, resumed DESC, created_at, id LIMIT %d", page.limit)
	args := []any{string(ck.t), ck.queue, ck.kind}
	known := 0
	note := func(h perdure.Run) {
		h.Tenant, h.Queue, h.Kind = ck.t, ck.queue, ck.kind
		page.heads = append(page.heads, h)
		if repo.in.s.cache.has(runKey{ck.t, h.ID}) {
			known++
		}
	}
	var err error
	if page.limit >= wholePage && repo.in.s.cache.misses.Load() {
		err = runTable.query(repo.in.sess, rest, args, func(r *perdure.Run) error {
			note(perdure.Run{ID: r.ID, Priority: r.Priority, Resumed: r.Resumed, CreatedAt: r.CreatedAt})
			repo.in.Runs.absorb(r)
			return nil
		})
	} else {
		err = repo.in.sess.Query("SELECT id, priority, resumed, created_at FROM runs "+rest, args, func(scan func(...any) error) error {
			var h perdure.Run
			var priority int64 // a damaged row is found all the same, and set aside when it is granted
			err := scan(&h.ID, nullable[int64]{&priority}, bit{&h.Resumed}, nullable[perdure.Instant]{&h.CreatedAt})
			h.Priority = int(priority)
			note(h)
			return err
		})
	}
	if page.limit >= wholePage {
		repo.in.s.cache.misses.Store(2*known < len(page.heads))
	}
	return err
}

// ClaimOrder compares runs by who goes first.
func ClaimOrder(a, b perdure.Run) int { return claimOrder(&a, &b) }

// Tenants and ReadyKinds say where there is something to claim, by skipping along the index: the first ones after a
// name, in order, and whether there are more behind them.
func (repo *Claims) Tenants(after perdure.TenantID, limit int) (tenants []perdure.TenantID, more bool, err error) {
	found, more, err := repo.skipScan("SELECT tenant FROM runs WHERE ready=1 AND tenant>? ORDER BY tenant LIMIT 1", nil, string(after), limit,
		func(r *perdure.Run) (string, bool) { return string(r.Tenant), r.Ready })
	for _, f := range found {
		tenants = append(tenants, perdure.TenantID(f))
	}
	return tenants, more, err
}

func (repo *Claims) Kinds(t perdure.TenantID, queue, after string, limit int) (kinds []string, more bool, err error) {
	return repo.skipScan("SELECT kind FROM runs WHERE ready=1 AND tenant=? AND queue=? AND kind>? ORDER BY kind LIMIT 1", []any{string(t), queue}, after, limit,
		func(r *perdure.Run) (string, bool) { return r.Kind, r.Ready && r.Tenant == t && r.Queue == queue })
}

func (repo *Claims) skipScan(query string, args []any, after string, limit int, of func(*perdure.Run) (string, bool)) (out []string, more bool, err error) {
	for last := after; len(out) <= limit; {
		next := ""
		err := repo.in.sess.Query(query, append(slices.Clone(args), last), func(scan func(...any) error) error { return scan(&next) })
		if err != nil {
			return nil, false, err
		}
		if next == "" {
			break
		}
		out = append(out, next)
		last = next
	}
	repo.in.Runs.eachChanged(func(_ runKey, r *perdure.Run) {
		if v, ok := of(r); ok && v > after && !slices.Contains(out, v) {
			out = append(out, v)
		}
	})
	slices.Sort(out)
	return out[:min(limit, len(out))], len(out) > limit, nil
}

// Due says what a sweep has to look at.
type Due struct{ Runs, Cascades, Items, Groups, Waiters, Workers, Letters, Keys bool }

// Due asks in one question what a sweep would find: most find nothing.
func (tx *Tx) Due(workersSince perdure.Instant) (due Due, err error) {
	if !tx.empty() { // what the batch has staged may be due
		return Due{true, true, true, true, true, true, true, true}, nil
	}
	parts := []struct {
		from string
		at   perdure.Instant
		flag *bool
	}{
		{"runs WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Runs},
		{"runs WHERE cascade=1 AND 0<=?", 0, &due.Cascades},
		{"inbox WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Items},
		{"gatherings WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Groups},
		{"waiters WHERE expires_at<=?", tx.Now, &due.Waiters},
		{"workers WHERE offline=0 AND seen_at<=?", workersSince, &due.Workers},
		{"dead_letters WHERE expires_at<=?", tx.Now, &due.Letters},
		{"idempotency WHERE expires_at<=?", tx.Now, &due.Keys},
	}
	questions, args := make([]string, len(parts)), make([]any, len(parts))
	for i, p := range parts {
		questions[i] = fmt.Sprintf("SELECT %d FROM (SELECT 1 FROM %s LIMIT 1) AS q%d", i, p.from, i)
		args[i] = int64(p.at)
	}
	err = tx.sess.Query(strings.Join(questions, " UNION ALL "), args, func(scan func(...any) error) error {
		i := 0
		err := scan(&i)
		*parts[i].flag = true
		return err
	})
	return due, err
}

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

// maxDueTenants bounds how many tenants a round looks at. The next one begins where it ended.
const maxDueTenants = 512

// dueTenants gives tenants with something whose alarm has rung, from the one after a given one on and round again. It skips along
// the index of live rows, one step a tenant.
func (tx *Tx) dueTenants(table string, after perdure.TenantID) (out []perdure.TenantID, err error) {
	for _, from := range []perdure.TenantID{after, ""} {
		query := "WITH RECURSIVE live(tenant) AS (" +
			"SELECT (SELECT tenant FROM " + table + " WHERE alarm_at IS NOT NULL AND tenant>? ORDER BY tenant LIMIT 1) UNION ALL " +
			"SELECT (SELECT x.tenant FROM " + table + " x WHERE x.alarm_at IS NOT NULL AND x.tenant>live.tenant ORDER BY x.tenant LIMIT 1) FROM live WHERE live.tenant IS NOT NULL) " +
			"SELECT tenant FROM (SELECT tenant FROM live WHERE tenant IS NOT NULL LIMIT " + strconv.Itoa(maxDueTenants) + ") AS page " +
			"WHERE (SELECT min(x.alarm_at) FROM " + table + " x WHERE x.tenant=page.tenant AND x.alarm_at IS NOT NULL)<=?"
		err := tx.sess.Query(query, []any{string(from), int64(tx.Now)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			err := scan(&t)
			if from != "" || after == "" || t <= after { // the second time only those before the first one
				out = append(out, t)
			}
			return err
		})
		if err != nil || after == "" {
			return out, err
		}
	}
	return out, nil
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
	err = eachPart(repo.in.s.dialect, unknown, func(part []string) error {
		given, args := repo.in.s.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
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

// Cascading gives ended runs that still have live children to cancel.
func (repo *Runs) Cascading(limit int) ([]perdure.Run, error) {
	return repo.where("WHERE cascade=1 ORDER BY tenant, id", nil, limit, func(r *perdure.Run) bool { return r.Cascade }, byID)
}

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

// How many children are read at once, and how often in one operation.
const (
	childPage  = 64
	childPages = 4
)

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
	err := eachPart(repo.in.s.dialect, stored, func(part []string) error {
		given, args := repo.in.s.dialect.keyed("runs", []string{"tenant", "parent_id", "journal_key"}, []string{string(t), string(parent)}, part)
		return runTable.query(repo.in.sess, given+" AND parent_id<>''", args,
			func(r *perdure.Run) error {
				repo.absorb(r)
				out[r.JournalKey], _, _ = repo.rows.get(runKey{r.Tenant, r.ID})
				return nil
			})
	})
	return out, err
}

// eachChanged goes through the runs that the batch has changed, in the order of their first change.
func (repo *Runs) eachChanged(f func(runKey, *perdure.Run)) {
	for _, k := range repo.rows.dirty {
		if sl := repo.rows.slots[k]; sl.exists {
			f(k, &sl.val)
		}
	}
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

// CountLive counts a tenant's live runs, no further than limit.
func (repo *Runs) CountLive(t perdure.TenantID, limit int) (n int, err error) {
	err = repo.in.sess.Query(fmt.Sprintf(countLive, roundUp(limit)),
		[]any{string(t)}, func(scan func(...any) error) error { return scan(&n) })
	for _, k := range repo.rows.dirty {
		if _, stored := repo.read[k]; !stored && k.t == t {
			n++
		}
	}
	return n, err
}
