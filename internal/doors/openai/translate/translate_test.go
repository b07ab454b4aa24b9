package translate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/openai/shape"
)

// A shelf has what lines only name.
type shelf string

func (s shelf) Approval(id perdure.ApprovalID) (*perdure.Approval, error) {
	return &perdure.Approval{ID: id, Action: perdure.Value(`{"do":"` + string(id) + `"}`)}, nil
}

func (s shelf) Result() (json.RawMessage, error) { return json.RawMessage(s), nil }

// play translates lines, each written as its type and its data, and returns what the events say in short.
func play(t *testing.T, result string, after int64, lines ...string) (told string, r *shape.Response) {
	t.Helper()
	run := &api.Run{RunID: "01020304-0506-0708-090a-0b0c0d0e0f10", Kind: "k"}
	x := New(run, shape.Ref{Run: run.RunID, After: after}, shelf(result))
	added := map[int]bool{}
	for i, line := range lines {
		typ, data, _ := strings.Cut(line, " ")
		e := &api.Event{Seq: int64(i + 1), Type: perdure.LineType(typ), Attempt: 1, Data: json.RawMessage(data)}
		events, more, err := x.Line(e)
		if err != nil {
			return err.Error(), nil
		}
		for n, e := range events {
			if want := int64(i+1)*shape.FramesPerLine + int64(n) + 1; e.Sequence != want {
				t.Errorf("event %d of line %d has the number %d, want %d", n, i+1, e.Sequence, want)
			}
			short := strings.TrimPrefix(e.Type, "response.")
			switch {
			case e.Delta != nil:
				short = *e.Delta
			case short == "output_item.added":
				if added[*e.Index] {
					t.Errorf("output_index %d was added twice", *e.Index)
				}
				added[*e.Index] = true
				short = "+" + e.Item.Type
			case short == "output_item.done":
				added[*e.Index] = false
				short = "-" + e.Item.Status
			case strings.Contains(short, "_"):
				if short != "in_progress" {
					continue
				}
			}
			told += short + " "
		}
		if !more {
			for index, open := range added {
				if open {
					t.Errorf("item %d is not done at the end of %v", index, lines)
				}
			}
			return strings.TrimSpace(told), x.Response
		}
	}
	return strings.TrimSpace(told), x.Response
}

func delta(step string, try int, text string) string {
	return fmt.Sprintf(`llm:delta {"step":%q,"try":%d,"text":%q}`, step, try, text)
}

