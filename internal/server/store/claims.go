package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Finding runs for a poll.
//
// A poll names queues and kinds. For each of them a ClaimQueue gives the claimable runs in claim
// order: priority, resumed before new, age. It merges two sources. The first is a page of ids,
// which is read from the database once for all polls of the batch. The second is the runs that
// became claimable within the batch. A run of the page that the batch has changed is skipped. The
// runs themselves are read only when one is granted, unless the page is large and the cache has few
// of them.
//
// Tenants, Walk (places.go) and Ready find where there is anything to claim. They skip along the
// index, one search per distinct value, so that the number of waiting runs does not matter.

// Claims finds runs that a worker may claim. It has no rows of its own: the runs are in Runs.
type Claims struct {
	in    *base
	runs  *Runs
	pages map[claimKey]*claimPage
	walks map[walkKey]*Walked
}

// A claimKey is a place.
type claimKey Ready

// A claimPage has the first claimable runs of a queue and kind in the database, read once for all
// polls of a batch.
type claimPage struct {
	heads []Claimable // in claim order
	all   bool        // there are no others
}

// A Claimable is a run that a worker may claim: its id, and the fields that decide the order.
type Claimable struct {
	Tenant    perdure.TenantID
	ID        perdure.RunID
	Priority  int
	Resumed   bool
	CreatedAt perdure.Instant
}

// ClaimableOf gives the fields of a run.
func ClaimableOf(r *perdure.Run) Claimable {
	return Claimable{r.Tenant, r.ID, r.Priority, r.Resumed, r.CreatedAt}
}

func (repo *Claims) open(in *base, runs *Runs) { repo.in, repo.runs = in, runs }

// ClaimOrder compares runs by claim order: priority, then resumed ones, then age.
func ClaimOrder(a, b Claimable) int {
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
	return strings.Compare(string(a.ID), string(b.ID))
}

// Changed gives the runs that the batch has changed and that workers may claim.
func (c *Claims) Changed() (out []perdure.Run) {
	c.in.tx.Runs.eachChanged(func(_ runKey, r *perdure.Run) {
		if r.Ready && r.State.Live() {
			out = append(out, *r)
		}
	})
	return out
}

// Limits of Ready: kinds of one tenant per call, kinds per call, and tenants whose position is
// remembered.
const (
	readyOfTenant = 64
	readyAtOnce   = 512
	maxRests      = 1000
)

// A Ready names a tenant, queue and kind with something to claim.
type Ready struct {
	Tenant      perdure.TenantID
	Queue, Kind string
}

// A ReadyRound is the position of Ready between calls. A tenant with very many kinds is read in
// parts, so that it does not delay the others. The zero value begins a round.
type ReadyRound struct {
	after perdure.TenantID // the last tenant that was read
	// rests has the last kind that was read of tenants with more kinds than one call reads.
	rests map[perdure.TenantID]Ready
}

// Ready gives kinds with something to claim, and continues where the last call ended. Polls fall
// back on it when a doorbell is lost.
func (repo *Claims) Ready(round *ReadyRound) (out []Ready, err error) {
	if round.rests == nil || len(round.rests) > maxRests {
		round.rests = make(map[perdure.TenantID]Ready)
	}
	for len(out) < readyAtOnce {
		t := perdure.TenantID("")
		err := repo.in.sess.Query(nextTenant, []any{string(round.after)},
			func(scan func(...any) error) error { return scan(&t) })
		if round.after = t; err != nil || t == "" {
			return out, err
		}
		at := round.rests[t]
		delete(round.rests, t)
		for n := 0; ; n++ {
			if n == readyOfTenant {
				round.rests[t] = at
				break
			}
			next, from := Ready{Tenant: t}, behindPlace(at.Queue, at.Kind)
			err := repo.in.sess.Query("SELECT queue, kind FROM runs WHERE ready=1 AND tenant=? "+
				"AND (queue,kind)>=(?,?) ORDER BY queue, kind LIMIT 1",
				[]any{string(t), from.Queue, from.Kind},
				func(scan func(...any) error) error { return scan(&next.Queue, &next.Kind) })
			if err != nil {
				return out, err
			}
			if next.Queue == "" {
				break
			}
			out, at = append(out, next), next
		}
	}
	return out, nil
}

