package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/natstest"
	"github.com/perdure/perdure/internal/pgtest"
)

// benchStore is where the bench is tried.
func benchStore(t *testing.T) string {
	if os.Getenv("PERDURE_TEST_STORE") == storePostgres {
		return pgtest.New(t)
	}
	return storeSQLite
}

// The figures of a fraction of a second say nothing; that there are some says that every scenario still works.
func TestEveryScenarioGivesItsFigures(t *testing.T) {
	want := map[string][]string{
		"submit":             {"process", "http"},
		"drain":              {"process", "http"},
		"life":               {"process", "http"},
		"idle":               {"process dispatch", "process submit to worker", "http dispatch", "http submit to worker"},
		"wake":               {"http dispatch, LISTEN/NOTIFY", "http submit to worker, LISTEN/NOTIFY", "http dispatch, NATS", "http submit to worker, NATS"},
		"start":              {"http " + whatFirst, "http " + whatAgain, "http " + whatMemory, "http " + whatBinary},
		"alarms":             {"process " + whatSweep, "process " + whatAtOnce, "process " + whatProbe, "process lateness at 500/s", "http " + whatAtOnce, "http " + whatProbe, "http lateness at 500/s"},
		"backlog":            {"process claim, empty", "process claim, 600 queued", "process " + whatRatio50, "process " + whatRatio, "http claim, empty", "http claim, 600 queued", "http " + whatRatio50, "http " + whatRatio},
		"streams":            {"http " + whatEachOwn, "http " + whatIdleOwn, "http " + whatEachShared, "http " + whatIdleShared, "http " + whatToAll},
		"events":             {"http " + whatToClient, "http " + whatDueClient},
		"replay":             {"http " + whatByStream, "http " + whatByPoll},
		"reconnect":          {"http " + whatAllBack, "http " + whatEachBack, "http " + whatMean},
		"webhooks":           {"http " + whatDelivered, "http " + whatNotified + " at 100/s"},
		"tokens":             {"http " + whatTokens, "http " + whatText, "http " + whatLines, "http " + whatStored, "http " + whatByStream, "http " + whatByPoll},
		"agent-steps":        {"process", "process " + whatAlone, "http", "http " + whatAlone},
		"agent-children":     {"process", "process " + whatAlone, "http", "http " + whatAlone},
		"agent-replay":       {"process 10 steps", "process 10 steps, " + whatGarbage, "process 100 steps", "process 100 steps, " + whatGarbage, "process " + whatSteeper, "http 10 steps", "http 10 steps, " + whatGarbage, "http 100 steps", "http 100 steps, " + whatGarbage, "http " + whatSteeper},
		"agent-conversation": {"process 25 calls", "process 50 calls", "process 75 calls", "process 100 calls", "process " + whatText, "process " + whatTimes, "process " + whatLater, "http 25 calls", "http 50 calls", "http 75 calls", "http 100 calls", "http " + whatText, "http " + whatTimes, "http " + whatLater},
	}
	for _, s := range benchScenarios {
		t.Run(s.name, func(t *testing.T) {
			store, dir, bell, profiles := benchStore(t), t.TempDir(), "", ""
			if s.name == "streams" {
				profiles = filepath.Join(t.TempDir(), "server")
			}
			if s.postgres { // two servers can't share a file
				store, bell = pgtest.New(t), natstest.Start(t, natstest.Options{}).URL()
			}
			out, progress := mustRun(t, 0, "bench", "--json", "--doorbell", bell, "--scenario", s.name, "--store", store, "--dir", dir, "--duration", "200ms", "--settle", "1ms",
				"--callers", "8", "--backlog", "300", "--live", "600", "--due", "200",
				"--streams", "40", "--lines", "1500", "--behind", "20", "--tokens", "1000", "--steps", "100", "--server-profile", profiles)
			var r benchReport
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range r.Figures {
				got = append(got, strings.TrimSpace(f.Target+" "+f.What))
				if f.Scenario != s.name || f.Store != storeName(store) || f.Latency == nil && f.Value <= 0 && s.name != "streams" || f.Latency != nil && (f.Count == 0 || f.Latency.Max <= 0) {
					t.Errorf("a figure of nothing: %+v", f)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want[s.name]) {
				t.Errorf("figures %q, want %q", got, want[s.name])
			}
			if r.Machine.Cores == 0 || r.Machine.Sync == nil || r.Stores[storeName(store)]["version"] == "" {
				t.Errorf("it does not say where this was measured: %+v %v", r.Machine, r.Stores)
			}
			has(t, progress, s.name+", "+storeName(store))
			if profiles != "" {
				hasProfiles(t, profiles)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
				t.Errorf("it left %v behind", left)
			}
		})
	}
}

// An open loop does as many as were asked for, and not as many as it can.
func TestAnOpenLoopHasItsRate(t *testing.T) {
	for _, scenario := range []string{"submit", "life"} {
		out, _ := mustRun(t, 0, "bench", "--json", "--scenario", scenario, "--store", benchStore(t), "--target", "process", "--dir", t.TempDir(), "--duration", "500ms", "--rate", "200")
		var r benchReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Figures) != 1 {
			t.Fatalf("%s: %v", out, err)
		}
		// A hundred random arrivals are between 50 and 150 but once in a million times.
		if f := r.Figures[0]; f.Loop != openLoops || f.Count < 50 || f.Count > 150 || f.What != "at 200/s" {
			t.Errorf("%+v", f)
		}
	}
}

