package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// The lines at limits.
//
// The column limited_at of a run says what its position at its limits is. It is empty for nearly all
// runs, and runs_limited is a partial index of the others:
//
//	w␟limit␟key␟0␟turn   it waits at a limit, and was suspended before
//	w␟limit␟key␟1␟turn   it waits at a limit
//	o                    it is offered: claimable, and counted
//	h                    it holds slots
//
// The runs that wait with the same text are a line. Within a line each queue and kind is a range of the
// index in claim order, as in runs_ready. So the next run of a line is the first one of a few ranges, no
// matter how many runs wait.

const (
	limitSep     = "\x1f" // no name and no key has it
	limitHeld    = "h"
	limitOffered = "o"
	// maxLinePlaces bounds the places of a line that are compared to find its next run.
	maxLinePlaces = 16
	// linePageRows is how many rows of a place are read at once.
	linePageRows = 16
	// maxLines bounds the lines that are looked at to find a run.
	maxLines = 16
)

// limitedAt gives the column limited_at.
func limitedAt(r *perdure.Run) any { return positionOf(r) }

func positionOf(r *perdure.Run) string {
	l := r.Limited
	switch {
	case l == nil || !r.State.Live():
		return ""
	case l.At.Limit != "":
		return linesOf(l.At, goesAhead(r)) + l.Turn
	case r.HoldsSlots():
		return limitHeld
	case len(l.Refs) > 0:
		return limitOffered
	}
	return ""
}

// goesAhead tells whether a run goes ahead of new ones: it was suspended, or it is, and a step of it waits.
func goesAhead(r *perdure.Run) bool { return r.Resumed || r.State == perdure.Suspended }

// linesOf begins the lines at a limit, those of runs that were suspended or of the others.
func linesOf(at perdure.LimitRef, resumed bool) string {
	group := "1"
	if resumed {
		group = "0"
	}
	return "w" + limitSep + at.Limit + limitSep + at.Key + limitSep + group + limitSep
}

// behindAll is behind every text with a prefix that ends with limitSep.
func behindAll(prefix string) string { return strings.TrimSuffix(prefix, limitSep) + " " }

// A StoredPosition is the position of a run as its column says, also if the rest of its row can't be read.
type StoredPosition struct {
	// Waits is set if the run waits at a limit, and Held if it holds slots, of whatever limits.
	Waits perdure.LimitRef
	Held  bool
}

// Stored reads the position of a run from its column.
func (repo *LimitLines) Stored(t perdure.TenantID, id perdure.RunID) (p StoredPosition, err error) {
	text := ""
	err = repo.in.sess.Query("SELECT limited_at FROM runs WHERE tenant=? AND id=?", []any{string(t), string(id)},
		func(scan func(...any) error) error { return scan(&text) })
	if parts := strings.Split(text, limitSep); len(parts) == 5 {
		p.Waits = perdure.LimitRef{Limit: parts[1], Key: parts[2]}
	}
	p.Held = text == limitHeld
	return p, err
}

// LimitLines finds runs by their position at limits. It has no rows of its own: the runs are in Runs.
type LimitLines struct {
	in     *base
	runs   *Runs
	places map[Ready][]*linePlace // by tenant and line; Kind is empty
}

// A linePlace has the first runs of a line in a queue and kind, as they are committed.
type linePlace struct {
	Ready
	heads []Claimable
	at    int
	all   bool
}

func (repo *LimitLines) open(in *base, runs *Runs) { repo.in, repo.runs = in, runs }

// Next gives the run that goes next at a limit: runs that were suspended before others, then the key
// that follows turn, then claim order. Places that skip are left out.
func (repo *LimitLines) Next(
	t perdure.TenantID, at perdure.LimitRef, turn string, skip func(queue, kind string) bool,
) (id perdure.RunID, ok bool, err error) {
	for _, resumed := range []bool{true, false} {
		prefix := linesOf(at, resumed)
		line, wrapped, from := prefix+turn, false, false
		for range maxLines {
			next, err := repo.nextLine(t, at, resumed, line, from)
			if err != nil {
				return "", false, err
			}
			if next == "" && wrapped || wrapped && next > prefix+turn {
				break
			}
			if next == "" {
				line, wrapped, from = prefix, true, true
				continue
			}
			if id, ok, err := repo.first(t, next, skip); err != nil || ok {
				return id, ok, err
			}
			line, from = next, false
		}
	}
	return "", false, nil
}

