package client_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

func TestTextToldAgainReplacesTheFirst(t *testing.T) {
	var text client.Text
	for i, c := range []struct {
		typ   perdure.LineType
		data  string
		again bool
		want  string
	}{
		{perdure.LineDelta, `{"text":"Hm. "}`, false, "Hm. "},
		{perdure.LineDelta, `{"step":"a#1","try":101,"text":"On"}`, false, "Hm. On"},
		{"x:other", `{"step":"a#1","try":102,"text":"no"}`, false, "Hm. On"},
		{perdure.LineDelta, `{"step":"a#1","try":101,"text":"ce"}`, false, "Hm. Once"},
		{perdure.LineDelta, `{"step":"a#1","try":102,"text":"Twi"}`, true, "Hm. Twi"},
		{perdure.LineDelta, `{"step":"a#1","try":101,"text":" upon"}`, false, "Hm. Twi"}, // told late
		{perdure.LineDelta, `{"step":"b#1","try":102,"text":"; b"}`, false, "Hm. Twi; b"},
		{perdure.LineDelta, `{"step":"a#1","try":201,"text":"Thrice"}`, true, "Hm. Thrice; b"},
		{perdure.LineDelta, `{"text":"!"}`, false, "Hm. Thrice; b!"},
		{perdure.LineDelta, `"?"`, false, "Hm. Thrice; b!?"},
		{perdure.LineDelta, `{"try":201,"text":"task"}`, false, "Hm. Thrice; b!?task"},
		{perdure.LineDelta, `{"try":301,"text":"again"}`, true, "Hm. Thrice; b!?again"},
		{perdure.LineDelta, `{"step":7,"try":"x","text":"~"}`, false, "Hm. Thrice; b!?again~"},
		{perdure.LineDelta, `[1]`, false, "Hm. Thrice; b!?again~"},
	} {
		again := text.Add(&api.Event{Seq: int64(i + 1), Type: c.typ, Data: json.RawMessage(c.data)})
		if again != c.again || text.String() != c.want || text.Len() != len(c.want) {
			t.Errorf("after %s: text = %q, again %v, want %q, %v", c.data, text.String(), again, c.want, c.again)
		}
	}
	got := ""
	for step, part := range text.Steps() {
		got += fmt.Sprintf("[%s %s]", step, part)
	}
	if want := "[ Hm. ][a#1 Thrice][b#1 ; b][ !?][ again][ ~]"; got != want {
		t.Errorf("steps = %s, want %s", got, want)
	}
}
