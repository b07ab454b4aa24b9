package supervisor_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

// A decision that the server has taken is the answer, although a message in the chat came before it. The
// message is one like others, which the model gets too.
func TestDecisionTakenBeforeTheWithdrawalCounts(t *testing.T) {
	w := &world{rules: []mockmodel.Rule{calls("paint", call("ask_human", args{"question": "Which colour?"})),
		says("user", "blue", "Both were heard.")}}
	sc := w.scenario("paint")
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(30 * time.Second)
		// Nobody takes the run while both come.
		if _, err := admin.New(s.Client()).PauseQueue(s.Context(), perdure.DefaultQueue, api.PauseQueue{}); err != nil {
			t.Error(err)
		}
		write(t, s, "blue")
		s.Decide(perdure.Decision{Decision: perdure.Approve, Answer: client.JSON(args{"answer": "red"})})
		if _, err := admin.New(s.Client()).ResumeQueue(s.Context(), perdure.DefaultQueue); err != nil {
			t.Error(err)
		}
	}
	checkThread(t, sc.Run(t), "user: paint", "assistant: Which colour?", "user: blue", "user: red",
		"assistant: Both were heard.")
	if w.sent(`"content":"red"`) != 1 {
		t.Errorf("the model got the decision %d times, want once", w.sent(`"content":"red"`))
	}
}
