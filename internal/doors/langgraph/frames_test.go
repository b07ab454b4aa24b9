package langgraph

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// The ids of assistants are those of the reference server: "agent" is known from its clients.
func TestIDsOfAssistants(t *testing.T) {
	if got, want := idOfKind("agent"), "fe096781-5601-53d2-b2f6-0d3403f7e9ca"; got != want {
		t.Errorf("id of agent = %s, want %s", got, want)
	}
}

// Frames come from the log alone, and a stream ends where its run waits for a person at the end of its
// log. Questions from below count while the run is suspended.
func TestStreamEndsWhereARunWaitsForAPerson(t *testing.T) {
	for _, x := range []struct {
		name string
		log  []string // type and data
		ends int      // the line that ends the stream; zero: none
	}{
		{"its own", []string{`run:created {}`, `wait:opened {"wait_id":"w","type":"approval","approval_id":"apv_1"}`,
			`run:suspended {}`}, 3},
		{"a timer", []string{`run:created {}`, `wait:opened {"wait_id":"w","type":"timer"}`, `run:suspended {}`}, 0},
		{"from below", []string{`run:created {}`, `run:suspended {}`,
			`worker:asks {"run_id":"c","approval_id":"apv_1"}`}, 3},
		{"from below, while it runs", []string{`run:started {}`, `worker:asks {"run_id":"c","approval_id":"apv_1"}`,
			`llm:delta {"text":"a"}`, `run:suspended {}`}, 4},
		{"answered meanwhile", []string{`worker:asks {"run_id":"c","approval_id":"apv_1"}`,
			`worker:answered {"run_id":"c","approval_id":"apv_1"}`, `run:suspended {}`}, 0},
		{"only counted", []string{`run:suspended {}`, `worker:asks {"count":3}`}, 2},
	} {
		tr := &translator{run: "r", kind: "k", modes: modesOf([]string{"updates"})}
		ends := 0
		for i, line := range x.log {
			typ, data, _ := strings.Cut(line, " ")
			frames, more, err := tr.line(&api.Event{Seq: int64(i + 1), Type: perdure.LineType(typ), Data: []byte(data)})
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				ends = i + 1
				if last := frames[len(frames)-1]; !strings.Contains(string(last.Data), "__interrupt__") {
					t.Errorf("%s: the last frame = %s, want the interrupt", x.name, last.Data)
				}
				break
			}
		}
		if ends != x.ends {
			t.Errorf("%s: ended after line %d, want %d", x.name, ends, x.ends)
		}
	}
}

// A resume is one value for all that is open, or a map by the ids.
func TestResumeFindsItsInterrupt(t *testing.T) {
	one := []interrupt{{id: "apv_1"}}
	two := []interrupt{{id: "apv_1"}, {id: "apv_2"}}
	for _, x := range []struct {
		value string
		open  []interrupt
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
			list = append(list, a.to.id+"="+string(a.value))
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
