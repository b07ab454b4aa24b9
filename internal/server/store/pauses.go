package store

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Paused queues.
//
// A row says that nothing is granted from a queue until an instant, or until it is resumed. To resume
// a queue sets that instant to now. Retention removes the row later: a batch that deleted it could
// delete the pause that another operation of the batch writes.
//
// Every claim has to know the paused queues. So the store has one more value, the generation, which
// each change of any pause replaces. A node that has read the rows of a tenant uses them as long as
// the generation is the same. It is empty in a store in which no queue was ever paused.

// A PauseRow is a queue that is paused, or was.
type PauseRow struct {
	Tenant perdure.TenantID
	Queue  string
	perdure.QueuePause
}

var pauseTable = register(&table[PauseRow]{
	name: "queue_pauses", keys: []string{"tenant", "name"},
	columns: func(c *columns, p *PauseRow) {
		text(c, "tenant", &p.Tenant)
		text(c, "name", &p.Queue)
		number(c, "paused_at", &p.At)
		number(c, "until_at", &p.Until)
		text(c, "paused_by", &p.By)
		flag(c, "platform", &p.Platform)
		text(c, "reason", &p.Reason)
	},
})

// pauseGeneration is the name of the generation in the table meta.
const pauseGeneration = "pauses"

// Pauses holds the paused queues.
type Pauses struct {
	in   *base
	meta *Meta
	rows staged[queueKey, PauseRow]
}

func (repo *Pauses) open(in *base, meta *Meta) {
	repo.meta = meta
	repo.in = in
	openRows(&repo.rows, in, pauseTable)
}

// Generation gives a text that is another one after each change of any pause.
func (repo *Pauses) Generation() (string, error) { return repo.meta.Get(pauseGeneration) }

// Staged tells whether an operation of the batch has changed a pause.
func (repo *Pauses) Staged() bool { return len(repo.rows.dirty) > 0 }

// Get gives the pause of a queue, which may be over.
func (repo *Pauses) Get(t perdure.TenantID, queue string) (PauseRow, bool, error) {
	return loadRow(&repo.rows, queueKey{t, queue}, "WHERE tenant=? AND name=?", string(t), queue)
}

// Of gives the pauses of a tenant that hold now, by queue, including those of the batch.
func (repo *Pauses) Of(t perdure.TenantID) ([]PauseRow, error) {
	var out []PauseRow
	err := pauseTable.query(repo.in.sess, "WHERE tenant=? AND (until_at=0 OR until_at>?) ORDER BY name"+atMost,
		[]any{string(t), int64(repo.in.Now), int64(perdure.MaxPausedQueues)}, func(p *PauseRow) error {
			if r := repo.rows.byKey[queueKey{t, p.Queue}]; r == nil || !r.dirty {
				out = append(out, *p)
			}
			return nil
		})
	for _, k := range repo.rows.dirty {
		if p := repo.rows.byKey[k].val; k.t == t && p.Holds(repo.in.Now) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b PauseRow) int { return strings.Compare(a.Queue, b.Queue) })
	return out, err
}

// Put stages a pause, and another generation.
func (repo *Pauses) Put(p PauseRow, generation string) {
	putRow(&repo.rows, queueKey{p.Tenant, p.Queue}, p)
	addRows(&repo.in.tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) " +
		"ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{pauseGeneration, generation}, anyNumber})
}

// DropOver stages the removal of at most limit pauses that were over before an instant, and gives their
// number. A pause that begins again meanwhile stays.
func (repo *Pauses) DropOver(before perdure.Instant, limit int) (n int, err error) {
	err = repo.in.sess.Query("SELECT tenant, name FROM queue_pauses WHERE until_at>0 AND until_at<? "+
		"ORDER BY until_at"+atMost, []any{int64(before), int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		var queue string
		if err := scan(&t, &queue); err != nil {
			return err
		}
		n++
		repo.in.tx.Stage("DELETE FROM queue_pauses WHERE tenant=? AND name=? AND until_at>0 AND until_at<?",
			string(t), queue, int64(before))
		return nil
	})
	return n, err
}
