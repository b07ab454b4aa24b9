package store

import (
	"strconv"
	"strings"
	"testing"
)

// A store of the next release is used if its row schema_oldest allows it. A store that needs a newer
// program is refused.
func TestStoreOfNextReleaseIsUsed(t *testing.T) {
	files, err := schema.ReadDir("schema")
	if err != nil {
		t.Fatal(err)
	}
	newest := len(files)
	for _, x := range []struct {
		name   string
		oldest string
		want   string
	}{
		{"it only adds", strconv.Itoa(newest), ""},
		{"it needs a newer program", strconv.Itoa(newest + 1), "use a newer program"},
		{"it does not say", "", "use a newer program"},
		{"it is damaged", "x", "damaged"},
	} {
		t.Run(x.name, func(t *testing.T) {
			onOld(t, newest, func(t *testing.T, old Conn, d *dialect, at Options) {
				err := applyFile(old, "", newest+2)
				if err == nil && x.oldest != "" {
					_, err = old.Exec("INSERT INTO meta (name,value) VALUES ('schema_oldest',?)", []any{x.oldest})
				}
				if err != nil {
					t.Fatal(err)
				}
				s, err := Open(at)
				if err == nil {
					s.Close()
				}
				switch {
				case x.want == "" && err != nil:
					t.Errorf("a store of the next release is refused: %v", err)
				case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)):
					t.Errorf("a store that this program must not use: %v, want %q", err, x.want)
				}
			})
		})
	}
}
