package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func TestPrintEvent(t *testing.T) {
	for _, x := range []struct{ typ, data, want string }{
		{perdure.LineHeartbeat, `{"run_id":"r","activity":"reading the mail"}`, "reading the mail\n"},
		{perdure.LineHeartbeat, `{"run_id":"r"}`, "its worker is there\n"},
		{perdure.LineHeartbeat, `[]`, "[]\n"},
		{perdure.LineStarted, `{"run_id":"r","attempt":1}`, "{\"attempt\":1}\n"},
		{"x:text", `"` + strings.Repeat("é", 100) + `"`, `"` + strings.Repeat("é", 69) + "…\n"},
	} {
		var out strings.Builder
		if err := printEvent(&out, &api.Event{Type: x.typ, Data: json.RawMessage(x.data)}, false); err != nil ||
			!strings.HasSuffix(out.String(), " "+x.want) {
			t.Errorf("printEvent of %s %s = %q (error %v), want it to end with %q", x.typ, x.data, &out, err, x.want)
		}
	}
}
