package life

import (
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Names that callers choose for their threads and runs.
//
// A name is a row beside its owner, and goes with it. Until the row is removed, its owner is gone
// already: whoever reads a name looks for the owner as well, and a new name takes the place of such a row.

// NameRun gives a run one more name, from a line of its log on. Repeating it changes nothing.
type NameRun struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Name   string
	// FromSeq is the first line that the name stands for. Zero: all of them.
	FromSeq int64
	Key     string

	Created bool
}

// Needs names the run.
func (op *NameRun) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do gives the name.
func (op *NameRun) Do(tx *kernel.Tx) error {
	if err := perdure.CheckChosenName("name", op.Name); err != nil {
		return err
	}
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if op.FromSeq < 0 || op.FromSeq > r.Seq+1 {
		return perdure.Invalid("from_seq", "lies between 0 and %d, one after the last line of the log", r.Seq+1)
	}
	op.Created, err = putName(tx, op.Key, store.NameRow{Tenant: op.Tenant, Of: store.NamedRun, Name: op.Name,
		Owner: string(op.RunID), FromSeq: op.FromSeq})
	return err
}

// putName gives a thread or run one more name, once for each key.
func putName(tx *kernel.Tx, key string, want store.NameRow) (created bool, err error) {
	action := "name." + string(want.Of) + ":" + want.Owner
	_, err = kernel.UnderKey(tx, want.Tenant, action, key, []any{want.Name, want.FromSeq}, func() (string, error) {
		var err error
		created, err = putNewName(tx, want)
		return "", err
	}, func(string) error { return nil })
	return created, err
}

// putNewName gives a thread or run one more name. A name that it has keeps the line that it begins at.
func putNewName(tx *kernel.Tx, want store.NameRow) (created bool, err error) {
	name, known, err := findName(tx, want.Tenant, want.Of, want.Name)
	switch {
	case err != nil:
		return false, err
	case known && name.Owner == want.Owner && name.FromSeq == want.FromSeq:
		return false, nil
	case known && name.Owner == want.Owner:
		return false, perdure.Errorf(perdure.CodeNameTaken, "the name stands for the %s from line %d on", want.Of,
			name.FromSeq)
	case known:
		return false, perdure.Errorf(perdure.CodeNameTaken, "another %s has this name", want.Of)
	}
	name.Owner, name.FromSeq = want.Owner, want.FromSeq
	if err := tx.DB.RefuseIfFull(); err != nil {
		return false, err
	}
	has, err := tx.DB.Names.Of(want.Tenant, want.Owner)
	if err != nil {
		return false, err
	}
	if len(has) >= perdure.MaxNames {
		return false, perdure.OverBound("name", "the %s has %d names, as many as it may have", want.Of, len(has))
	}
	return true, addName(tx, name)
}

// findName finds a name whose owner is there. If it is not known, the row is what a new owner is put
// into. An empty name is never known.
func findName(
	tx *kernel.Tx, t perdure.TenantID, of store.Named, name string,
) (row store.NameRow, known bool, err error) {
	if name == "" {
		return row, false, nil
	}
	row, stored, err := tx.DB.Names.Get(t, of, name)
	if err != nil {
		return row, false, err
	}
	if stored {
		if of == store.NamedThread {
			_, known, err = tx.DB.Threads.Get(t, perdure.ThreadID(row.Owner))
		} else {
			_, known, err = tx.DB.Runs.Get(t, perdure.RunID(row.Owner))
		}
	}
	if err != nil || known {
		return row, known, err
	}
	return store.NameRow{Tenant: t, Of: of, Name: name, Version: row.Version}, false, nil
}

// addName stages a name that is free.
func addName(tx *kernel.Tx, name store.NameRow) error {
	if err := lastingNames.Of(tx.Engine).admit(tx, name.Tenant); err != nil {
		return err
	}
	name.CreatedAt = tx.Now
	tx.DB.Names.Put(name)
	return nil
}

// maxLastingNames is the number of names that a tenant may have beside those of its live runs. Live runs
// have a limit of their own.
const maxLastingNames = 100_000

// countNamesAfter is how long a count is used that found no free name.
const countNamesAfter = 10 * time.Second

// lastingNameCounts enforces the limit of names. A count reads as many index rows as the tenant has names,
// so it is used until a tenth of the names that were free is taken. On several nodes a tenant may
// therefore have some more than the limit.
type lastingNameCounts struct {
	mu    sync.Mutex
	known map[perdure.TenantID]*freeNames
}

// freeNames is how many names may be taken before the next count.
type freeNames struct {
	left int
	// full is set if the count found no free name.
	full bool
	at   perdure.Instant
}

var lastingNames = kernel.NewPart(func(*kernel.Engine) *lastingNameCounts { return &lastingNameCounts{} })

// maxCountedNames bounds the tenants that are remembered.
const maxCountedNames = 4096

// admit admits one more name of a tenant, or refuses it.
func (l *lastingNameCounts) admit(tx *kernel.Tx, t perdure.TenantID) error {
	if known, err := l.take(t, tx.Now); known {
		return err
	}
	n, err := tx.DB.Names.CountLasting(t, maxLastingNames)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.known == nil || len(l.known) >= maxCountedNames {
		l.known = make(map[perdure.TenantID]*freeNames)
	}
	free := maxLastingNames - n
	l.known[t] = &freeNames{left: max(free/10, min(free, 1)), full: free <= 0, at: tx.Now}
	l.mu.Unlock()
	_, err = l.take(t, tx.Now)
	return err
}

// take takes a name of a tenant by the last count, or refuses it. Without a count that can be used,
// known is false.
func (l *lastingNameCounts) take(t perdure.TenantID, now perdure.Instant) (known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c := l.known[t]; {
	case c == nil:
		return false, nil
	case c.full && c.at <= now && now.Sub(c.at) < countNamesAfter:
		return true, perdure.Errorf(perdure.CodeQuota,
			"this tenant may have %d names beside those of live runs, and has them", maxLastingNames)
	case c.full || c.left <= 0:
		return false, nil
	default:
		c.left--
		return true, nil
	}
}
