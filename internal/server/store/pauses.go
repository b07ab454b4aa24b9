package store

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
)

// Paused queues and kinds.
//
// A row says that nothing is granted from a queue, or of a kind, until an instant, or until it is
// resumed. To resume it sets that instant to now. Retention removes the row later: a batch that deleted
// it could delete the pause that another operation of the batch writes.
//
// Every claim has to know the pauses of its tenant. So the store has one more value, the generation,
// which each change of any pause replaces. A node that has read the rows of a tenant uses them as long
// as the generation is the same. It is empty in a store in which nothing was ever paused.

// A PauseRow is a queue or a kind that is paused, or was. Either Queue or Kind is set.
type PauseRow struct {
	Tenant perdure.TenantID
	Queue  string
	Kind   string
	perdure.QueuePause
}

var pauseTable = register(&table[PauseRow]{
	name: "queue_pauses", keys: []string{"tenant", "name"},
	columns: func(c *columns, p *PauseRow) { pauseColumns(c, p, &p.Queue) },
})

var kindPauseTable = register(&table[PauseRow]{
	name: "kind_pauses", keys: []string{"tenant", "name"},
	columns: func(c *columns, p *PauseRow) { pauseColumns(c, p, &p.Kind) },
})

func pauseColumns(c *columns, p *PauseRow, name *string) {
	text(c, "tenant", &p.Tenant)
	text(c, "name", name)
	number(c, "paused_at", &p.At)
	number(c, "until_at", &p.Until)
	text(c, "paused_by", &p.By)
	flag(c, "platform", &p.Platform)
	text(c, "reason", &p.Reason)
}

// pauseGeneration is the name of the generation in the table meta.
const pauseGeneration = "pauses"

// Pauses holds the paused queues and kinds.
type Pauses struct {
	in     *base
	meta   *Meta
	queues staged[queueKey, PauseRow]
	kinds  staged[queueKey, PauseRow]
}

func (repo *Pauses) open(in *base, meta *Meta) {
	repo.meta = meta
	repo.in = in
	openRows(&repo.queues, in, pauseTable)
	openRows(&repo.kinds, in, kindPauseTable)
}

// Generation gives a text that is another one after each change of any pause.
func (repo *Pauses) Generation() (string, error) { return repo.meta.Get(pauseGeneration) }

// Staged tells whether an operation of the batch has changed a pause.
func (repo *Pauses) Staged() bool { return len(repo.queues.dirty)+len(repo.kinds.dirty) > 0 }

// Get gives the pause of a queue, which may be over.
func (repo *Pauses) Get(t perdure.TenantID, queue string) (PauseRow, bool, error) {
	return loadRow(&repo.queues, queueKey{t, queue}, "WHERE tenant=? AND name=?", string(t), queue)
}

// OfKind gives the pause of a kind, which may be over.
func (repo *Pauses) OfKind(t perdure.TenantID, kind string) (PauseRow, bool, error) {
	return loadRow(&repo.kinds, queueKey{t, kind}, "WHERE tenant=? AND name=?", string(t), kind)
}

// Of gives the pauses of a tenant that hold now, by name, queues first, including those of the batch.
func (repo *Pauses) Of(t perdure.TenantID) ([]PauseRow, error) {
	queues, err := holding(&repo.queues, pauseTable, t, func(p *PauseRow) queueKey {
		return queueKey{p.Tenant, p.Queue}
	})
	if err != nil {
		return nil, err
	}
	kinds, err := holding(&repo.kinds, kindPauseTable, t, func(p *PauseRow) queueKey {
		return queueKey{p.Tenant, p.Kind}
	})
	return append(queues, kinds...), err
}

// holding gives the pauses of one table that hold now.
func holding[K comparable](
	rows *staged[K, PauseRow], of *table[PauseRow], t perdure.TenantID, key func(*PauseRow) K,
) (out []PauseRow, err error) {
	in := rows.in
	err = of.query(in.sess, "WHERE tenant=? AND (until_at=0 OR until_at>?) ORDER BY name"+atMost,
		[]any{string(t), int64(in.Now), int64(perdure.MaxPauses)}, func(p *PauseRow) error {
			if r := rows.byKey[key(p)]; r == nil || !r.dirty {
				out = append(out, *p)
			}
			return nil
		})
	for _, k := range rows.dirty {
		if p := rows.byKey[k].val; p.Tenant == t && p.Holds(in.Now) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b PauseRow) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Kind, b.Kind))
	})
	return out, err
}

// Put stages a pause, and another generation.
func (repo *Pauses) Put(p PauseRow, generation string) {
	if p.Kind != "" {
		putRow(&repo.kinds, queueKey{p.Tenant, p.Kind}, p)
	} else {
		putRow(&repo.queues, queueKey{p.Tenant, p.Queue}, p)
	}
	addRows(&repo.in.tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) " +
		"ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{pauseGeneration, generation}, anyNumber})
}

// DropOver stages the removal of at most limit pauses that were over before an instant, and gives their
// number. A pause that begins again meanwhile stays.
func (repo *Pauses) DropOver(before perdure.Instant, limit int) (n int, err error) {
	for _, table := range []string{"queue_pauses", "kind_pauses"} {
		err = repo.in.sess.Query("SELECT tenant, name FROM "+table+" WHERE until_at>0 AND until_at<? "+
			"ORDER BY until_at"+atMost, []any{int64(before), int64(limit - n)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			var name string
			if err := scan(&t, &name); err != nil {
				return err
			}
			n++
			repo.in.tx.Stage("DELETE FROM "+table+" WHERE tenant=? AND name=? AND until_at>0 AND until_at<?",
				string(t), name, int64(before))
			return nil
		})
		if err != nil || n == limit {
			break
		}
	}
	return n, err
}
