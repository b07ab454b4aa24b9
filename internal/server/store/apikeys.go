package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// scopeList is a column with scopes that are separated by spaces.
type scopeList struct{ s *[]perdure.Scope }

func (l scopeList) value() any {
	scopes := make([]string, len(*l.s))
	for i, s := range *l.s {
		scopes[i] = string(s)
	}
	return strings.Join(scopes, " ")
}

func (l scopeList) Scan(v any) error {
	text, _ := v.(string)
	*l.s = nil
	for _, part := range strings.Fields(text) {
		*l.s = append(*l.s, perdure.Scope(part))
	}
	return nil
}

var apiKeyTable = register(&table[perdure.Key]{
	name: "keys", keys: []string{"id"},
	columns: func(c *columns, k *perdure.Key) {
		text(c, "id", &k.ID)
		text(c, "tenant", &k.Tenant)
		text(c, "name", &k.Name)
		text(c, "hash", &k.Hash)
		flag(c, "platform", &k.Platform)
		packed(c, "scopes", scopeList{&k.Scopes})
		number(c, "created_at", &k.CreatedAt)
		number(c, "expires_at", &k.ExpiresAt)
		number(c, "revoked_at", &k.RevokedAt)
		text(c, "parent", &k.Parent)
	},
})

// Keys holds API keys.
type Keys struct {
	in   *base
	rows staged[string, perdure.Key]
}

func (repo *Keys) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, apiKeyTable)
}

// Get gives a key by its id.
func (repo *Keys) Get(id string) (perdure.Key, bool, error) {
	return loadRow(&repo.rows, id, "WHERE id=?", id)
}

// ByID gives keys by their ids. Keys that don't exist are left out.
func (repo *Keys) ByID(ids []string) (out []perdure.Key, err error) {
	err = eachPart(repo.in.dialect, ids, func(part []string) error {
		given, args := repo.in.dialect.keyed("keys", []string{"id"}, nil, part)
		return apiKeyTable.query(repo.in.sess, given, args, func(k *perdure.Key) error {
			out = append(out, *k)
			return nil
		})
	})
	return out, err
}

// Sessions lists the sessions of a key that are neither revoked nor expired, oldest first.
func (repo *Keys) Sessions(parent string, now perdure.Instant) ([]perdure.Key, error) {
	return apiKeyTable.list(repo.in.sess,
		"WHERE parent=? AND parent<>'' AND revoked_at=0 AND expires_at>? ORDER BY created_at, id",
		[]any{parent, int64(now)})
}

// Page lists a tenant's keys by id, without sessions. Platform keys are included only if platform is set.
func (repo *Keys) Page(t perdure.TenantID, platform bool, p Page) ([]perdure.Key, string, error) {
	return paged(p, func(after string, n int, row func(*perdure.Key) error) error {
		return apiKeyTable.query(repo.in.sess,
			"WHERE tenant=? AND id>? AND platform<=? AND parent='' ORDER BY id"+atMost,
			[]any{string(t), after, toBit(platform), int64(n)}, row)
	}, func(k *perdure.Key) string { return k.ID }, func(k *perdure.Key) int { return 1024 + quoted(k.Name) })
}

// List lists a tenant's keys.
func (repo *Keys) List(t perdure.TenantID) ([]perdure.Key, error) {
	return apiKeyTable.list(repo.in.sess, "WHERE tenant=? ORDER BY id", []any{string(t)})
}

// Valid lists at most limit keys of all tenants that are valid at an instant.
func (repo *Keys) Valid(now perdure.Instant, limit int) (out []perdure.Key, err error) {
	return apiKeyTable.list(repo.in.sess,
		"WHERE revoked_at=0 AND (expires_at=0 OR expires_at>?) ORDER BY tenant, id"+atMost,
		[]any{int64(now), int64(limit)})
}