// nextLine gives the first line at a limit that is behind a text, or that is not before it if from is set.
func (repo *LimitLines) nextLine(
	t perdure.TenantID, at perdure.LimitRef, resumed bool, line string, from bool,
) (next string, err error) {
	op, prefix := ">", linesOf(at, resumed)
	if from {
		op = ">="
	}
	err = repo.in.sess.Query("SELECT limited_at FROM runs WHERE limited_at<>'' AND tenant=? AND limited_at"+op+
		"? AND limited_at<? ORDER BY limited_at LIMIT 1", []any{string(t), line, behindAll(prefix)},
		func(scan func(...any) error) error { return scan(&next) })
	repo.runs.eachChanged(func(k runKey, r *perdure.Run) {
		if k.t != t || !r.AtLimit() || r.Limited.At != at || goesAhead(r) != resumed || !r.State.Live() {
			return
		}
		if p := positionOf(r); (p > line || from && p == line) && (next == "" || p < next) {
			next = p
		}
	})
	return next, err
}

// first gives the first run of a line in claim order.
func (repo *LimitLines) first(
	t perdure.TenantID, line string, skip func(queue, kind string) bool,
) (perdure.RunID, bool, error) {
	var first *Claimable
	better := func(c *Claimable) {
		if first == nil || ClaimOrder(*c, *first) < 0 {
			first = c
		}
	}
	places, err := repo.placesOf(t, line)
	if err != nil {
		return "", false, err
	}
	for _, p := range places {
		if skip(p.Queue, p.Kind) {
			continue
		}
		c, err := repo.head(p, line)
		if err != nil {
			return "", false, err
		}
		if c != nil {
			better(c)
		}
	}
	repo.runs.eachChanged(func(k runKey, r *perdure.Run) {
		if k.t == t && r.AtLimit() && !skip(r.Queue, r.Kind) && positionOf(r) == line {
			c := ClaimableOf(r)
			better(&c)
		}
	})
	if first == nil {
		return "", false, nil
	}
	return first.ID, true, nil
}

// placesOf gives the places of a line, the first ones if there are many.
func (repo *LimitLines) placesOf(t perdure.TenantID, line string) ([]*linePlace, error) {
	key := Ready{Tenant: t, Queue: line}
	if list, known := repo.places[key]; known {
		return list, nil
	}
	list, at := []*linePlace{}, Position{}
	for len(list) < maxLinePlaces {
		var next Position
		err := repo.in.sess.Query("SELECT queue, kind FROM runs WHERE limited_at<>'' AND tenant=? AND limited_at=? "+
			"AND (queue,kind)>=(?,?) ORDER BY queue, kind LIMIT 1", []any{string(t), line, at.Queue, at.Kind},
			func(scan func(...any) error) error { return scan(&next.Queue, &next.Kind) })
		if err != nil {
			return nil, err
		}
		if next.Queue == "" {
			break
		}
		list = append(list, &linePlace{Ready: Ready{Tenant: t, Queue: next.Queue, Kind: next.Kind}})
		at = behindPlace(next.Queue, next.Kind)
	}
	if repo.places == nil {
		repo.places = make(map[Ready][]*linePlace)
	}
	repo.places[key] = list
	return list, nil
}

// head gives the first run of a place that the batch has not changed, or nil.
func (repo *LimitLines) head(p *linePlace, line string) (*Claimable, error) {
	for {
		for ; p.at < len(p.heads); p.at++ {
			h := &p.heads[p.at]
			k := runKey{p.Tenant, h.ID}
			known := repo.runs.rows.byKey[k]
			changed := known != nil && (known.dirty || !known.exists || positionOf(&known.val) != line)
			if !changed && (repo.in.tx == nil || !repo.in.tx.RunLocked(k.t, k.r)) {
				return h, nil
			}
		}
		if p.all {
			return nil, nil
		}
		if err := repo.read(p, line); err != nil {
			return nil, err
		}
	}
}

