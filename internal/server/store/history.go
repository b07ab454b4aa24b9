package store

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// DispatchBuckets is the number of classes of times that runs wait for a worker.
const DispatchBuckets = 8

// A Minute counts what happened to a tenant's runs in one minute.
type Minute struct {
	Tenant perdure.TenantID
	// At is the beginning of the minute.
	At perdure.Instant

	Created, Completed, Failed, Cancelled, TimedOut int64
	// Errors counts attempts that failed or were lost, whether or not they were retried.
	Errors int64
	// Late counts runs that ended after their deadline, and Lateness is the longest delay among them,
	// in microseconds.
	Late, Lateness int64
	// Dispatched counts runs that got a worker, by the time that they waited for it.
	Dispatched [DispatchBuckets]int64

	Version int64
}

// Add adds the numbers of another minute.
func (m *Minute) Add(o *Minute) {
	m.Created, m.Completed, m.Failed = m.Created+o.Created, m.Completed+o.Completed, m.Failed+o.Failed
	m.Cancelled, m.TimedOut, m.Errors = m.Cancelled+o.Cancelled, m.TimedOut+o.TimedOut, m.Errors+o.Errors
	m.Late, m.Lateness = m.Late+o.Late, max(m.Lateness, o.Lateness)
	for i := range m.Dispatched {
		m.Dispatched[i] += o.Dispatched[i]
	}
}

var historyTable = register(&table[Minute]{
	name: "history", versioned: true, version: func(m *Minute) *int64 { return &m.Version },
	keys: []string{"tenant", "at"},
	columns: func(c *columns, m *Minute) {
		text(c, "tenant", &m.Tenant)
		number(c, "at", &m.At)
		number(c, "created", &m.Created)
		number(c, "completed", &m.Completed)
		number(c, "failed", &m.Failed)
		number(c, "cancelled", &m.Cancelled)
		number(c, "timed_out", &m.TimedOut)
		number(c, "errors", &m.Errors)
		number(c, "late", &m.Late)
		number(c, "lateness", &m.Lateness)
		d := &m.Dispatched
		number(c, "d0", &d[0])
		number(c, "d1", &d[1])
		number(c, "d2", &d[2])
		number(c, "d3", &d[3])
		number(c, "d4", &d[4])
		number(c, "d5", &d[5])
		number(c, "d6", &d[6])
		number(c, "d7", &d[7])
		number(c, "version", &m.Version)
	},
})

// historySums are the columns of a minute, added up over tenants.
var historySums = func() (out string) {
	for _, c := range historyTable.cols[2 : len(historyTable.cols)-1] {
		f := "sum"
		if c == "lateness" {
			f = "max"
		}
		out += ", CAST(" + f + "(" + c + ") AS BIGINT)"
	}
	return out
}()

type minuteKey struct {
	t  perdure.TenantID
	at perdure.Instant
}

// History holds what happened in each minute.
type History struct {
	in   *base
	rows staged[minuteKey, Minute]
	// trimmed is set when the batch has removed old minutes.
	trimmed bool
}

func (repo *History) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, historyTable)
}

// Add stages the addition of numbers to those of a minute. If another node adds to the same minute
// now, the batch is decided again.
func (repo *History) Add(m Minute) error {
	k := minuteKey{m.Tenant, m.At}
	row, _, err := loadRow(&repo.rows, k, "WHERE tenant=? AND at=?", string(m.Tenant), int64(m.At))
	if err != nil {
		return err
	}
	row.Tenant, row.At = m.Tenant, m.At
	row.Add(&m)
	putRow(&repo.rows, k, row)
	return nil
}

// Since gives the minutes of a tenant from an instant on, oldest first. Without a tenant they are
// those of all tenants, added up.
func (repo *History) Since(t perdure.TenantID, from perdure.Instant, limit int) ([]Minute, error) {
	if t != "" {
		return historyTable.list(repo.in.sess, "WHERE tenant=? AND at>=? ORDER BY at"+atMost,
			[]any{string(t), int64(from), int64(limit)})
	}
	var out []Minute
	err := repo.in.sess.Query("SELECT '', at"+historySums+", 0 FROM history WHERE at>=? GROUP BY at ORDER BY at"+
		atMost, []any{int64(from), int64(limit)}, func(scan func(...any) error) error {
		var m Minute
		err := scan(historyTable.scan(&m)...)
		out = append(out, m)
		return err
	})
	return out, err
}

// Trim stages the removal of the minutes before an instant, at most limit of them.
func (repo *History) Trim(before perdure.Instant, limit int) error {
	if !repo.in.tx.onceInBatch(&repo.trimmed) {
		return nil
	}
	var old []minuteKey
	err := repo.in.sess.Query(fmt.Sprintf("SELECT tenant, at FROM history WHERE at<? ORDER BY at LIMIT %d", limit),
		[]any{int64(before)}, func(scan func(...any) error) error {
			var k minuteKey
			err := scan(&k.t, &k.at)
			old = append(old, k)
			return err
		})
	if err != nil || len(old) == 0 {
		return err
	}
	last := slices.MaxFunc(old, func(a, b minuteKey) int { return int(a.at - b.at) })
	addRows(&repo.in.tx.later, statement{"DELETE FROM history WHERE at<=?", []any{int64(last.at)}, anyNumber})
	return repo.in.tx.exclusive("history")
}
