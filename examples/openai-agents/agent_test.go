// Package openaiagents contains an agent of the OpenAI Agents SDK, and a test that kills it.
package openaiagents

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/killtest"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// node is the Node.js that "make typescript" installs.
const node = "../../sdk/typescript/runtime/node_modules/node-22/bin/node"

// A worker that is killed while the model answers goes on there, and the thread of the run has each item of the session
// once. The next run on the thread knows them.
func TestAgentIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	var thread perdure.ThreadID
	say := func(w *servertest.Server, text string) perdure.RunID {
		a, err := w.C.Chat(w.Ctx, api.Chat{ThreadID: thread, Kind: "assistant", Message: client.JSON(text)})
		if err != nil {
			t.Fatal(err)
		}
		thread = a.ThreadID
		return a.RunID
	}
	killtest.Run(t, killtest.Example{
		Command: []string{node, "agent.ts"},
		Start:   func(w *servertest.Server) perdure.RunID { return say(w, killtest.Question) },
		After: func(w *servertest.Server, id perdure.RunID) {
			page, err := w.C.Messages(w.Ctx, thread, 0)
			if err != nil {
				t.Fatal(err)
			}
			var roles []string
			for _, m := range page.Messages {
				roles = append(roles, string(m.Role))
			}
			want := []string{"user", "assistant", "assistant", "tool", "tool", "assistant"}
			if !slices.Equal(roles, want) {
				t.Errorf("run %s: the thread has messages of %q, want %q", id, roles, want)
			}
			next := w.End(say(w, "Thanks"))
			if want := `"You are welcome."`; string(next.Result) != want {
				t.Errorf("the next run on the thread is %s with %s (error %+v), want %s", next.State, next.Result,
					next.Error, want)
			}
		},
	})
}
