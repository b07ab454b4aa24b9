package supervisor

import (
	"encoding/json"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/supervisor/model"
)

// A question has one budget, also if several runs answer it. Nobody but the runs can say what was used.
func TestSpentBefore(t *testing.T) {
	said := func(role perdure.Role, content any, metadata string, run perdure.RunID) api.Message {
		return api.Message{Role: role, Content: client.JSON(content), Metadata: json.RawMessage(metadata), RunID: run}
	}
	const bill = `{"usage":{"input":100},"reserved":{"w#1":{"tokens":50}}}`
	user, answer := said("user", "go", "", ""), said("assistant", "later", bill, "r1")
	ended := said("tool", map[string]any{"key": "w#1", "status": "completed",
		"result": Result{Answer: "x", Usage: model.Usage{Input: 7}}}, "", "")
	failed := said("tool", map[string]any{"key": "w#1", "status": "failed", "error": map[string]string{"code": "x"}},
		"", "")
	negative := said("tool", map[string]any{"result": Result{Usage: model.Usage{Input: -9}}}, "", "")
	other := said("tool", map[string]any{"key": "mcp.call#1", "result": "text"}, "", "")
	for name, c := range map[string]struct {
		history []api.Message
		want    int
	}{
		"first":             {[]api.Message{user}, 0},
		"continued":         {[]api.Message{user, answer, ended}, 107},
		"worker failed":     {[]api.Message{user, answer, failed}, 150},
		"twice the same":    {[]api.Message{user, answer, failed, failed}, 150},
		"a new question":    {[]api.Message{user, answer, ended, user}, 0},
		"text of a user":    {[]api.Message{user, answer, said("tool", bill, "", "")}, 100},
		"not by a run":      {[]api.Message{user, answer, said("assistant", "x", `{"usage":{"input":0}}`, "")}, 100},
		"less than before":  {[]api.Message{user, answer, said("assistant", "x", `{"usage":{"input":1}}`, "r2")}, 100},
		"negative":          {[]api.Message{user, answer, said("assistant", "x", `{"usage":{"input":-9}}`, "r2")}, 100},
		"negative child":    {[]api.Message{user, answer, negative}, 100},
		"other metadata":    {[]api.Message{user, said("assistant", "x", `{"mood":"good"}`, "r2")}, 0},
		"child of any kind": {[]api.Message{user, answer, other}, 100},
	} {
		var history []threadMessage
		for i := range c.history {
			m := threadMessage{role: c.history[i].Role}
			m.bill, m.child = billOf(&c.history[i])
			history = append(history, m)
		}
		if got := spentBefore(history); got.Total() != c.want {
			t.Errorf("%s: spent = %+v, want %d tokens", name, got, c.want)
		}
	}
}
