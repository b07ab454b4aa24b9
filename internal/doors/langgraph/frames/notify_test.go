package frames

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// A webhook gets the run, its times and its values, for the end and where a person is asked. The thread is
// called as its caller has called it, and messages that do not fit are the oldest.
func TestWebhookGetsTheRunAndItsValues(t *testing.T) {
	const opened = `wait:opened {"wait_id":"w","type":"approval","approval_id":"apv_1"}`
	told := `message:appended {"message_seq":2,"role":"assistant"}`
	for _, c := range []struct {
		name string
		log  []string
		size int
		want string
	}{
		{"the end", []string{told, `run:completed {"result":{"answer":7}}`}, 1, `success t 2 answer=7 <nil> <nil>`},
		{"a result that is no object", []string{`run:completed {"result":1}`}, 1,
			`success t 0 answer=<nil> <nil> <nil>`},
		{"a failure", []string{told, `run:failed {"error":{"code":"c","message":"m"}}`}, 1,
			`error t 2 answer=<nil> <nil> map[error:c message:m]`},
		{"a cancellation", []string{`run:cancelled {}`}, 1, `interrupted t 0 answer=<nil> <nil> <nil>`},
		{"large messages", []string{told, `run:completed {}`}, maxNotice - 100, `success t 1 answer=<nil> <nil> <nil>`},
		{"a question", []string{opened, `run:suspended {}`}, 1,
			`interrupted t 0 answer=<nil> [map[id:apv_1 value:map[action:1 approvers: form:<nil> title:T]]] <nil>`},
		{"not yet", []string{opened}, 1, ""},
		{"a timer", []string{`wait:opened {"wait_id":"w","type":"timer"}`, `run:suspended {}`}, 1, ""},
	} {
		var log []*api.Event
		for i, line := range c.log {
			typ, data, _ := strings.Cut(line, " ")
			log = append(log, &api.Event{Seq: int64(i + 1), Type: perdure.LineType(typ), Data: []byte(data)})
		}
		last := log[len(log)-1]
		n := &frame.Notice{Run: &perdure.Run{ID: "r", Kind: "k", ThreadID: "own"},
			Line: &perdure.Line{Seq: last.Seq, Type: last.Type, At: 7_000_000},
			Lines: func(yield func(*api.Event, error) bool) {
				for _, e := range log {
					if !yield(e, nil) {
						return
					}
				}
			},
			Names: func() ([]string, error) { return []string{"x:y", "langgraph:t"}, nil },
			Messages: func(after int64) (out []api.Message, err error) {
				for seq := after + 1; seq <= 3; seq++ { // the third came after the run
					out = append(out, api.Message{Seq: seq, Role: "user", Content: json.RawMessage(`"` +
						strings.Repeat("x", c.size) + `"`)})
				}
				return out, nil
			},
			Approval: func(id perdure.ApprovalID) (*perdure.Approval, error) {
				return &perdure.Approval{ID: id, Title: "T", Action: "1"}, nil
			}}
		b, err := Notify(n)
		again, _ := Notify(n)
		if err != nil || string(again) != string(b) {
			t.Errorf("%s: %v; a second attempt = %.500s, want %.500s", c.name, err, again, b)
		}
		got, out := "", shape.Object{}
		if b != nil && json.Unmarshal(b, &out) == nil {
			values := out["values"].(shape.Object)
			messages, _ := values["messages"].([]any)
			got = fmt.Sprintf("%v %v %d answer=%v %v %v", out["status"], out["thread_id"], len(messages),
				values["answer"], values["__interrupt__"], out["error"])
			if out["run_ended_at"] != "1970-01-01T00:00:07.000000Z" || out["webhook_sent_at"] != out["run_ended_at"] {
				t.Errorf("%s: times = %v, %v, want those of the line", c.name,
					out["run_ended_at"], out["webhook_sent_at"])
			}
		}
		if got != c.want {
			t.Errorf("%s: the webhook gets %q (%.500s), want %q", c.name, got, b, c.want)
		}
	}
}