// read reads more rows of a place.
func (repo *LimitLines) read(p *linePlace, line string) error {
	parts := []pagePart{{}}
	if n := len(p.heads); n > 0 {
		last := p.heads[n-1]
		parts = []pagePart{
			{"AND priority=? AND (created_at,id)>(?,?) ",
				[]any{int64(last.Priority), int64(last.CreatedAt), string(last.ID)}},
			{"AND priority<? ", []any{int64(last.Priority)}},
		}
	}
	left := linePageRows
	for _, part := range parts {
		err := repo.in.sess.Query("SELECT "+orderCols+" FROM runs WHERE limited_at<>'' AND tenant=? AND limited_at=? "+
			"AND queue=? AND kind=? "+part.where+"ORDER BY priority DESC, created_at, id"+atMost,
			append(append([]any{string(p.Tenant), line, p.Queue, p.Kind}, part.args...), int64(left)),
			func(scan func(...any) error) error {
				h, err := scanOrder(scan)
				h.Tenant = p.Tenant
				p.heads = append(p.heads, h)
				left--
				return err
			})
		if err != nil || left == 0 {
			return err
		}
	}
	p.all = true
	return nil
}

// maxAhead bounds what Ahead counts.
const maxAhead = 1000

// Ahead counts the runs of a run's line that go before it, at least.
func (repo *LimitLines) Ahead(r *perdure.Run) (n int, err error) {
	err = repo.in.sess.Query("SELECT count(*) FROM (SELECT priority, created_at, id FROM runs WHERE limited_at<>'' "+
		"AND tenant=? AND limited_at=? ORDER BY queue, kind, priority DESC, created_at, id"+atMost+
		") AS line WHERE priority>? OR priority=? AND (created_at,id)<(?,?)",
		[]any{string(r.Tenant), positionOf(r), int64(maxAhead), int64(r.Priority), int64(r.Priority),
			int64(r.CreatedAt), string(r.ID)},
		func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

// Held gives runs of a tenant that hold slots, at most limit, with those of the batch.
func (repo *LimitLines) Held(t perdure.TenantID, limit int) ([]perdure.Run, error) {
	return repo.at(t, limitHeld, limit)
}

// Waiting gives runs that wait at a limit, at most limit, in the order of lines and places. With anyKey it
// gives those of all keys.
func (repo *LimitLines) Waiting(
	t perdure.TenantID, at perdure.LimitRef, anyKey bool, limit int,
) (out []perdure.Run, err error) {
	prefixes := []string{linesOf(at, true), linesOf(at, false)}
	if anyKey {
		prefixes = []string{"w" + limitSep + at.Limit + limitSep}
	}
	for _, prefix := range prefixes {
		err := runTable.query(repo.in.sess, "WHERE limited_at<>'' AND tenant=? AND limited_at>=? AND limited_at<? "+
			"ORDER BY limited_at, queue, kind, priority DESC, created_at, id"+atMost,
			[]any{string(t), prefix, behindAll(prefix), int64(limit - len(out))}, func(r *perdure.Run) error {
				out = append(out, *r)
				return nil
			})
		if err != nil {
			return nil, err
		}
	}
	return slices.Clip(out), nil
}

// Offered gives claimable runs of a tenant that are offered, at most limit, with those of the batch.
func (repo *LimitLines) Offered(t perdure.TenantID, limit int) ([]perdure.Run, error) {
	return repo.at(t, limitOffered, limit)
}

// at gives runs with a position that is no line.
func (repo *LimitLines) at(t perdure.TenantID, position string, limit int) (out []perdure.Run, err error) {
	err = runTable.query(repo.in.sess, "WHERE limited_at=? AND limited_at<>'' AND tenant=? ORDER BY queue, kind, "+
		"priority DESC, created_at, id"+atMost, []any{position, string(t), int64(limit)}, func(r *perdure.Run) error {
		if known := repo.runs.rows.byKey[runKey{t, r.ID}]; known == nil || !known.dirty {
			out = append(out, *r)
		}
		return nil
	})
	repo.runs.eachChanged(func(k runKey, r *perdure.Run) {
		if k.t == t && positionOf(r) == position {
			out = append(out, *r)
		}
	})
	return out, err
}
