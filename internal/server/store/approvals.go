package store

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

var approvalTable = register(&table[perdure.Approval]{
	name: "approvals", keys: []string{"tenant", "run_id", "wait_id"},
	columns: func(c *columns, a *perdure.Approval) {
		text(c, "tenant", &a.Tenant)
		text(c, "run_id", &a.RunID)
		text(c, "wait_id", &a.WaitID)
		text(c, "id", &a.ID)
		text(c, "kind", &a.Kind)
		text(c, "name", &a.Name)
		text(c, "title", &a.Title)
		text(c, "action", &a.Action)
		text(c, "action_hash", &a.ActionHash)
		packed(c, "form", formList{&a.Form})
		text(c, "if_silent", &a.Default)
		text(c, "state", &a.State)
		number(c, "opened_at", &a.OpenedAt)
		number(c, "expires_at", &a.ExpiresAt)
		number(c, "decided_at", &a.DecidedAt)
		packed(c, "decided_by", deciderID{a})
		packed(c, "decided_name", deciderName{a})
		text(c, "comment", &a.Comment)
		text(c, "answer", &a.Answer)
		text(c, "digest", &a.Digest)
		text(c, "expires_by", &a.ExpiresBy)
		text(c, "approvers", &a.Approvers)
	},
})

// formList is a column with the fields of a form.
type formList struct{ f *[]perdure.FormField }

func (l formList) value() any { return formText(*l.f) }

func (l formList) Scan(v any) error {
	text, _ := v.(string)
	*l.f = nil
	if text == "" {
		return nil
	}
	if json.Unmarshal([]byte(text), l.f) != nil {
		*l.f = nil // no answer is valid for a form that can't be read
	}
	return nil
}

// formText is the column of a form.
func formText(f []perdure.FormField) string {
	if len(f) == 0 {
		return ""
	}
	b, _ := json.Marshal(f) // strings and booleans only: can't fail
	return string(b)
}

// deciderID is the first of two columns of who decided: the id of the key. It is empty if nobody has.
type deciderID struct{ a *perdure.Approval }

func (d deciderID) value() any {
	if d.a.DecidedBy == nil {
		return ""
	}
	return d.a.DecidedBy.KeyID
}

func (d deciderID) Scan(v any) error {
	d.a.DecidedBy = nil
	if id, _ := v.(string); id != "" {
		d.a.DecidedBy = &perdure.Decider{KeyID: id}
	}
	return nil
}

// deciderName is the second one: the name of the key. It is read after the id.
type deciderName struct{ a *perdure.Approval }

func (d deciderName) value() any {
	if d.a.DecidedBy == nil {
		return ""
	}
	return d.a.DecidedBy.Name
}

func (d deciderName) Scan(v any) error {
	if name, _ := v.(string); d.a.DecidedBy != nil {
		d.a.DecidedBy.Name = name
	}
	return nil
}

// Approvals holds the questions that runs have asked people.
type Approvals struct {
	in     *base
	values *Values
	rows   staged[waitKey, perdure.Approval]
}

func (repo *Approvals) open(in *base, values *Values) {
	repo.values = values
	repo.in = in
	openRows(&repo.rows, in, approvalTable)
}

// Get gives the approval that belongs to a wait of a run. The run has to be read before.
func (repo *Approvals) Get(t perdure.TenantID, run perdure.RunID, wait string) (perdure.Approval, bool, error) {
	return loadRow(&repo.rows, waitKey{runKey{t, run}, wait}, "WHERE tenant=? AND run_id=? AND wait_id=?", string(t),
		string(run), wait)
}

// Find gives the run and the wait of an approval, which never change. The caller reads the approval
// after the run.
func (repo *Approvals) Find(
	t perdure.TenantID, id perdure.ApprovalID,
) (run perdure.RunID, wait string, ok bool, err error) {
	err = repo.in.sess.Query("SELECT run_id, wait_id FROM approvals WHERE tenant=? AND id=?",
		[]any{string(t), string(id)}, func(scan func(...any) error) error {
			ok = true
			return scan(&run, &wait)
		})
	return run, wait, ok, err
}