func TestAnOpenLoopWaitsForNobody(t *testing.T) {
	var calls, others atomic.Int64
	release := make(chan struct{})
	err := openLoop(t.Context(), 1000, 50*time.Millisecond, func(time.Time) error {
		if calls.Add(1) > 1 {
			if others.Add(1) == 10 {
				close(release)
			}
			return nil
		}
		select { // the first call takes as long as ten others
		case <-release:
		case <-time.After(eventually.Within):
			t.Error("the others wait for the first")
		}
		return nil
	})
	if err != nil || others.Load() < 10 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
	boom := errors.New("boom")
	if err := openLoop(t.Context(), 1000, time.Minute, func(time.Time) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("a call that failed ends the loop: %v", err)
	}
}

func TestAFigureIsHeldAgainstItsGoal(t *testing.T) {
	large, small := &bench{live: 1_000_000, due: 100_000}, &bench{live: 1000, due: 10}
	for _, c := range []struct {
		name string
		b    *bench
		f    benchFigure
		want string
	}{
		{"met", small, benchFigure{Scenario: "life", Store: storeSQLite, Target: targetProcess, Value: 6000, Unit: unitRate}, "✓ ≥ 5000/s: 1.20"},
		{"missed", small, benchFigure{Scenario: "life", Store: storeSQLite, Target: targetHTTP, Value: 2000, Unit: unitRate}, "✗ ≥ 2500/s: 0.80"},
		{"open loop", small, benchFigure{Scenario: "life", What: "at 10/s", Store: storeSQLite, Target: targetProcess, Value: 10, Unit: unitRate}, ""},
		{"two", small, benchFigure{Scenario: "idle", What: "dispatch", Target: targetHTTP, Latency: &spread{P50: 1, P99: 11}}, "✓ p50 ≤ 2 ms: 0.50, ✗ p99 ≤ 10 ms: 1.10"},
		{"large", large, benchFigure{Scenario: "alarms", What: whatAtOnce, Value: 15, Unit: unitSeconds}, "✓ ≤ 30 s: 0.50"},
		{"agents", small, benchFigure{Scenario: "agent-steps", What: whatAlone, Store: storeSQLite, Target: targetHTTP, Latency: &spread{P50: 4, P99: 30}}, "✓ p50 ≤ 8 ms: 0.50"},
		{"too few agents", small, benchFigure{Scenario: "agent-steps", Store: storeSQLite, Target: targetHTTP, Value: 10, Unit: unitRate}, ""},
		{"not large", small, benchFigure{Scenario: "alarms", What: whatAtOnce, Value: 15, Unit: unitSeconds}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, v := range c.b.goals(&c.f) {
				got = append(got, v.text(painter{}))
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestBenchRefusesWhatItCanNotMeasure(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--scenario lives", `no scenario "lives"`},
		{"--target browser", `no target "browser"`},
		{"--store mysql", `no store "mysql"`},
		{"--callers 0", "have to be positive"},
		{"--scenario wake --store sqlite", "nothing of this can be measured on sqlite"},
	} {
		_, complaint := mustRun(t, exitUsage, append([]string{"bench"}, strings.Fields(c.args)...)...)
		has(t, complaint, c.says)
	}
}

func TestTheTableOfFigures(t *testing.T) {
	r := &benchReport{
		Machine:  machine{Cores: 2, CPU: "a CPU", Memory: "24 GB", Kernel: "6.1", FileSystem: "ext4", Load: "0.00 0.00 0.00", Sync: &spread{P50: .1, P99: .2}, Go: "go1.26", Platform: "linux/amd64", At: time.Unix(0, 0).UTC()},
		Stores:   map[string]map[string]string{storeSQLite: {"synchronous": "FULL", "version": "3"}},
		Settings: map[string]any{"callers": 8},
		Figures: []benchFigure{
			{Store: storeSQLite, Target: targetProcess, Scenario: "life", Loop: closedLoops, Count: 60000, Value: 6000, Unit: unitRate, CPU: 150, Latency: &spread{1, 2, 3, 4},
				Goals: []benchVerdict{{Least: true, Bound: 5000, Unit: unitRate, Ratio: 1.2, Met: true}}},
			{Store: storeSQLite, Target: targetHTTP, Scenario: "start", What: whatMemory, Value: 61.5, Unit: unitMegabytes, Goals: []benchVerdict{{Bound: 60, Unit: unitMegabytes, Ratio: 1.025}}},
		},
	}
	for name, p := range map[string]painter{"bench.txt": {}, "bench.colour.txt": {on: true}} {
		var b strings.Builder
		if err := r.print(&b, p); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}
