package agenttest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/worker"
)

// A function that stops the bubble's clock is named before go test gives the test up.
func TestWhoHoldsUpATestIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at working
		var early, late lines
		at.watch("TestTrip", time.Now().Add(10*time.Minute), &early)
		timer := at.watch("TestOther", time.Now().Add(10*time.Minute), &late)
		goOn := make(chan struct{})
		go at.around(t.Context(), worker.RunInfo{Kind: "hotel", RunID: "r1", Attempt: 2}, func(context.Context) error { <-goOn; return nil })
		time.Sleep(9 * time.Minute)
		if early.String() != "" {
			t.Errorf("too early: %s", &early)
		}
		timer.Stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := "TestTrip: the test's time is nearly over, and these functions have not returned: hotel (run r1, attempt 2)\n"; !strings.HasSuffix(early.String(), want) {
			t.Errorf("%q", &early)
		}
		close(goOn)
		synctest.Wait()
		if late.String() != "" || at.String() != "" {
			t.Errorf("%q, %q", &late, &at)
		}
	})
}
