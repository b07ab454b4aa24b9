package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/cmd/perdure-bench/internal/bench"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// TestMain lets the bench start the test binary as its clients, and as the servers that it measures.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case bench.ClientsCommand, bench.ServeCommand, bench.WorkCommand:
			os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
		case "serve": // in place of perdure
			os.Exit(run(append([]string{bench.ServeCommand, ""}, os.Args[2:]...), os.Stdout, os.Stderr))
		}
	}
	os.Exit(m.Run())
}

// mustRun executes a command line whose servers are those of the test binary, and checks the exit code.
func mustRun(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, complaint bytes.Buffer
	if got := run(append([]string{"--perdure", self}, args...), &out, &complaint); got != code {
		t.Fatalf("perdure-bench %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out.String(),
			complaint.String())
	}
	return out.String(), complaint.String()
}

func has(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("the output has no %q:\n%s", part, text)
	}
}

// benchStore is the store of these tests.
func benchStore(t *testing.T) string {
	if os.Getenv("PERDURE_TEST_STORE") == "postgres" {
		return pgtest.New(t)
	}
	return "sqlite"
}

// The figures of a fraction of a second mean nothing. The test checks that every scenario produces
// its figures.
func TestEveryScenarioProducesItsFigures(t *testing.T) {
	want := map[string][]string{
		"engine-submit": {"process", "http"},
		"engine-drain":  {"process", "http"},
		"engine-life":   {"process", "http"},
		"idle":          {"process dispatch", "process submit to worker", "http dispatch", "http submit to worker"},
		"wake": {"http dispatch, LISTEN/NOTIFY", "http submit to worker, LISTEN/NOTIFY",
			"http dispatch, NATS", "http submit to worker, NATS"},
		"fleet": {"http one node", "http three nodes", "http three nodes / one",
			"http a dead node's runs, after the lease",
			"http submit of others, calm", "http submit of others, one noisy", "http p99 one noisy / calm",
			"http submit while an index is built"},
		"start": {"http " + "first start to accepted run", "http " + "start again to accepted run",
			"http " + "memory, idle", "http " + "binary"},
		"alarms": {"process " + "sweep, nothing due", "process " + "deadlines at one instant",
			"process " + "submit and get meanwhile", "process lateness at 500/s", "http " + "deadlines at one instant",
			"http " + "submit and get meanwhile", "http lateness at 500/s"},
		"backlog": {"process claim, empty", "process claim, 600 queued", "process " + "p50 queued / empty",
			"process " + "p99 queued / empty", "http claim, empty", "http claim, 600 queued",
			"http " + "p50 queued / empty", "http " + "p99 queued / empty"},
		"streams": {"http " + "memory of a stream, a run each", "http " + "cpu when idle, a run each",
			"http " + "memory of a stream, all on one run", "http " + "cpu when idle, all on one run",
			"http " + "one event to all"},
		"events": {"http " + "commit to client", "http " + "due to client"},
		"feed": {"http " + "change to socket", "http " + "cpu without sockets", "http " + "cpu of the sockets",
			"http " + "cpu of idle sockets", "http " + "memory of a socket", "http list", "http list, running",
			"http list, failed", "http list, completed", "http list, a kind", "http list, a rare kind",
			"http list, a queue", "http list, metadata", "http list, a time", "http search, an id",
			"http search, a prefix", "http search, a value", "http search, a worker", "http search, a code",
			"http search, holds", "http search, deadlines", "http attention", "http stats of a kind", "http counts",
			"http history"},
		"footprint": {"process of an ended run", "process of an ended run, rows",
			"process of an ended run, lines of its log", "http of an ended run", "http of an ended run, rows",
			"http of an ended run, lines of its log"},
		"replay": {"http " + "by stream", "http " + "by polling"},
		"reconnect": {"http " + "all streams caught up", "http " + "each stream, from when it came back",
			"http " + "get meanwhile"},
		"webhooks": {"http " + "deliveries", "http " + "event to receipt" + " at 100/s"},
		"tokens": {"http " + "streamed", "http " + "text", "http " + "log", "http " + "store",
			"http " + "by stream", "http " + "by polling"},
		"jobs": {"process", "process " + "alone", "http", "http " + "alone"},
		"jobs-grown": {"process 0 ended runs", "process 0 ended runs, alone", "process 50 ended runs",
			"process 50 ended runs, alone", "http 0 ended runs", "http 0 ended runs, alone", "http 50 ended runs",
			"http 50 ended runs, alone"},
		"jobs-enqueue": {"process", "http"},
		"jobs-batch":   {"process", "http"},
		"jobs-drain":   {"process", "http"},
		"limits": {"process drain, no limit", "process drain, a limit that never binds",
			"process drain, a limit that never binds", "process drain, no limit", "process drain, such a limit / none",
			"process a freed slot, until the next grant", "http drain, no limit",
			"http drain, a limit that never binds",
			"http drain, a limit that never binds", "http drain, no limit", "http drain, such a limit / none",
			"http a freed slot, until the next grant", "http a freed slot, until the next grant, two nodes"},
		"limits-backlog": {"process claim, empty", "process claim, 600 blocked, one limit",
			"process p99 blocked / empty, one limit", "process claim, 600 blocked, many keys",
			"process p99 blocked / empty, many keys", "process claim, 600 blocked, many tenants",
			"process p99 blocked / empty, many tenants", "http claim, empty", "http claim, 600 blocked, one limit",
			"http p99 blocked / empty, one limit", "http claim, 600 blocked, many keys",
			"http p99 blocked / empty, many keys", "http claim, 600 blocked, many tenants",
			"http p99 blocked / empty, many tenants"},
		"schedules": {"process lateness of schedules", "process deadlines of another tenant meanwhile",
			"http lateness of schedules", "http deadlines of another tenant meanwhile"},
		"agent-parallel": {"process", "process " + "alone", "http", "http " + "alone"},
		"agent-steps":    {"process", "process " + "alone", "http", "http " + "alone"},
		"agent-children": {"process", "process " + "alone", "http", "http " + "alone"},
		"agent-replay": {"process 10 steps", "process 10 steps, " + "allocated", "process 100 steps",
			"process 100 steps, " + "allocated", "process " + "ten times the steps", "http 10 steps",
			"http 10 steps, " + "allocated", "http 100 steps", "http 100 steps, " + "allocated",
			"http " + "ten times the steps"},
		"sdks": {"http Go", "http Python", "http Python beside Go", "http TypeScript", "http TypeScript beside Go"},
		"doors": {"http API", "http API, alone", "http LangGraph", "http LangGraph, alone",
			"http LangGraph, calls of the API's", "http LangGraph, alone, p50 over the API's", "http OpenAI",
			"http OpenAI, alone", "http OpenAI, calls of the API's", "http OpenAI, alone, p50 over the API's",
			"http memory of a stream, API", "http memory of a stream, LangGraph"},
		"agent-conversation": {"process 25 calls", "process 50 calls", "process 75 calls", "process 100 calls",
			"process " + "text", "process " + "store against text", "process " + "calls 76 to 100 against 26 to 50",
			"http 25 calls", "http 50 calls", "http 75 calls", "http 100 calls", "http " + "text",
			"http " + "store against text", "http " + "calls 76 to 100 against 26 to 50"},
	}
	for _, s := range bench.Scenarios {
		t.Run(s.Name, func(t *testing.T) {
			store, dir, bell, profiles := benchStore(t), t.TempDir(), "", ""
			if s.Name == "streams" {
				profiles = filepath.Join(t.TempDir(), "server")
			}
			if s.Name == "fleet" || s.Name == "limits" {
				store = pgtest.New(t)
			}
			if s.Name == "wake" { // two servers can't share a file
				store, bell = pgtest.New(t), natstest.Start(t, natstest.Options{}).URL()
			}
			out, progress := mustRun(t, exitOK, "--json", "--doorbell", bell, "--scenario", s.Name,
				"--store", store,
				"--dir", dir, "--duration", "200ms", "--settle", "1ms",
				"--callers", "8", "--backlog", "300", "--live", "600", "--due", "200",
				"--streams", "40", "--lines", "1500", "--behind", "20", "--tokens", "1000", "--steps", "100",
				"--ended", "50", "--queues", "3", "--tenants", "2", "--sdks", "../../sdk",
				"--server-profile", profiles)
			var r bench.Report
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range r.Figures {
				got = append(got, strings.TrimSpace(f.Target+" "+f.What))
				// differences of memory and CPU
				mayBeZero := s.Name == "streams" || s.Name == "feed" || s.Name == "doors"
				if f.Scenario != s.Name || f.Store != nameOf(store) || f.Latency == nil && f.Value <= 0 &&
					!mayBeZero || f.Latency != nil && (f.Count == 0 || f.Latency.Max <= 0) {
					t.Errorf("figure %+v has no value or no samples", f)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want[s.Name]) {
				t.Errorf("figures %q, want %q", got, want[s.Name])
			}
			if r.Machine.Cores == 0 || r.Machine.Sync == nil || r.Stores[nameOf(store)]["version"] == "" {
				t.Errorf("machine = %+v, stores = %v, want both in the report", r.Machine, r.Stores)
			}
			has(t, progress, s.Name+", "+nameOf(store))
			if profiles != "" {
				hasProfiles(t, profiles)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
				t.Errorf("files after the bench = %v, want none", left)
			}
		})
	}
}

// An open loop makes as many calls as its rate says, and not as many as it can.
func TestOpenLoopKeepsItsRate(t *testing.T) {
	for _, scenario := range []string{"engine-submit", "engine-life"} {
		out, _ := mustRun(t, exitOK, "--json", "--scenario", scenario, "--store", benchStore(t), "--target",
			"process", "--dir", t.TempDir(), "--duration", "500ms", "--rate", "200")
		var r bench.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Figures) != 1 {
			t.Fatalf("bench --json: %v, want one figure: %s", err, out)
		}
		// A hundred random arrivals are between 50 and 150 but once in a million times.
		if f := r.Figures[0]; f.Loop != "open" || f.Count < 50 || f.Count > 150 || f.What != "at 200/s" {
			t.Errorf("figure %+v, want 50 to 150 samples of an open loop at 200/s", f)
		}
	}
}

