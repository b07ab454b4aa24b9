package upkeep

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Kinds that expire.
//
// A kind is removed from the registry when no worker has announced or served it for KindRetention, no
// operator has overridden a field of it, and no live run has it. Workers announce their kinds when
// they start, and then only poll. So retention notes about once a day that a kind is still served.

const (
	// kindsEvery is the least time between two passes through the kinds.
	kindsEvery = time.Hour
	// kindSeenEvery is how often it is noted that a kind is still served.
	kindSeenEvery = 24 * time.Hour
	// unusedKinds bounds the kinds that one step reads.
	unusedKinds = 100
	// maxLiveLook bounds the live runs of a tenant that are read. If a tenant has more, none of its
	// kinds expire meanwhile.
	maxLiveLook = 5000
)

// A KindPass is the cursor of retention among the kinds.
type KindPass struct {
	// After is the last kind that was read. It is zero between two passes.
	After store.KindCursor
	// NextAt is when the next pass begins.
	NextAt perdure.Instant
}

// dropKinds removes unused kinds, and notes which are served.
func dropKinds(tx *kernel.Tx, at *KindPass) (n int, more bool, err error) {
	p := tx.Engine.Policy()
	keep := max(p.KindRetention, p.WorkerRetention)
	if at.After == (store.KindCursor{}) {
		if tx.Now < at.NextAt && tx.Now.Add(kindsEvery) >= at.NextAt {
			return 0, false, nil
		}
		at.NextAt = tx.Now.Add(min(kindsEvery, keep/2))
	}
	list, next, err := tx.DB.Kinds.Seen(at.After, unusedKinds)
	if err != nil {
		return 0, false, err
	}
	looks := make(map[perdure.TenantID]*kindUse)
	for i := range list {
		k := &list[i]
		unseen := tx.Now.Sub(k.LastSeen)
		if unseen < min(kindSeenEvery, keep/2) {
			continue
		}
		use := looks[k.Tenant]
		if use == nil {
			use = &kindUse{}
			if use.served, err = dispatch.ServingNow(&tx.DB.Records, p, k.Tenant, tx.Now); err != nil {
				return n, false, err
			}
			looks[k.Tenant] = use
		}
		_, servedAt := use.served.Look(k.Kind, "")
		switch {
		case servedAt > k.LastSeen:
			err = kindSeen(tx, k, servedAt)
		case unseen >= keep && !k.Overridden && !use.served.Unsure:
			var gone bool
			if gone, err = dropUnusedKind(tx, k, use); gone {
				n++
			}
		}
		if err != nil {
			return n, false, err
		}
	}
	at.After = next
	return n, next != (store.KindCursor{}), nil
}

// kindUse has the uses of a tenant's kinds.
type kindUse struct {
	served *dispatch.Serving
	// live has the kinds of live runs. It is read when it is needed.
	live *store.LiveKinds
}

// kindSeen notes when a kind was served. The build that counts is the one that was seen.
func kindSeen(tx *kernel.Tx, k *store.KindSeen, at perdure.Instant) error {
	row, ok, err := tx.DB.Kinds.Get(k.Tenant, k.Kind)
	if err != nil || !ok || row.NewestAt == 0 {
		return err
	}
	b, ok, err := tx.DB.Kinds.Build(k.Tenant, k.Kind, row.Newest)
	if err != nil || !ok {
		return err
	}
	b.LastSeen = at
	tx.DB.Kinds.PutBuild(b)
	rules.PutKind(tx, row)
	return nil
}

// dropUnusedKind removes a kind that no worker has served for long, unless a live run has it.
func dropUnusedKind(tx *kernel.Tx, k *store.KindSeen, use *kindUse) (bool, error) {
	if use.live == nil {
		live, err := tx.DB.Kinds.OfLiveRuns(k.Tenant, maxLiveLook)
		if err != nil {
			return false, err
		}
		use.live = &live
	}
	if use.live.More || use.live.Kinds[k.Kind] {
		return false, nil
	}
	row, ok, err := tx.DB.Kinds.Get(k.Tenant, k.Kind)
	if err != nil || !ok {
		return false, err
	}
	return rules.DropKind(tx, &row)
}
