package store

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure"
)

var watchTable = register(&table[perdure.WatchdogAction]{
	name: "watchdog_log", quiet: true, keys: []string{"id"},
	columns: func(c *columns, a *perdure.WatchdogAction) {
		text(c, "id", &a.ID)
		number(c, "at", &a.At)
		text(c, "rule", &a.Rule)
		text(c, "name", &a.Name)
		text(c, "tenant", &a.Tenant)
		text(c, "run_id", &a.Run)
		text(c, "what", &a.What)
		text(c, "why", &a.Why)
	},
})

// WatchLog holds the actions of the watchdog.
type WatchLog struct {
	in   *base
	rows added[perdure.WatchdogAction]
	// trimmed is set when the batch has removed old entries.
	trimmed bool
}

func (repo *WatchLog) open(in *base) {
	repo.in = in
	openAdded(&repo.rows, in, watchTable)
}

// A WatchFilter selects entries of the watchdog's log. Empty fields select all.
type WatchFilter struct {
	Rule   string // its id, or its name
	Tenant perdure.TenantID
	Run    perdure.RunID
	Before string // the cursor: only older ones
	Limit  int
}

// Page lists the watchdog's actions, newest first.
func (repo *WatchLog) Page(f WatchFilter) (out []perdure.WatchdogAction, err error) {
	where, args := []string{"id<>''"}, []any(nil)
	and := func(cond string, list ...string) {
		if list[0] == "" {
			return
		}
		where = append(where, cond)
		for _, x := range list {
			args = append(args, x)
		}
	}
	and("(rule=? OR name=?)", f.Rule, f.Rule)
	and("tenant=?", string(f.Tenant))
	and("run_id=?", string(f.Run))
	and("id<?", f.Before)
	return watchTable.list(repo.in.sess, "WHERE "+strings.Join(where, " AND ")+" ORDER BY id DESC"+atMost,
		append(args, int64(f.Limit)))
}

// Add stages entries of the watchdog's log. They are written in the same transaction as the
// actions.
func (repo *WatchLog) Add(list ...perdure.WatchdogAction) { addRows(&repo.rows, list...) }

// Trim stages the removal of the oldest entries: those before an id, and those beyond keep, at most
// limit. It gives how many. If another node removes the same ones now, this batch is decided again.
func (repo *WatchLog) Trim(before string, keep, limit int) (n int, err error) {
	if !repo.in.tx.onceInBatch(&repo.trimmed) {
		return 0, nil
	}
	err = repo.in.sess.Query(fmt.Sprintf("SELECT id FROM watchdog_log ORDER BY id DESC LIMIT 1 OFFSET %d", keep), nil,
		func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			before = max(before, id+"~") // sorts after this id
			return err
		})
	if err != nil {
		return 0, err
	}
	var last string
	err = repo.in.sess.Query(fmt.Sprintf("SELECT count(*), coalesce(max(id),'') FROM (SELECT id FROM watchdog_log "+
		"WHERE id<? ORDER BY id LIMIT %d) AS old", limit), []any{before},
		func(scan func(...any) error) error { return scan(&n, &last) })
	if err != nil || n == 0 {
		return 0, err
	}
	addRows(&repo.in.tx.later, statement{"DELETE FROM watchdog_log WHERE id<=?", []any{last}, anyNumber})
	return n, repo.in.tx.exclusive("trimmed")
}
