package store

import (
	"slices"

	"github.com/perdure/perdure"
)

// The places that have something to claim.
//
// A place is a queue and a kind of a tenant. A walk goes through the places of some queues and kinds
// along the index runs_ready, which has a place's runs one after the other. It reads the first rows of
// a place and then searches the next one. Queues and kinds that the walk is not for are skipped by a
// single search, however many places and runs they have.

// A PlaceSet is queues and kinds: both are sorted and name nothing twice. No kinds mean any kind.
type PlaceSet struct {
	Queues, Kinds []string
	// Key identifies the set.
	Key string
}

// A Position is where a walk continues: at the first place that is not before it.
type Position struct{ Queue, Kind string }

// Less tells whether a position is before another.
func (p Position) Less(q Position) bool {
	return p.Queue < q.Queue || p.Queue == q.Queue && p.Kind < q.Kind
}

// behindPlace is the position behind a place. No name has a character before the appended one. A search
// from there on finds the next place at once. One for (queue,kind)>(?,?) would not: SQLite begins it at
// the place itself, and reads all of its runs.
func behindPlace(queue, kind string) Position { return Position{queue, kind + "\x01"} }

// A Walked is a part of a walk.
type Walked struct {
	Places []Ready // in order
	// Next is where the walk continues. Its queue is empty if the walk is at its end.
	Next  Position
	limit int
}

// A walkKey identifies a part of a walk.
type walkKey struct {
	t    perdure.TenantID
	set  string
	from Position
	each int
}

// next gives the position that follows a row, and whether the walk is for the row's place.
func (s *PlaceSet) next(queue, kind string) (next Position, ok bool) {
	i, named := slices.BinarySearch(s.Queues, queue)
	switch {
	case named && len(s.Kinds) == 0:
		return behindPlace(queue, kind), true
	case named:
		k, ok := slices.BinarySearch(s.Kinds, kind)
		if ok {
			k++
		}
		if k < len(s.Kinds) {
			return Position{queue, s.Kinds[k]}, ok
		}
		return s.first(i + 1), ok
	}
	return s.first(i), false
}

// first gives the position of a queue of the set. It is empty behind the last one.
func (s *PlaceSet) first(i int) (p Position) {
	if i < len(s.Queues) {
		if p.Queue = s.Queues[i]; len(s.Kinds) > 0 {
			p.Kind = s.Kinds[0]
		}
	}
	return p
}

// start gives the first position of the set that is not before another.
func (s *PlaceSet) start(from Position) Position {
	i, named := slices.BinarySearch(s.Queues, from.Queue)
	if p := s.first(i); !named || from.Less(p) {
		return p
	}
	return from
}

// Walk gives the places of a set from a position on that have a claimable run, and reads the first
// rows of each, at most each. It reads at most limit rows; a search that finds none counts as one. The
// polls of a batch share what was read.
func (repo *Claims) Walk(t perdure.TenantID, set *PlaceSet, from Position, each, limit int) (Walked, error) {
	from = set.start(from)
	if from.Queue == "" {
		return Walked{}, nil
	}
	key := walkKey{t, set.Key, from, each}
	if w := repo.walks[key]; w != nil && (w.limit >= limit || w.Next.Queue == "") {
		return *w, nil
	}
	w := &Walked{Next: from, limit: limit}
	if repo.pages == nil {
		repo.pages, repo.walks = make(map[claimKey]*claimPage), make(map[walkKey]*Walked)
	}
	search := repo.searchEach
	if repo.in.dialect.recursive {
		search = repo.searchAtOnce
	}
	var last *claimPage // of the row before, if this walk reads it
	var lastPlace Ready
	lastStep := 0
	row := func(step int, at Ready, h Claimable) {
		// The rows of one search follow each other in the index: a place that another one follows is
		// complete.
		if last != nil && step == lastStep && at != lastPlace {
			last.all = true
		}
		next, ok := set.next(at.Queue, at.Kind)
		if at != lastPlace {
			last, lastPlace = nil, at
			if ok {
				w.Places = append(w.Places, at)
				if repo.pages[claimKey(at)] == nil {
					last = &claimPage{}
					repo.pages[claimKey(at)] = last
				}
			}
		}
		if last != nil {
			last.add(claimKey(at), h)
		}
		w.Next, lastStep = next, step
	}
	if err := search(t, set, w, each, row); err != nil {
		return Walked{}, err
	}
	if repo.walks == nil {
		repo.walks = make(map[walkKey]*Walked)
	}
	repo.walks[key] = w
	return *w, nil
}

