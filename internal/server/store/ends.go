package store

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
)

// An End says how and when a run ended.
type End struct {
	ID    perdure.RunID
	State perdure.State
	At    perdure.Instant
}

// Ends gives those of a tenant's runs that have ended, in the order of SortEnds.
func (repo *Runs) Ends(t perdure.TenantID, ids []perdure.RunID) (out []End, err error) {
	err = eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return repo.in.sess.Query("SELECT id,state,finished_at FROM runs "+given+" AND alarm_at IS NULL", args,
			func(scan func(...any) error) error {
				var e End
				if err := scan(&e.ID, &e.State, &e.At); err != nil {
					return err
				}
				out = append(out, e)
				return nil
			})
	})
	SortEnds(out, ids)
	return out, err
}

// SortEnds sorts ends by their instants. At the same instant completed runs come first and
// cancelled ones last, since the completion may be the cause of the cancellation. Then the order of
// ids decides.
func SortEnds(ends []End, ids []perdure.RunID) {
	place := make(map[perdure.RunID]int, len(ids))
	for i, id := range ids {
		place[id] = i
	}
	rank := map[perdure.State]int{perdure.Completed: -1, perdure.Cancelled: 1}
	slices.SortFunc(ends, func(a, b End) int {
		return cmp.Or(cmp.Compare(a.At, b.At), rank[a.State]-rank[b.State], place[a.ID]-place[b.ID])
	})
}