// Had tells whether a run has asked for an approval of that name by another wait. The run has to be
// read before.
func (repo *Approvals) Had(t perdure.TenantID, run perdure.RunID, name, otherThan string) (had bool, err error) {
	for k, known := range repo.rows.byKey {
		if k.runKey == (runKey{t, run}) && k.id != otherThan && known.exists && known.val.Name == name {
			return true, nil
		}
	}
	err = repo.in.sess.Query("SELECT 1 FROM approvals WHERE tenant=? AND run_id=? AND name=? AND wait_id<>? LIMIT 1",
		[]any{string(t), string(run), name, otherThan}, func(func(...any) error) error {
			had = true
			return nil
		})
	return had, err
}

// ByID gives an approval by its id, with its values in full.
func (repo *Approvals) ByID(t perdure.TenantID, id perdure.ApprovalID) (a perdure.Approval, ok bool, err error) {
	if a, ok, err = repo.byID(t, id); ok && err == nil {
		err = repo.inFull(&a)
	}
	return a, ok, err
}

// byID gives an approval by its id, with references instead of large values.
func (repo *Approvals) byID(t perdure.TenantID, id perdure.ApprovalID) (perdure.Approval, bool, error) {
	return approvalTable.one(repo.in.sess, "WHERE tenant=? AND id=?", string(t), string(id))
}

// An ApprovalFilter selects approvals. Empty fields select all.
type ApprovalFilter struct {
	State perdure.ApprovalState
	RunID perdure.RunID
	// RootID selects those of a tree of runs, and ThreadID those of a thread: of the runs on it, and of
	// the runs below these.
	RootID   perdure.RunID
	ThreadID perdure.ThreadID
	After    perdure.ApprovalID // the cursor: only later ones
	Limit    int
	Bytes    int // the page ends once it has that many bytes
	Rows     int // how many rows a page examines; zero: PageRows
}

// cursorSeparator is in no name of a tenant.
const cursorSeparator = "~"

// OpenOfPlatform reads a page of the open approvals that the platform decides about, of all tenants,
// oldest first, with their values in full. next is the cursor of the next page if there may be one.
func (repo *Approvals) OpenOfPlatform(
	cursor string, limit, bytes int,
) (out []perdure.Approval, next string, err error) {
	where, args := "WHERE state='open' AND approvers='platform'", []any(nil)
	if cursor != "" {
		tenant, id, _ := strings.Cut(cursor, cursorSeparator)
		after, ok, err := repo.byID(perdure.TenantID(tenant), perdure.ApprovalID(id))
		if err != nil {
			return nil, "", err
		}
		if !ok {
			return nil, "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
		}
		where, args = where+" AND (opened_at,tenant,id)>(?,?,?)", []any{int64(after.OpenedAt), tenant, id}
	}
	size := 0
	err = approvalTable.query(repo.in.sess, where+" ORDER BY opened_at, tenant, id"+atMost,
		append(args, int64(limit)+1), func(a *perdure.Approval) error {
			if len(out) == limit || size > bytes {
				last := &out[len(out)-1]
				next = string(last.Tenant) + cursorSeparator + string(last.ID)
				return errEnough
			}
			size += approvalSize(a)
			a.Owner = a.Tenant
			out = append(out, *a)
			return nil
		})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, "", err
	}
	for i := range out {
		if err := repo.inFull(&out[i]); err != nil {
			return nil, "", err
		}
	}
	return out, next, nil
}

// approvalSize estimates the bytes of an approval with its values in full.
func approvalSize(a *perdure.Approval) int {
	size := len(a.Action) + len(a.Answer) + len(a.Comment) + len(formText(a.Form))
	for _, val := range []perdure.Value{a.Action, a.Answer} {
		if _, n, ref := val.Ref(); ref {
			size += n
		}
	}
	return size
}

// List lists a tenant's approvals, oldest first, with their values in full. more says that these
// are not all.
func (repo *Approvals) List(t perdure.TenantID, f ApprovalFilter) (out []perdure.Approval, more bool, err error) {
	out, next, err := repo.Page(t, f)
	return out, next != "", err
}