// CountPlatform counts the platform keys that are not revoked. Without one, nobody can administer
// the store.
func (repo *Keys) CountPlatform() (n int, err error) {
	err = repo.in.sess.Query("SELECT count(*) FROM keys WHERE platform=1 AND revoked_at=0 AND parent=''", nil,
		func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

// UseUp stages the end of a session or login link that may be used once. If another node has used
// it meanwhile, the batch is decided again.
func (repo *Keys) UseUp(k perdure.Key) {
	alterRow(&repo.rows, k.ID, func(r *row[perdure.Key]) { r.val.RevokedAt = repo.in.Now })
	addRows(&repo.in.tx.later, statement{"UPDATE keys SET revoked_at=? WHERE id=? AND revoked_at=0",
		[]any{int64(repo.in.Now), k.ID}, 1})
}

// keptSessions is how many sessions and login links of a tenant are kept after their end.
const keptSessions = 100

// Count counts a tenant's valid keys, or its valid sessions and login links. It reads at most a few
// times most. If many are no longer valid, it stages the removal of those that ended first.
func (repo *Keys) Count(t perdure.TenantID, sessions bool, most int) (valid int, err error) {
	which, kept := "parent=''", most
	if sessions {
		which, kept = "parent<>''", keptSessions
	}
	var over []perdure.Key
	seen := make(map[string]bool)
	note := func(k *perdure.Key) {
		if k.Valid(repo.in.Now) {
			valid++
		} else {
			over = append(over, *k)
		}
	}
	// Only the columns that tell whether a key is valid: each new key counts a thousand others.
	err = repo.in.sess.Query("SELECT id, expires_at, revoked_at FROM keys WHERE tenant=? AND "+which+" ORDER BY id"+
		atMost, []any{string(t), int64(4 * most)}, func(scan func(...any) error) error {
		var k perdure.Key
		if err := scan(&k.ID, &k.ExpiresAt, &k.RevokedAt); err != nil {
			return err
		}
		seen[k.ID] = true
		if cur, exists, known := getRow(&repo.rows, k.ID); !known {
			note(&k)
		} else if exists {
			note(&cur)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, id := range repo.rows.dirty {
		k, exists, _ := getRow(&repo.rows, id)
		if exists && !seen[id] && k.Tenant == t && (k.Parent != "") == sessions {
			note(&k)
		}
	}
	if n := len(over) - kept; n > 0 {
		ended := func(k *perdure.Key) perdure.Instant { return cmp.Or(k.RevokedAt, k.ExpiresAt) }
		slices.SortFunc(over, func(a, b perdure.Key) int {
			return cmp.Or(cmp.Compare(ended(&a), ended(&b)), cmp.Compare(a.ID, b.ID))
		})
		for i := range min(n, maxKeysDropped) {
			k := &over[i]
			if _, _, err := repo.Get(k.ID); err != nil {
				return 0, err
			}
			if !repo.rows.byKey[k.ID].dirty {
				dropRow(&repo.rows, k.ID)
				repo.in.tx.Stage("DELETE FROM keys WHERE id=?", k.ID)
			}
		}
	}
	return valid, nil
}

// maxKeysDropped bounds the keys that one operation removes because the tenant has very many.
const maxKeysDropped = 16

// Put stages a key.
func (repo *Keys) Put(k perdure.Key) { putRow(&repo.rows, k.ID, k) }

// DropUnused stages the removal of keys that were revoked or expired at an instant or before, at
// most limit of either. It gives how many.
func (repo *Keys) DropUnused(before perdure.Instant, limit int) (n int, err error) {
	due := func(column string) string {
		return fmt.Sprintf("SELECT id FROM (SELECT id FROM keys WHERE %[1]s>0 AND %[1]s<=? ORDER BY %[1]s, id "+
			"LIMIT %[2]d) AS %[1]s",
			column, limit)
	}
	list := "WITH due AS MATERIALIZED (" + due("revoked_at") + " UNION ALL " + due("expires_at") + ") "
	args := []any{int64(before), int64(before)}
	if err := repo.in.tx.count(&n, list+"SELECT count(DISTINCT id) FROM due", args...); err != nil || n == 0 {
		return 0, err
	}
	addRows(&repo.in.tx.later, statement{list + "DELETE FROM keys WHERE id IN (SELECT id FROM due)", args, anyNumber})
	return n, repo.in.tx.exclusive("keys removed")
}