func TestBenchRefusesInvalidFlags(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--scenario lives", `no scenario "lives"`},
		{"--target browser", `no target "browser"`},
		{"--store mysql", `no store "mysql"`},
		{"--callers 0", "have to be positive"},
		{"--scenario wake --store sqlite", "nothing of this can be measured on sqlite"},
		{"--perdure /no/such/perdure", "/no/such/perdure"},
		{"--scenarios jobs", "-scenarios"},
		{"jobs", "no arguments, only flags: jobs"},
	} {
		_, complaint := mustRun(t, exitUsage, strings.Fields(c.args)...)
		has(t, complaint, c.says)
	}
}

// hasProfiles checks the profiles of the two servers of a scenario.
func hasProfiles(t *testing.T, prefix string) {
	t.Helper()
	for _, kind := range []string{"cpu", "heap", "heap.txt", "goroutine"} {
		files, _ := filepath.Glob(prefix + ".*." + kind)
		if len(files) != 2 {
			t.Errorf("%d %s profiles, want one for each of two servers", len(files), kind)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.Size() == 0 {
				t.Errorf("%s is empty, %v", f, err)
			}
		}
	}
}

func TestStreamsAreLimitedByDescriptors(t *testing.T) {
	if most := bench.MostStreams(); most >= 1<<30 {
		return // nothing bounds them here
	}
	out, progress := mustRun(t, exitOK, "--scenario", "engine-submit", "--target", "process", "--store",
		benchStore(t), "--dir", t.TempDir(), "--duration", "10ms", "--streams", "1000000000")
	has(t, progress,
		fmt.Sprintf("1000000000 streams are too many for the file descriptors that a process may have here (ulimit "+
			"-n); %d are measured", bench.MostStreams()))
	has(t, out, fmt.Sprintf(" streams=%d ", bench.MostStreams()))
}

// nameOf returns the name of a store in a report.
func nameOf(store string) string {
	kind, _, _ := strings.Cut(store, "://")
	return kind
}

// The server of another program than the one beside this is measured if it is named. Without either, the
// message says what to do.
func TestMissingPerdureIsExplained(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, complaint bytes.Buffer
	if code := run([]string{"--scenario", "start"}, &out, &complaint); code != exitUsage {
		t.Errorf("exit code without a program perdure = %d, want %d", code, exitUsage)
	}
	has(t, complaint.String(), "--perdure names it")
	complaint.Reset()
	if code := run([]string{"--scenario", "engine-submit", "--target", "process", "--duration", "10ms", "--dir",
		t.TempDir()}, &out, &complaint); code != exitOK {
		t.Errorf("exit code of --target process without a program perdure = %d, want %d\n%s", code, exitOK,
			complaint.String())
	}
}

func TestHelpListsScenarios(t *testing.T) {
	_, help := mustRun(t, exitOK, "-h")
	for _, s := range bench.Scenarios {
		has(t, help, "  "+s.Name+" ")
	}
}
