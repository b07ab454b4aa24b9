package store

// Meta holds named values of the store itself.
type Meta struct {
	in *base
}

func (repo *Meta) open(in *base) { repo.in = in }

// Get gives a named value. It is empty if there is none.
func (repo *Meta) Get(name string) (v string, err error) {
	err = repo.in.sess.Query("SELECT value FROM meta WHERE name=?", []any{name},
		func(scan func(...any) error) error { return scan(&v) })
	return v, err
}

// Set stages a named value, unless another session has its row locked.
func (repo *Meta) Set(name, value string) {
	if tx := repo.in.tx; tx.locked[rowLock("meta", name)] || tx.locked[tableLock("meta")] {
		return
	}
	addRows(&repo.in.tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) " +
		"ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{name, value}, anyNumber})
}

// Claim stages a named value that must not exist yet. If two nodes claim it at once, one of them
// decides its batch again.
func (repo *Meta) Claim(name, value string) {
	addRows(&repo.in.tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO NOTHING",
		[]any{name, value}, 1})
}
