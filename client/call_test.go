package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// serveOnce executes the next run of a kind with an outcome.
func serveOnce(t *testing.T, c *client.Client, kind string, out perdure.Outcome) {
	t.Helper()
	go func() {
		polled, err := session.Of(c).Poll(context.Background(), "w", api.Poll{Kinds: []string{kind}, Slots: 1,
			Start: true})
		if err != nil || len(polled.Runs) != 1 {
			return // the test's call then fails
		}
		g := polled.Runs[0]
		_, _ = session.Of(c).Commit(context.Background(), "w", perdure.Commit{ID: "end", RunID: g.RunID, Epoch: g.Epoch,
			Outcome: &out})
	}()
}

func TestCallReturnsTypedResult(t *testing.T) {
	c := open(t, false, nil).Client()
	serveOnce(t, c, "add", perdure.Outcome{Type: perdure.OutcomeComplete,
		Result: client.JSON(map[string]int{"sum": 3})})
	type sum struct{ Sum int }
	got, err := client.Call[sum](t.Context(), c, "add", []int{1, 2})
	if err != nil || got.Sum != 3 {
		t.Fatalf("Call = %+v, %v, want a sum of 3", got, err)
	}
}

func TestCallReturnsRunErrorOfFailedRun(t *testing.T) {
	c := open(t, false, nil).Client()
	no := false
	serveOnce(t, c, "add", perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &no,
		Error: &perdure.Failure{Code: "overflow", Message: "too much"}})
	_, err := client.Call[int](t.Context(), c, "add", nil)
	var failed *client.RunError
	if !errors.As(err, &failed) || failed.Failure.Code != "overflow" || failed.State != perdure.Failed {
		t.Fatalf("Call: %v, want a RunError with the code overflow", err)
	}
}

func TestCallReturnsDeferredErrorWhenItsTimeIsOver(t *testing.T) {
	c := open(t, false, nil).Client()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := client.Call[int](ctx, c, "nobody", 1)
	var deferred *client.DeferredError
	if !errors.As(err, &deferred) || deferred.RunID == "" || deferred.State != perdure.Queued {
		t.Fatalf("Call: %v, want a DeferredError of a queued run", err)
	}
	for _, part := range []string{"of kind nobody is queued", "no worker polls for kind nobody on queue default"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("Call: %q, want it to say %q", err, part)
		}
	}
	if r := ok[*api.Run](t)(c.Get(t.Context(), deferred.RunID)); r.State != perdure.Queued {
		t.Errorf("run %s is %s, want queued: it continues", r.RunID, r.State)
	}
}

func TestCallRefusesInputThatIsNoJSON(t *testing.T) {
	c := open(t, false, nil).Client()
	if _, err := client.Call[int](t.Context(), c, "add", make(chan int)); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("Call with a channel: %v, want %s", err, perdure.CodeInvalid)
	}
}
