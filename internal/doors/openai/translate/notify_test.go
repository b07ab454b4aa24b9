package translate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
)

// A webhook is told of the end of each part of a run, by the id of the response that has ended there.
func TestWebhookIsToldOfEachResponse(t *testing.T) {
	const id, n = "01020304-0506-0708-090a-0b0c0d0e0f10", "resp_0102030405060708090a0b0c0d0e0f10"
	asks := []string{"run:created", "run:started", delta("s", 1, "a"),
		`wait:opened {"wait_id":"w","type":"approval","name":"n","approval_id":"apv_1"}`, "run:suspended {}",
		`worker:asks {"run_id":"c","wait_id":"v","approval_id":"apv_2","title":"below"}`,
		`wait:satisfied {"wait_id":"w"}`, "run:resumed {}"}
	large := `"` + strings.Repeat("x", frame.MaxAnswer/4+1) + `"`
	for _, c := range []struct {
		name string
		log  []string
		want string
	}{
		{"the end", []string{"run:created", "run:started", `run:completed {"result":"a"}`}, "response.completed " + n},
		{"a failure", []string{"run:created", `run:failed {"error":{}}`}, "response.failed " + n},
		{"a deadline", []string{"run:created", `run:timed_out {"error":{}}`}, "response.failed " + n},
		{"a cancellation", []string{"run:created", "run:cancelled {}"}, "response.cancelled " + n},
		{"a text that is too large", []string{"run:created", `run:completed {"result":` + large + `}`},
			"response.incomplete " + n},
		{"no part ends", asks[:4], ""},
		{"a question", asks[:5], "response.completed " + n},
		{"a question from below", asks[:6], "response.completed " + n + "p5"},
		{"it goes on", asks, ""},
		{"the end of the last part", append(asks, `run:completed {"result":"b"}`), "response.completed " + n + "p6"},
		{"a timer", []string{`wait:opened {"wait_id":"w","type":"timer"}`, "run:suspended {}"}, ""},
	} {
		got := ""
		lines := lines(c.log...)
		last := lines[len(lines)-1]
		b, err := Notify(&frame.Notice{ID: "msg_1", Run: &perdure.Run{ID: id, Kind: "k"},
			Line: &perdure.Line{Seq: last.Seq, Type: last.Type, At: 7_000_000},
			Lines: func(yield func(*api.Event, error) bool) {
				for _, e := range lines {
					if !yield(e, nil) {
						return
					}
				}
			}})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var out notification
		if b != nil && json.Unmarshal(b, &out) == nil && out.Object == "event" && out.ID == "evt_msg_1" &&
			out.CreatedAt == 7 {
			got = out.Type + " " + out.Data.ID
		}
		if got != c.want {
			t.Errorf("%s: the webhook is told %q (%s), want %q", c.name, got, b, c.want)
		}
	}
}

// lines are the lines of a log, each written as its type and its data.
func lines(log ...string) (out []*api.Event) {
	for i, line := range log {
		typ, data, _ := strings.Cut(line, " ")
		out = append(out, &api.Event{Seq: int64(i + 1), Type: perdure.LineType(typ), Attempt: 1, Data: []byte(data)})
	}
	return out
}