// Page reads a page of a tenant's approvals, oldest first, with their values in full. next is the
// last one that was examined, if there may be more.
func (repo *Approvals) Page(
	t perdure.TenantID, f ApprovalFilter,
) (out []perdure.Approval, next perdure.ApprovalID, err error) {
	where, args := "WHERE tenant=?", []any{string(t)}
	if f.State != "" {
		if !slices.Contains(perdure.ApprovalStates, f.State) {
			return nil, "", perdure.Invalid("state", "%.40q is none of %s, all", f.State,
				joined(perdure.ApprovalStates))
		}
		// not an argument, so that the partial index of open ones is used
		where += " AND state='" + string(f.State) + "'"
	}
	if f.RunID != "" {
		where, args = where+" AND run_id=?", append(args, string(f.RunID))
	}
	if f.RootID != "" {
		where, args = where+" AND EXISTS (SELECT 1 FROM runs r WHERE r.tenant=approvals.tenant "+
			"AND r.id=approvals.run_id AND r.root_id=?)", append(args, string(f.RootID))
	}
	if f.ThreadID != "" {
		where, args = where+" AND EXISTS (SELECT 1 FROM runs r JOIN runs o ON o.tenant=r.tenant AND o.id=r.root_id "+
			"WHERE r.tenant=approvals.tenant AND r.id=approvals.run_id AND (r.thread_id=? OR o.thread_id=?))",
			append(args, string(f.ThreadID), string(f.ThreadID))
	}
	after := perdure.Approval{}
	if f.After != "" {
		var ok bool
		if after, ok, err = repo.byID(t, f.After); err != nil {
			return nil, "", err
		}
		if !ok {
			return nil, "", perdure.Invalid("cursor", "takes the next_cursor of the page before")
		}
		where, args = where+" AND (opened_at,id)>(?,?)", append(args, int64(after.OpenedAt), string(after.ID))
	}
	// Approvals of this state, tree or thread may be few among many.
	few := f.State != "" && f.State != perdure.ApprovalOpen || f.RootID != "" || f.ThreadID != ""
	if few && f.RunID == "" {
		last, err := repo.last(t, &after, f.State == perdure.ApprovalOpen, f.Rows)
		if err != nil {
			return nil, "", err
		}
		if last.ID != "" {
			next = last.ID
			where, args = where+" AND (opened_at,id)<=(?,?)", append(args, int64(last.OpenedAt), string(last.ID))
		}
	}
	size := 0
	err = approvalTable.query(repo.in.sess, where+" ORDER BY opened_at, id"+atMost, append(args, int64(f.Limit)+1),
		func(a *perdure.Approval) error {
			if len(out) == f.Limit || size > f.Bytes {
				next = out[len(out)-1].ID
				return errEnough
			}
			size += approvalSize(a)
			out = append(out, *a)
			return nil
		})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, "", err
	}
	for i := range out {
		if err := repo.inFull(&out[i]); err != nil {
			return nil, "", err
		}
	}
	return out, next, nil
}

// last gives the last approval that a page examines. Its id is empty if the page may examine all
// that are left.
func (repo *Approvals) last(
	t perdure.TenantID, after *perdure.Approval, open bool, rows int,
) (a perdure.Approval, err error) {
	if rows == 0 {
		rows = PageRows
	}
	state := ""
	if open { // as in Page
		state = "AND state='open' "
	}
	err = repo.in.sess.Query("SELECT id, opened_at FROM approvals WHERE tenant=? AND (opened_at,id)>(?,?) "+state+
		"ORDER BY opened_at, id LIMIT 1 OFFSET CAST(? AS BIGINT)",
		[]any{string(t), int64(after.OpenedAt), string(after.ID), int64(rows - 1)},
		func(scan func(...any) error) error { return scan(&a.ID, &a.OpenedAt) })
	return a, err
}

// inFull replaces references by their values.
func (repo *Approvals) inFull(a *perdure.Approval) (err error) {
	if a.Action, err = repo.values.Resolve(a.Tenant, a.Action); err == nil {
		a.Answer, err = repo.values.Resolve(a.Tenant, a.Answer)
	}
	return err
}

// Put stages an approval.
func (repo *Approvals) Put(a perdure.Approval) {
	putRow(&repo.rows, waitKey{runKey{a.Tenant, a.RunID}, a.WaitID}, a)
}

// joined lists words in an error.
func joined[S ~string](words []S) (text string) {
	for i, w := range words {
		if i > 0 {
			text += ", "
		}
		text += string(w)
	}
	return text
}