// Tenants gives tenants after one that have something to claim, in order, and whether there are
// more.
func (repo *Claims) Tenants(after perdure.TenantID, limit int) (tenants []perdure.TenantID, more bool, err error) {
	found, more, err := repo.skipScan(nextTenant, nil, string(after), limit,
		func(r *perdure.Run) (string, bool) { return string(r.Tenant), r.Ready })
	for _, f := range found {
		tenants = append(tenants, perdure.TenantID(f))
	}
	return tenants, more, err
}

// skipScan reads distinct values by skipping along an index, one query per value. It adds the
// values of runs that the batch has changed.
func (repo *Claims) skipScan(
	query string, args []any, after string, limit int, of func(*perdure.Run) (string, bool),
) (out []string, more bool, err error) {
	for last := after; len(out) <= limit; {
		next := ""
		err := repo.in.sess.Query(query, append(slices.Clone(args), last),
			func(scan func(...any) error) error { return scan(&next) })
		if err != nil {
			return nil, false, err
		}
		if next == "" {
			break
		}
		out = append(out, next)
		last = next
	}
	repo.runs.eachChanged(func(_ runKey, r *perdure.Run) {
		if v, ok := of(r); ok && v > after && !slices.Contains(out, v) {
			out = append(out, v)
		}
	})
	slices.Sort(out)
	return out[:min(limit, len(out))], len(out) > limit, nil
}

// Fresh gives the runs that became claimable within the batch, by their places.
func (repo *Claims) Fresh() map[Ready][]Claimable {
	fresh := make(map[Ready][]Claimable)
	repo.runs.eachChanged(func(_ runKey, r *perdure.Run) {
		if r.Ready {
			k := Ready{r.Tenant, r.Queue, r.Kind}
			fresh[k] = append(fresh[k], ClaimableOf(r))
		}
	})
	return fresh
}

// A ClaimQueue iterates over the claimable runs of a queue and kind, in claim order. It reads their
// ids and the fields that decide the order, not the runs. The polls of a batch share a page of the
// database; each takes what the ones before it left.
type ClaimQueue struct {
	tx    *Tx
	key   claimKey
	fresh []Claimable // became claimable within the batch
	at    int         // the position in the page
}

// Queue gives the claim queue of a place at this moment. fresh are its runs that became claimable
// within the batch.
func (repo *Claims) Queue(at Ready, fresh []Claimable) *ClaimQueue {
	slices.SortStableFunc(fresh, ClaimOrder)
	return &ClaimQueue{tx: repo.in.tx, key: claimKey(at), fresh: fresh}
}

// Peek gives the next run. known is not set if rows have to be read first.
func (q *ClaimQueue) Peek() (r Claimable, ok, known bool) {
	stored, known := q.stored()
	switch {
	case !known:
		return r, false, false
	case stored == nil && len(q.fresh) == 0:
		return r, false, true
	case stored == nil || len(q.fresh) > 0 && ClaimOrder(q.fresh[0], *stored) < 0:
		return q.fresh[0], true, true
	}
	return *stored, true, true
}

// Take removes the run that Peek has given.
func (q *ClaimQueue) Take(r *Claimable) {
	if len(q.fresh) > 0 && q.fresh[0].ID == r.ID {
		q.fresh = q.fresh[1:]
		return
	}
	q.at++
}

// More tells whether runs seem to be left for another poll.
func (q *ClaimQueue) More() bool {
	if len(q.fresh) > 0 {
		return true
	}
	page := q.tx.Claims.pages[q.key]
	return page != nil && (q.at < len(page.heads) || !page.all && len(page.heads) > 0)
}

// stored gives the next run of the page that the batch has not changed. known is not set if the
// page is used up, and there may be more.
func (q *ClaimQueue) stored() (r *Claimable, known bool) {
	page := q.tx.Claims.pages[q.key]
	if page == nil {
		return nil, false
	}
	for ; q.at < len(page.heads); q.at++ {
		if q.free(&page.heads[q.at]) {
			return &page.heads[q.at], true
		}
	}
	return nil, page.all
}

