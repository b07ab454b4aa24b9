package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// The metadata index.
//
// The table run_metadata has a row for each metadata entry of each run. A list with metadata.k=v
// finds its runs by it. The rows are inserted in the transaction that inserts the run, and deleted
// in the one that deletes it. They never change in between, because metadata does not.
//
// A row has the first maxIndexed characters of a value. Runs whose values have the same beginning
// are told apart by the metadata in their own rows.
//
// The index came with schema 14. fillMetadata adds the runs of an older store in batches, and
// records its position in meta, so that a restart continues there.

// A metadataRow is an entry of a run's metadata.
type metadataRow struct {
	Tenant perdure.TenantID
	Name   string
	Value  string // the first maxIndexed characters
	RunID  perdure.RunID
}

var metadataTable = register(&table[metadataRow]{
	// quiet: a migration may add a run again.
	name: "run_metadata", quiet: true, keys: []string{"tenant", "name", "value", "run_id"},
	columns: func(c *columns, m *metadataRow) {
		text(c, "tenant", &m.Tenant)
		text(c, "name", &m.Name)
		text(c, "value", &m.Value)
		text(c, "run_id", &m.RunID)
	},
})

// maxIndexed is how many characters of a value the index has. PostgreSQL refuses index rows of more
// than about 2,700 bytes.
const maxIndexed = 128

// indexed gives the part of a value that the index has.
func indexed(value string) string {
	n := 0
	for i := range value {
		if n == maxIndexed {
			return value[:i]
		}
		n++
	}
	return value
}

// metadataRows gives the index rows of a run's metadata, by name. Metadata that can't be read has
// none.
func metadataRows(t perdure.TenantID, id perdure.RunID, metadata perdure.Value) []metadataRow {
	if metadata == "" {
		return nil
	}
	var entries map[string]string
	if json.Unmarshal([]byte(metadata), &entries) != nil {
		return nil
	}
	out := make([]metadataRow, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, metadataRow{t, name, indexed(entries[name]), id})
	}
	return out
}

// indexMetadata gives the index rows of new runs. Secrets are redacted before a value is cut,
// because half a secret might not be recognized.
func indexMetadata(fresh []perdure.Run, redact func(string) string) (out []metadataRow) {
	for i := range fresh {
		r := &fresh[i]
		if r.Metadata == "" {
			continue
		}
		text := r.Metadata
		if redact != nil {
			text = perdure.Value(redact(string(text)))
		}
		out = append(out, metadataRows(r.Tenant, r.ID, text)...)
	}
	return out
}

// dropMetadata stages the removal of a run from the index.
func dropMetadata(tx *Tx, t perdure.TenantID, id perdure.RunID, metadata perdure.Value) {
	for _, m := range metadataRows(t, id, metadata) {
		tx.Stage("DELETE FROM run_metadata WHERE tenant=? AND name=? AND value=? AND run_id=?", string(m.Tenant),
			m.Name, m.Value, string(m.RunID))
	}
}

// metadataOf reads the metadata of those of a tenant's runs that have any.
func metadataOf(
	s Conn, d *dialect, t perdure.TenantID, ids []perdure.RunID,
) (map[perdure.RunID]perdure.Value, error) {
	out := make(map[perdure.RunID]perdure.Value)
	err := eachPart(d, texts(ids), func(part []string) error {
		given, args := d.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		return s.Query("SELECT id, metadata FROM runs "+given+" AND metadata<>''", args,
			func(scan func(...any) error) error {
				var id perdure.RunID
				var text perdure.Value
				err := scan(&id, &text)
				out[id] = text
				return err
			})
	})
	return out, err
}

// A metadataFill is how far the runs of an older store have been added to the index. It is a row of
// meta that is written with every batch, so that a restart continues there.
type metadataFill struct {
	Tenant perdure.TenantID `json:"tenant,omitempty"`
	After  perdure.RunID    `json:"after,omitempty"`
	Done   bool             `json:"done,omitempty"`
	Since  perdure.Instant  `json:"since,omitempty"` // when it began
}

const metaMetadata = "metadata_index"

// fillRuns and fillBytes bound what one batch reads: runs, and bytes of their metadata.
const (
	fillRuns  = 1000
	fillBytes = 8 << 20
)

// upgradeWindow is how long after the migration a starting node looks again for runs that an older
// node has inserted without the index. The nodes of a fleet are replaced one after the other.
const upgradeWindow = time.Hour

// fillMetadata adds the runs of an older store to the index.
func fillMetadata(s Conn, d *dialect, asIs bool) error {
	var text string
	err := s.Query("SELECT value FROM meta WHERE name=?", []any{metaMetadata},
		func(scan func(...any) error) error { return scan(&text) })
	if err != nil {
		return err
	}
	now := perdure.At(time.Now())
	at, floor := metadataFill{Since: now}, perdure.RunID("")
	if text != "" {
		if err := json.Unmarshal([]byte(text), &at); err != nil {
			return fmt.Errorf("the store says %q of its index of metadata: it is damaged", text)
		}
	}
	switch again := !d.ownClock && now.Sub(at.Since) < upgradeWindow; {
	case at.Done && (asIs || !again):
		return nil
	case asIs:
		return errors.New("the index of metadata is not complete: start the server once")
	case at.Done:
		floor = perdure.RunID(perdure.FirstID(at.Since.Add(-upgradeWindow)))
		at.Tenant, at.After = "", floor
	}
	for at.Done = false; !at.Done; {
		if err := at.step(s, d, floor); err != nil {
			return fmt.Errorf("add runs to the index of metadata: %w", err)
		}
	}
	return nil
}

