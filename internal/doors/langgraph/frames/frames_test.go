package frames

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

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
		tr := &Translator{Run: "r", Kind: "k", Modes: ModesOf([]string{"updates"})}
		ends := 0
		for i, line := range x.log {
			typ, data, _ := strings.Cut(line, " ")
			frames, more, err := tr.Line(&api.Event{Seq: int64(i + 1), Type: perdure.LineType(typ), Data: []byte(data)})
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

// What a model thinks is in the messages' additional_kwargs: the piece in a chunk, and all of it in a whole message.
func TestReasoningIsBesideTheText(t *testing.T) {
	tr := &Translator{Run: "r", Kind: "k", Modes: map[string]bool{"messages": true, "messages-tuple": true}}
	var got []string
	for i, data := range []string{`{"text":"h","channel":"reasoning","step":"a","try":1}`,
		`{"text":"m","channel":"reasoning","step":"a","try":1}`, `{"text":"Yes","step":"a","try":1}`} {
		frames, _, err := tr.Line(&api.Event{Seq: int64(i + 1), Type: perdure.LineDelta, Data: json.RawMessage(data)})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			var list []struct {
				Content string
				Extra   struct {
					Thought string `json:"reasoning_content"`
				} `json:"additional_kwargs"`
			}
			if json.Unmarshal(f.Data, &list) == nil && f.Event != "metadata" {
				got = append(got, f.Event+" "+list[0].Content+"/"+list[0].Extra.Thought)
			}
		}
	}
	want := []string{"messages /h", "messages/partial /h", "messages /m", "messages/partial /hm", "messages Yes/",
		"messages/partial Yes/hm"}
	if !slices.Equal(got, want) {
		t.Errorf("frames = %q, want %q", got, want)
	}
}
