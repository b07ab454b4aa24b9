package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// tables are the columns of every table, in the order of the schema, which both databases share.
var tables = sync.OnceValues(func() (map[string][]string, error) {
	s, err := store.Open(store.Options{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	out := make(map[string][]string)
	err = s.View(context.Background(), func(v *store.View) error {
		return v.Rows("SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE "+
			"m.type='table' ORDER BY m.name, c.cid", nil,
			func(scan func(...any) error) error {
				var table, column string
				err := scan(&table, &column)
				out[table] = append(out[table], column)
				return err
			})
	})
	return out, err
})

// Columns gives the columns of a table, in the order of the schema.
func Columns(table string) ([]string, error) {
	all, err := tables()
	return all[table], err
}

// Rows gives what a table holds, a line for each row, in order. With a tenant it is only what is that tenant's,
// which is nothing where rows have none. Two stores hold the same if they give the same, whatever they are.
func Rows(v *store.View, table string, tenant perdure.TenantID) ([]string, error) {
	all, err := tables()
	if err != nil {
		return nil, err
	}
	columns := all[table]
	if columns == nil {
		return nil, fmt.Errorf("there is no table %s", table)
	}
	query, args := "SELECT "+strings.Join(columns, ",")+" FROM "+table, []any(nil)
	if tenant != "" {
		if !slices.Contains(columns, "tenant") {
			return nil, nil
		}
		query, args = query+" WHERE tenant=?", []any{string(tenant)}
	}
	var out []string
	values, places := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		places[i] = &values[i]
	}
	err = v.Rows(query, args, func(scan func(...any) error) error {
		if err := scan(places...); err != nil {
			return err
		}
		line := ""
		for i, x := range values {
			line += fmt.Sprintf(" %s=%#v", columns[i], x)
		}
		out = append(out, line[1:])
		return nil
	})
	slices.Sort(out)
	return out, err
}

// Dump gives what a store holds of a tenant, or with an empty one of all: a line for each row, with its table. What
// is the database's own business, in the table meta, is left out, and so are the tables that the caller names.
func Dump(v *store.View, tenant perdure.TenantID, without ...string) ([]string, error) {
	all, err := tables()
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range all {
		if name != "meta" && !slices.Contains(without, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []string
	for _, name := range names {
		rows, err := Rows(v, name, tenant)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, row := range rows {
			out = append(out, name+" "+row)
		}
	}
	return out, nil
}