// step adds one batch, in a transaction of its own.
func (at *metadataFill) step(s Conn, d *dialect, floor perdure.RunID) error {
	if err := s.Begin(); err != nil {
		return err
	}
	rows, err := at.read(s, floor)
	for _, st := range metadataTable.insert(d, rows) {
		if err == nil {
			_, err = s.Exec(st.text, st.args)
		}
	}
	if err == nil {
		var text []byte
		if text, err = json.Marshal(at); err == nil {
			err = writeMeta(s, map[string]string{metaMetadata: string(text)})
		}
	}
	if err != nil {
		return errors.Join(err, s.Rollback())
	}
	return s.Commit()
}

// read gives the index rows of the next runs, and moves the position behind them: within a tenant,
// or to the next tenant.
func (at *metadataFill) read(s Conn, floor perdure.RunID) (rows []metadataRow, err error) {
	n, bytes, from := 0, 0, at.After
	err = s.Query("SELECT id, metadata FROM runs WHERE tenant=? AND id>? ORDER BY id"+atMost,
		[]any{string(at.Tenant), string(from), int64(fillRuns)}, func(scan func(...any) error) error {
			var id perdure.RunID
			var text perdure.Value
			if err := scan(&id, &text); err != nil {
				return err
			}
			rows = append(rows, metadataRows(at.Tenant, id, text)...)
			at.After, n, bytes = id, n+1, bytes+len(text)
			if bytes >= fillBytes {
				return errEnough
			}
			return nil
		})
	if err == nil && n < fillRuns {
		at.Done = true // unless there is another tenant
		last := at.Tenant
		err = s.Query("SELECT tenant FROM runs WHERE tenant>? ORDER BY tenant LIMIT 1", []any{string(last)},
			func(scan func(...any) error) error {
				at.Done, at.After = false, floor
				return scan(&at.Tenant)
			})
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return rows, err
}

// countMetadata counts the rows of the index. A database from before schema 14 has none.
func countMetadata(s Conn) (n int64, err error) {
	exists := 0
	err = s.Query(sqliteDialect.tableExists, []any{metadataTable.name},
		func(scan func(...any) error) error { return scan(&exists) })
	if err != nil || exists == 0 {
		return 0, err
	}
	err = s.Query("SELECT count(*) FROM "+metadataTable.name, nil,
		func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

var p18 = Invariant{ID: "P18", Statement: "a run is found by every entry of its metadata"}

// checkMetadata finds runs that are missing from the index, in pages. It gives errEnough when the
// time is over.
func (v *View) checkMetadata(only []perdure.RunID, over func() bool) (out []Violation, err error) {
	var t perdure.TenantID
	var after perdure.RunID
	for {
		var wanted []metadataRow
		n, bytes := 0, 0
		where, args := "(tenant,id)>(?,?)", []any{string(t), string(after)}
		if only != nil {
			cond, list := v.dialect.anyOf("id", append(texts(only), ""))
			where, args = where+" AND "+cond, append(args, list...)
		}
		err := v.sess.Query("SELECT tenant, id, metadata FROM runs WHERE "+where+" ORDER BY tenant, id"+atMost,
			append(args, int64(fillRuns)), func(scan func(...any) error) error {
				var text perdure.Value
				if err := scan(&t, &after, &text); err != nil {
					return err
				}
				wanted = append(wanted, metadataRows(t, after, text)...)
				n, bytes = n+1, bytes+len(text)
				if bytes >= fillBytes {
					return errEnough
				}
				return nil
			})
		cut := errors.Is(err, errEnough)
		if err != nil && !cut {
			return nil, err
		}
		missing, err := v.missingMetadata(wanted)
		if err != nil {
			return nil, err
		}
		for _, m := range missing {
			out = append(out, Violation{p18, fmt.Sprintf("%s %s", m.RunID, m.Name)})
		}
		if len(out) >= maxPerInvariant || n < fillRuns && !cut {
			return out, nil
		}
		if over() {
			return out, errEnough
		}
	}
}

// missingMetadata gives those of some rows that the index does not have.
func (v *View) missingMetadata(wanted []metadataRow) (missing []metadataRow, err error) {
	have := make(map[metadataRow]bool, len(wanted))
	for part := range v.dialect.parts(v.dialect.padded(metadataTable.bound(wanted))) {
		if len(part) == 0 {
			continue
		}
		given := v.dialect.among("run_metadata", metadataTable.keys, v.dialect.rows(part))
		err := metadataTable.query(v.sess, given, v.dialect.args(part), func(m *metadataRow) error {
			have[*m] = true
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for _, m := range wanted {
		if !have[m] {
			missing = append(missing, m)
		}
	}
	return missing, nil
}
