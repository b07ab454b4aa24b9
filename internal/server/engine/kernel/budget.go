package kernel

import "github.com/perdure/perdure/internal/server/store"

// maxStops bounds the runs that an operation asks to stop.
const maxStops = 256

// OverBudget tells whether the operation has used up its budget of stops, rows, bytes or time. A
// sweep of the watchdog asks it, too; there, each part has a budget of its own.
func (tx *Tx) OverBudget() bool { return spent(tx) >= tx.spendable }

// spent gives how much of its budget the operation has used: one is all of it.
func spent(tx *Tx) float64 {
	c := tx.DB.Cost().Minus(tx.began)
	return max(
		float64(maxStops-tx.StopsLeft)/maxStops,
		float64(c.Written)/float64(tx.DB.OpRows()),
		float64(c.Bytes)/store.OpBytes,
		tx.DB.Lateness())
}

// BeginPart limits OverBudget to part n of an operation that has several, counted from zero. The
// part gets an equal share of the budget, and what the parts before it have left of theirs. If they
// used too much, it still has its own share.
func (tx *Tx) BeginPart(n, parts int) {
	share := 1 / float64(parts)
	tx.spendable = max(float64(n+1)*share, spent(tx)+share)
}
