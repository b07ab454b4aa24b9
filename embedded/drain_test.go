package embedded_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
)

// A program that shuts down its server need not wait for the callers of runs in the same process.
func TestDrainedServerDefersWaitsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := embedded.Open(embedded.Options{Clock: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c := client.New("http://perdure", s.Key(), client.Options{Transport: s.Transport()})
		begin := time.Now()
		time.AfterFunc(time.Second, s.Drain)
		run, deferred, err := c.Run(t.Context(), perdure.Submission{Kind: "nobody"}, time.Hour)
		if err != nil || !deferred || run.RunID == "" {
			t.Errorf("Run = %+v, deferred %v, error %v, want a deferral", run, deferred, err)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("the call returned after %s, want it when the server shuts down", took)
		}
	})
}
