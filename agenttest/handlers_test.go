package agenttest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/worker"
)

// A handler that stops the bubble's clock is named before the test's timeout.
func TestHangingHandlerIsNamedBeforeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handlers runningHandlers
		var early, late logBuffer
		handlers.reportBefore("TestTrip", time.Now().Add(10*time.Minute), &early)
		timer := handlers.reportBefore("TestOther", time.Now().Add(10*time.Minute), &late)
		goOn := make(chan struct{})
		go handlers.middleware(t.Context(), worker.RunInfo{Kind: "hotel", RunID: "r1", Attempt: 2},
			func(context.Context) error {
				<-goOn
				return nil
			})
		time.Sleep(9 * time.Minute)
		if early.String() != "" {
			t.Errorf("report a minute before the timeout = %q, want none yet", &early)
		}
		timer.Stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		want := "TestTrip: the test's time is nearly over, and these functions have not returned: " +
			"hotel (run r1, attempt 2)\n"
		if !strings.HasSuffix(early.String(), want) {
			t.Errorf("report before the timeout = %q, want it to end with %q", &early, want)
		}
		close(goOn)
		synctest.Wait()
		if late.String() != "" || handlers.String() != "" {
			t.Errorf("report after Stop = %q, running handlers after their end = %q, want none of both", &late,
				&handlers)
		}
	})
}