const (
	// placeOrder is the order of the index runs_ready within a tenant.
	placeOrder = "ORDER BY " + placeCols
	placeCols  = "queue, kind, priority DESC, resumed DESC, created_at, id"
	// nextTenant finds the next tenant with something to claim. Its order names all columns of runs_ready,
	// because by tenant alone PostgreSQL may take another index and read runs that are not ready.
	nextTenant = "SELECT tenant FROM runs WHERE ready=1 AND tenant>? ORDER BY tenant, " + placeCols + " LIMIT 1"
)

// searchEach walks with one query for each search.
func (repo *Claims) searchEach(
	t perdure.TenantID, set *PlaceSet, w *Walked, each int, row func(step int, at Ready, h Claimable),
) error {
	last := set.Queues[len(set.Queues)-1]
	for step, left := 0, w.limit; left > 0 && w.Next.Queue != ""; step++ {
		n := int64(min(each, left))
		found := 0
		err := repo.in.sess.Query("SELECT queue, kind, "+orderCols+" FROM runs WHERE ready=1 AND tenant=? AND "+
			"(queue,kind)>=(?,?) AND queue<=? "+placeOrder+atMost,
			[]any{string(t), w.Next.Queue, w.Next.Kind, last, n}, func(scan func(...any) error) error {
				var queue, kind string
				h, err := scanOrder(scan, &queue, &kind)
				found++
				row(step, Ready{t, queue, kind}, h)
				return err
			})
		if err != nil {
			return err
		}
		if found == 0 {
			w.Next = Position{}
		}
		left -= max(1, found)
	}
	return nil
}

// walkQuery does all searches of a walk in one statement. A step searches the position that the last
// row of the step before gives; nq and nk are what PlaceSet.next gives.
const walkQuery = `WITH RECURSIVE w(step, last, nq, nk, queue, kind, id, priority, resumed, created_at) AS (
	SELECT 0, true, ?::text COLLATE "C", ?::text COLLATE "C", ''::text COLLATE "C", ''::text COLLATE "C",
		''::text COLLATE "C", 0, 0, 0::bigint
	UNION ALL
	SELECT w.step+1, h.last, CASE WHEN x.k IS NULL THEN x.q ELSE h.queue END, coalesce(x.k, given.ks[1], ''),
		h.queue, h.kind, h.id, h.priority, h.resumed, h.created_at
	FROM w,
		(SELECT ?::text[] AS qs, ?::text[] AS ks) AS given,
		LATERAL (SELECT *, row_number() OVER () = count(*) OVER () AS last FROM (
			SELECT queue, kind, id, priority, resumed, created_at FROM runs WHERE ready=1 AND tenant=?
			AND (queue,kind)>=(w.nq,w.nk) AND queue<=? ` + placeOrder + ` LIMIT ?::bigint) AS found) AS h,
		LATERAL (SELECT CASE WHEN NOT h.queue=ANY(given.qs) THEN NULL
				WHEN cardinality(given.ks)=0 THEN h.kind||chr(1)
				ELSE (SELECT min(k COLLATE "C") FROM unnest(given.ks) AS k WHERE k COLLATE "C">h.kind) END AS k,
			(SELECT min(q COLLATE "C") FROM unnest(given.qs) AS q WHERE q COLLATE "C">h.queue) AS q) AS x
	WHERE w.last AND w.nq IS NOT NULL AND w.step<?::bigint)
SELECT queue, kind, ` + orderCols + `, step FROM w WHERE step>0`

// searchAtOnce walks with one query.
func (repo *Claims) searchAtOnce(
	t perdure.TenantID, set *PlaceSet, w *Walked, each int, row func(step int, at Ready, h Claimable),
) error {
	steps := max(1, w.limit/each)
	kinds := set.Kinds
	if kinds == nil {
		kinds = []string{}
	}
	done := 0
	err := repo.in.sess.Query(walkQuery, []any{w.Next.Queue, w.Next.Kind, set.Queues, kinds, string(t),
		set.Queues[len(set.Queues)-1], int64(each), int64(steps)}, func(scan func(...any) error) error {
		var queue, kind string
		var h Claimable
		var priority int64
		err := scan(&queue, &kind, &h.ID, nullable[int64]{&priority}, bit{&h.Resumed},
			nullable[perdure.Instant]{&h.CreatedAt}, &done)
		h.Priority = int(priority)
		row(done, Ready{t, queue, kind}, h)
		return err
	})
	if done < steps {
		w.Next = Position{}
		repo.in.tx.reads++ // the last search has found nothing
	}
	return err
}
