package agenttest

import (
	"context"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// Days in which nothing happens cost almost nothing: every operation takes real time.
func TestIdleDaysAreSkipped(t *testing.T) {
	policy := perdure.DefaultPolicy()
	policy.Lease = 3 * time.Second
	for name, given := range map[string]*perdure.Policy{"default policy": nil, "policy of the scenario": &policy} {
		t.Run(name, func(t *testing.T) {
			sc := Scenario{
				Setup: func(*Trial) func(*worker.Worker) {
					return func(w *worker.Worker) {
						worker.Agent(w, "patient", func(ctx *agent.Context, _ struct{}) (string, error) {
							return "done", agent.Sleep(ctx, 11*24*time.Hour)
						})
						worker.Handle(w, "other", func(_ context.Context, _ struct{}) (string, error) {
							return "", nil
						})
					}
				},
				Start: perdure.Submission{Kind: "patient", Class: perdure.Agent,
					Timeout: perdure.Duration(12 * 24 * time.Hour)},
				Script: func(s *Trial) {
					s.Await("run:suspended")
					before := operations(t, s)
					s.Sleep(10 * 24 * time.Hour)
					if n := operations(t, s) - before; n > 1000 {
						t.Errorf("%d operations in ten days without work, want a thousand at most", n)
					}
				},
				Patience: 13 * 24 * time.Hour,
			}
			sc.Server.Policy = given
			if end := sc.Run(t); end.Run.State != perdure.Completed {
				t.Errorf("the run is %s, want completed", end.Run.State)
			}
		})
	}
}

var operationsLine = regexp.MustCompile(`(?m)^perdure_store_operations_total(?:\{[^}]*\})? ([0-9.e+]+)$`)

// operations returns how many operations the server has done.
func operations(t *testing.T, s *Trial) int {
	t.Helper()
	req := httptest.NewRequest("GET", "/metrics", nil)
	req.Header.Set("Authorization", "Bearer "+s.srv.Key())
	req.Host = "perdure"
	rec := httptest.NewRecorder()
	s.srv.Handler().ServeHTTP(rec, req)
	sum := 0.0
	found := operationsLine.FindAllStringSubmatch(rec.Body.String(), -1)
	for _, m := range found {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if len(found) == 0 {
		t.Fatalf("no metric of operations: %d %.300s", rec.Code, rec.Body)
	}
	return int(sum)
}
