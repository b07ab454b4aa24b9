package start

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
)

// A resume is one value for all that is open, or a map by the ids.
func TestResumeFindsItsInterrupt(t *testing.T) {
	one := []frames.Interrupt{{ID: "apv_1"}}
	two := []frames.Interrupt{{ID: "apv_1"}, {ID: "apv_2"}}
	for _, x := range []struct {
		value string
		open  []frames.Interrupt
		want  string
	}{
		{`true`, one, "apv_1=true"}, {`"yes"`, one, `apv_1="yes"`}, {`true`, two, "refused"}, {`true`, nil, ""},
		{`{"apv_2":false}`, two, "apv_2=false"}, {`{"apv_9":true}`, two, ""},
		{`{"decision":"approve"}`, one, `apv_1={"decision":"approve"}`},
		{`{"decisions":[{"type":"approve"},{"type":"reject"}]}`, two,
			`apv_1={"type":"approve"} apv_2={"type":"reject"}`},
	} {
		got, err := match([]byte(x.value), x.open)
		var list []string
		for _, a := range got {
			list = append(list, a.to.ID+"="+string(a.value))
		}
		text := strings.Join(list, " ")
		if err != nil {
			text = "refused"
		}
		if text != x.want {
			t.Errorf("match %s with %d open = %s, want %s", x.value, len(x.open), text, x.want)
		}
	}
	for value, want := range map[string]perdure.DecisionKind{`true`: "approve", `false`: "reject",
		`"approve"`: "approve", `{"decisions":[{"type":"reject"}]}`: "reject", `{"type":"edit"}`: "", `7`: "",
		`{"decision":"reject"}`: "reject"} {
		d, err := decisionOf([]byte(value))
		if d.Decision != want || (err != nil) != (want == "") {
			t.Errorf("decision of %s = %q (%v), want %q", value, d.Decision, err, want)
		}
	}
}
