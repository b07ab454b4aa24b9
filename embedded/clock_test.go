package embedded_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// A server in a bubble lives by the bubble's clock: what takes a day there takes no time here.
func TestServerUsesGivenClock(t *testing.T) {
	stage.NoStore(t)
	for name, dir := range map[string]string{"in memory": "", "in a file": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := embedded.Open(embedded.Options{Dir: dir, Clock: time.Now})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				began := time.Now()
				_, run := call(t, s, "POST", "/api/v1/runs", `{"kind":"nobody knows it","timeout":"30m","wait":"45m"}`)
				if run["state"] != "timeout" {
					t.Errorf("run = %v, want state = timeout", run)
				}
				if d := time.Since(began); d < 30*time.Minute || d > 30*time.Minute+time.Second {
					t.Errorf("it took %s", d)
				}
			})
		})
	}
}

func TestSharedStoreTakesNoClock(t *testing.T) {
	err := embedded.Options{Store: "postgres://h/d", Clock: time.Now}.Validate()
	if err == nil || !strings.Contains(err.Error(), "clock: ") {
		t.Errorf("Validate = %v, want an error about clock", err)
	}
}