// Lines become items that are all done, and the final output has each text once.
func TestLinesBecomeItems(t *testing.T) {
	const begin = "created queued in_progress"
	for _, c := range []struct {
		name, result string
		lines        []string
		told, text   string
	}{
		{"a text that the result repeats", `"ab"`, []string{"run:created", "run:started", delta("s", 1, "a"),
			delta("s", 1, "b"),
			"run:completed"}, begin + " +message a b -completed completed", "ab"},
		{"a text beside the result", `{"n":1}`, []string{"run:created", "run:started", delta("s", 1, "a"),
			"run:completed"},
			begin + ` +message a -completed +message {"n":1} -completed completed`, `a{"n":1}`},
		{"an answer of the supervisor", `{"answer":"yes","ended":"answered"}`, []string{"run:created", "run:completed"},
			"created queued +message yes -completed completed", "yes"},
		{"no result", "null", []string{"run:created", "run:completed"}, "created queued completed", ""},
		{"told again in the middle", `"abc"`, []string{"run:created", "run:started", delta("s", 1, "ab"), delta("s",
			2, "abc"),
			"run:completed"}, begin + " +message ab -incomplete +message abc -completed completed", "abc"},
		{"told again after a call of a tool", `"x"`, []string{"run:created", "run:started", delta("s", 1, "ab"),
			`worker:tool_started {"id":"1","name":"t","input":{"q":1}}`, delta("s", 2, "ab"),
			`worker:tool_started {"id":"1","name":"t","input":{"q":1}}`,
			`worker:tool_completed {"id":"1","output":[1]}`,
			delta("s2", 1, "x"), "run:completed"},
			begin +
				" +message ab -completed +mcp_call +message ab -completed -completed +message x -completed completed",
			"abx"},
		{"what a model thinks", `"b"`, []string{"run:created", "run:started",
			`llm:delta {"channel":"reasoning","text":"a"}`, delta("s", 1, "b"), "run:completed"},
			begin + " +reasoning a -completed +message b -completed completed", "ab"},
		{"what it thinks again", `"b"`, []string{"run:created", "run:started",
			`llm:delta {"channel":"reasoning","step":"s","try":1,"text":"a"}`, delta("s", 1, "b"),
			`llm:delta {"channel":"reasoning","step":"s","try":2,"text":"c"}`, delta("s", 2, "b"), "run:completed"},
			begin + " +reasoning a -completed +message b -incomplete +reasoning c -completed +message b -completed " +
				"completed",
			"cb"},
		{"a result that it thought already", `"a"`, []string{"run:created", "run:started",
			`llm:delta {"channel":"reasoning","text":"a"}`, "run:completed"},
			begin + " +reasoning a -completed +message a -completed completed", "aa"},
		{"a failure", "", []string{"run:created", "run:started", delta("s", 1, "a"),
			`worker:tool_started {"id":"1","name":"t"}`,
			`run:failed {"error":{"code":"c","message":"m"}}`},
			begin + " +message a -completed +mcp_call -incomplete failed", "a"},
		{"a cancellation", "", []string{"run:created", "run:cancelled {}"}, "created queued incomplete", ""},
	} {
		told, r := play(t, c.result, 0, c.lines...)
		text := ""
		if r != nil {
			for _, x := range r.Output {
				if x.Content != nil {
					text += (*x.Content)[0].Text
				}
			}
		}
		if text != c.text || told != c.told {
			t.Errorf("%s: told %q with the text %q, want %q with %q", c.name, told, text, c.told, c.text)
		}
	}
}

// A run is one response up to each question, and one after the last. A question may come from below.
func TestQuestionsEndResponses(t *testing.T) {
	lines := []string{"run:created", "run:started",
		`wait:opened {"wait_id":"w","type":"approval","name":"n","approval_id":"apv_1"}`,
		"run:suspended {}", `wait:satisfied {"wait_id":"w"}`, "run:resumed {}", "run:suspended {}",
		`worker:asks {"run_id":"c","wait_id":"v","approval_id":"apv_2","title":"below"}`,
		`worker:answered {"run_id":"c","wait_id":"v"}`, "run:resumed {}", "run:completed"}
	for after, want := range map[int64]string{
		0:  "created queued in_progress +mcp_approval_request - completed",
		4:  "created +mcp_approval_request - completed",
		8:  "created +message end -completed completed",
		5:  "not_found: there is no such response",
		11: "not_found: there is no such response",
	} {
		if told, _ := play(t, `"end"`, after, lines...); told != want {
			t.Errorf("the part after line %d = %q, want %q", after, told, want)
		}
	}
}

// The tokens of a run are those that its result counts.
func TestUsageIsThatOfTheResult(t *testing.T) {
	for result, want := range map[string]string{
		`{"answer":"a","usage":{"input":3,"cached_input":1,"output":2,"reasoning":1}}`: "3 1 2 1 5",
		`{"answer":"a","usage":{"input_tokens":3,"output_tokens":2}}`:                  "3 0 2 0 5",
		`{"answer":"a"}`: "none", `"a"`: "none", `{"usage":7}`: "none", `{"usage":{"input":-9,"output":10}}`: "none",
		`{"usage":{}}`: "none",
	} {
		_, r := play(t, result, 0, "run:created", "run:completed")
		got := "none"
		if u := r.Usage; u != nil {
			got = fmt.Sprint(u.Input, u.InputDetail.Cached, u.Output, u.OutputDetail.Reasoning, u.Total)
		}
		if got != want {
			t.Errorf("usage of the result %s = %s, want %s", result, got, want)
		}
	}
}
