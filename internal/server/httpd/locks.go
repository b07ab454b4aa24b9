package httpd

import "github.com/perdure/perdure/api"

// maxLocksShown bounds the locked rows of an answer.
const maxLocksShown = 200

// listLocks lists the locks of other sessions of the database that are in this node's way.
func listLocks(c *call, _ *none) (int, *api.Locks, error) {
	h := c.s.engine.Health
	out := &api.Locks{Tables: []api.LockedTable{}, Rows: []api.LockedRow{}, RowsSetAside: h.RowsSetAside()}
	for _, t := range h.LockedTables() {
		x := api.LockedTable{Table: t.Table, Mode: t.Mode, Waits: t.Waits, Found: t.Since.UTC(), By: t.By.String()}
		for i := range t.For {
			x.For = append(x.For, t.For[i].String())
		}
		out.Tables = append(out.Tables, x)
	}
	for i, r := range h.LockedRows() {
		if i == maxLocksShown {
			break
		}
		out.Rows = append(out.Rows, api.LockedRow{Table: r.Table, Key: append([]string{}, r.Key...),
			Found: r.Since.UTC(), By: r.By.String()})
	}
	return 0, out, nil
}