// Read reads at most limit more rows of the page.
func (q *ClaimQueue) Read(limit int) error {
	repo := &q.tx.Claims
	if repo.pages == nil {
		repo.pages = make(map[claimKey]*claimPage)
	}
	page := repo.pages[q.key]
	if page == nil {
		page = &claimPage{}
		repo.pages[q.key] = page
	}
	for _, part := range behind(page.heads) {
		n, err := repo.readPage(q.key, page, part, limit)
		if err != nil || n == limit {
			return err
		}
		limit -= n
	}
	page.all = true
	return nil
}

// free tells whether a run of the page is unchanged and not locked. A run that the batch has
// changed is either in fresh or not claimable.
func (q *ClaimQueue) free(h *Claimable) bool {
	k := runKey{q.key.Tenant, h.ID}
	if known := q.tx.Runs.rows.byKey[k]; known != nil &&
		(known.dirty || !known.exists || !known.val.Ready || known.val.Queue != q.key.Queue ||
			known.val.Kind != q.key.Kind) {
		return false
	}
	return !q.tx.RunLocked(k.t, k.r)
}

// A pagePart is a condition on the rows of a place, with its arguments.
type pagePart struct {
	where string
	args  []any
}

// behind gives the conditions for the rows behind those of a page, in claim order. There are several,
// because the columns of the order point in different directions, and each has to be a range of the
// index.
func behind(heads []Claimable) []pagePart {
	if len(heads) == 0 {
		return []pagePart{{}}
	}
	last := heads[len(heads)-1]
	priority := int64(last.Priority)
	parts := []pagePart{{"AND priority=? AND resumed=? AND (created_at,id)>(?,?) ",
		[]any{priority, toBit(last.Resumed), int64(last.CreatedAt), string(last.ID)}}}
	if last.Resumed {
		parts = append(parts, pagePart{"AND priority=? AND resumed=0 ", []any{priority}})
	}
	return append(parts, pagePart{"AND priority<? ", []any{priority}})
}

// wholePage is the page size from which readPage may read whole runs.
const wholePage = 128

// readPage adds claimable runs to a page, and gives their number. It reads whole runs if the page is
// large and the cache had few runs of the last one, and otherwise only their order.
func (repo *Claims) readPage(ck claimKey, page *claimPage, part pagePart, limit int) (n int, err error) {
	rest := "WHERE ready=1 AND tenant=? AND queue=? AND kind=? " + part.where +
		"ORDER BY priority DESC, resumed DESC, created_at, id" + atMost
	args := append(append([]any{string(ck.Tenant), ck.Queue, ck.Kind}, part.args...), int64(limit))
	known := 0
	note := func(h Claimable) {
		n++
		page.add(ck, h)
		if repo.in.s.cache.has(runKey{ck.Tenant, h.ID}) {
			known++
		}
	}
	if limit >= wholePage && repo.in.s.cache.misses.Load() {
		err = runTable.query(repo.in.sess, rest, args, func(r *perdure.Run) error {
			note(ClaimableOf(r))
			repo.runs.absorb(r)
			return nil
		})
	} else {
		err = repo.in.sess.Query("SELECT "+orderCols+" FROM runs "+rest, args,
			func(scan func(...any) error) error {
				h, err := scanOrder(scan)
				note(h)
				return err
			})
	}
	if limit >= wholePage {
		repo.in.s.cache.misses.Store(2*known < n)
	}
	return n, err
}

// add appends a run to a page.
func (p *claimPage) add(ck claimKey, h Claimable) {
	h.Tenant = ck.Tenant
	p.heads = append(p.heads, h)
}

// orderCols are the columns that scanOrder reads: the id, and the fields that decide the order.
const orderCols = "id, priority, resumed, created_at"

func scanOrder(scan func(...any) error, before ...any) (h Claimable, err error) {
	var priority int64 // a damaged row is found too, and set aside when it is granted
	err = scan(append(before, &h.ID, nullable[int64]{&priority}, bit{&h.Resumed},
		nullable[perdure.Instant]{&h.CreatedAt})...)
	h.Priority = int(priority)
	return h, err
}
