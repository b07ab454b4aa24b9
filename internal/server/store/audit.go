package store

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

var auditTable = register(&table[perdure.AuditEntry]{
	name: "audit", once: true, keys: []string{"id"},
	columns: func(c *columns, a *perdure.AuditEntry) {
		text(c, "id", &a.ID)
		text(c, "tenant", &a.Tenant)
		number(c, "at", &a.At)
		text(c, "key_id", &a.KeyID)
		text(c, "key_name", &a.KeyName)
		flag(c, "platform", &a.Platform)
		text(c, "action", &a.Action)
		text(c, "target", &a.Target)
		text(c, "detail", &a.Detail)
		text(c, "remote", &a.Remote)
	},
})

// AuditLog holds who did what.
type AuditLog struct {
	in   *base
	rows added[perdure.AuditEntry]
}

func (repo *AuditLog) open(in *base) {
	repo.in = in
	openAdded(&repo.rows, in, auditTable)
}

// An AuditFilter selects entries of the audit log. Empty fields select all.
type AuditFilter struct {
	Of     *perdure.TenantID // nil: of all tenants, and of the platform
	Action string
	KeyID  string
	Target string
	Before string // the cursor: only older ones
	Limit  int

	// TenantKeys leaves out entries of platform keys when KeyID is set.
	TenantKeys bool
}

// auditLook is how many entries one page examines. If few of them match, the page is short and has
// a next.
const auditLook = 10_000

// Page gives a page of the audit log, newest first. next is where the next page begins; it is empty
// at the end.
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
	cols := strings.Join(auditTable.cols, ",")
	query := "SELECT " + cols + " FROM (SELECT " + cols + " " + page + ") AS page " + rest +
		"ORDER BY id DESC LIMIT " + fmt.Sprint(f.Limit)
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
	err = repo.in.sess.Query("SELECT count(*), coalesce(min(id),'') FROM (SELECT id "+page+") AS page", args,
		func(scan func(...any) error) error { return scan(&looked, &next) })
	if looked < auditLook {
		next = ""
	}
	return out, next, err
}

// Add stages an entry of the audit log. It is written in the same transaction as the change that it
// describes.
func (repo *AuditLog) Add(a perdure.AuditEntry) { addRows(&repo.rows, a) }

// Trim stages the removal of the oldest entries before an instant, at most limit, and gives how
// many. If another node removes the same ones now, this batch is decided again.
func (repo *AuditLog) Trim(before perdure.Instant, limit int) (n int, err error) {
	var last string
	err = repo.in.sess.Query(fmt.Sprintf("SELECT count(*), coalesce(max(id),'') FROM (SELECT id FROM audit "+
		"WHERE id<? ORDER BY id LIMIT %d) AS old", limit),
		[]any{perdure.FirstID(before)}, func(scan func(...any) error) error { return scan(&n, &last) })
	if err != nil || n == 0 {
		return 0, err
	}
	addRows(&repo.in.tx.later, statement{"DELETE FROM audit WHERE id<=?", []any{last}, anyNumber})
	return n, repo.in.tx.exclusive("audited")
}
