package store

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

var auditTable = &table[perdure.AuditEntry]{
	name: "audit", once: true, keys: []string{"id"},
	cols: []string{"id", "tenant", "at", "key_id", "key_name", "platform", "action", "target", "detail", "remote"},
	bind: func(a *perdure.AuditEntry) []any {
		return []any{a.ID, string(a.Tenant), int64(a.At), a.KeyID, a.KeyName, toBit(a.Platform), a.Action, a.Target, string(a.Detail), a.Remote}
	},
	scan: func(a *perdure.AuditEntry) []any {
		return []any{&a.ID, &a.Tenant, &a.At, &a.KeyID, &a.KeyName, bit{&a.Platform}, &a.Action, &a.Target, &a.Detail, &a.Remote}
	},
}

// AuditLog is the log of who did what.
type AuditLog struct {
	in   *Records
	rows added[perdure.AuditEntry]
}

func (repo *AuditLog) open(in *Records) {
	repo.in = in
	repo.rows.over(in, auditTable)
}

// An AuditFilter chooses entries of the audit log. Empty fields choose all.
type AuditFilter struct {
	Of     *perdure.TenantID // nil: of all tenants, and of the platform
	Action string
	KeyID  string
	Target string
	Before string // only older ones: the cursor
	Limit  int

	// TenantKeys leaves out of a search by KeyID what platform keys did.
	TenantKeys bool
}

// auditLook is how many entries one page looks at. A filter that fits few of them gives a short page and where to go on.
const auditLook = 10_000

// Page gives a page of the audit log, newest first. next is where the next page begins; empty: there is none.
func (repo *AuditLog) Page(f AuditFilter) (out []perdure.AuditEntry, next string, err error) {
	within, args := []string{"id<>''"}, []any(nil)
	if f.Of != nil {
		within, args = append(within, "tenant=?"), append(args, string(*f.Of))
	}
	if f.Before != "" {
		within, args = append(within, "id<?"), append(args, f.Before)
	}
	var fits []string
	var wanted []any
	for _, c := range [][2]string{{"action", f.Action}, {"key_id", f.KeyID}, {"target", f.Target}} {
		if c[1] != "" {
			fits, wanted = append(fits, c[0]+"=?"), append(wanted, c[1])
		}
	}
	if f.KeyID != "" && f.TenantKeys {
		fits = append(fits, "platform=0")
	}
	page := fmt.Sprintf("FROM audit WHERE %s ORDER BY id DESC LIMIT %d", strings.Join(within, " AND "), auditLook)
	rest := ""
	if len(fits) > 0 {
		rest = "WHERE " + strings.Join(fits, " AND ") + " "
	}
	query := "SELECT " + strings.Join(auditTable.cols, ",") + " FROM (SELECT * " + page + ") AS page " + rest + "ORDER BY id DESC LIMIT " + fmt.Sprint(f.Limit)
	err = repo.in.sess.Query(query, append(append([]any{}, args...), wanted...), func(scan func(...any) error) error {
		var a perdure.AuditEntry
		err := scan(auditTable.scan(&a)...)
		out = append(out, a)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(out) == f.Limit {
		return out, out[len(out)-1].ID, nil
	}
	looked := 0
	err = repo.in.sess.Query("SELECT count(*), coalesce(min(id),'') FROM (SELECT id "+page+") AS page", args, func(scan func(...any) error) error { return scan(&looked, &next) })
	if looked < auditLook {
		next = ""
	}
	return out, next, err
}

// Add stages an entry of the audit log. It is written with the change that it tells of, or not at all.
func (repo *AuditLog) Add(a perdure.AuditEntry) { repo.rows.add(a) }

// Trim removes the oldest entries of the audit log that are from before an instant, at most so many, and gives how many it has
// staged to go. A node that removes the same ones at this moment has this batch decided again.
func (repo *AuditLog) Trim(before perdure.Instant, limit int) (n int, err error) {
	var last string
	err = repo.in.sess.Query(fmt.Sprintf("SELECT count(*), coalesce(max(id),'') FROM (SELECT id FROM audit WHERE id<? ORDER BY id LIMIT %d) AS old", limit),
		[]any{perdure.FirstID(before)}, func(scan func(...any) error) error { return scan(&n, &last) })
	if err != nil || n == 0 {
		return 0, err
	}
	repo.in.tx.later.add(statement{"DELETE FROM audit WHERE id<=?", []any{last}, anyNumber})
	return n, repo.in.tx.alone("audited")
}
