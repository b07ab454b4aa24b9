package main

import (
	"os"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

func scenario() agenttest.Scenario {
	policy := perdure.DefaultPolicy()
	policy.Lease = 3 * time.Second // as the server of the tutorial has it
	return agenttest.Scenario{
		Setup:  func(*agenttest.Trial) func(*worker.Worker) { return register },
		Start:  perdure.Submission{Kind: "report", Class: perdure.Agent, Input: client.JSON("a tide")},
		Server: embedded.Options{Policy: &policy},
	}
}

func TestReportIsTheSameAfterEveryCrash(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	sc := scenario()
	sc.Script = func(s *agenttest.Trial) {
		s.Decide(perdure.Decision{Decision: perdure.Approve})
	}
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		report, err := client.Result[Report](&end.Run)
		if err != nil {
			t.Fatal(err)
		}
		if report.Missing != 1 {
			t.Errorf("%d sources are missing, want 1: the archive", report.Missing)
		}
		if text, err := os.ReadFile(report.URL); err != nil || string(text) != report.Text+"\n" {
			t.Errorf("published text = %q (error %v), want the report", text, err)
		}
	})
}

func TestNothingIsPublishedWithoutApproval(t *testing.T) {
	end := scenario().Run(t) // nobody decides within the hour of virtual time
	if report, err := client.Result[Report](&end.Run); err != nil || report.URL != "" {
		t.Errorf("URL of the report = %q (error %v), want none", report.URL, err)
	}
}
