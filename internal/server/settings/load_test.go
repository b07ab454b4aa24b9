package settings

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// load reads a configuration with a file, flags and an empty environment.
func load(t *testing.T, text string, args ...string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "perdure.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := flag.NewFlagSet("test", flag.ContinueOnError)
	flags := AddFlags(f)
	if err := f.Parse(append([]string{"--config", path}, args...)); err != nil {
		t.Fatal(err)
	}
	return flags.Load(func(string) string { return "" })
}

func TestPolicyFromFile(t *testing.T) {
	for _, text := range []string{"artifact_max_bytes = 12", "artifact_max_bytes = \"12\"",
		"artifact_max_bytes = 12\nartifact_total_bytes = \"12\"\nlease = \"2s\""} {
		cfg, err := load(t, "[policy]\n"+text)
		if err != nil {
			t.Errorf("policy %q: %v, want no error", text, err)
		} else if cfg.Policy.ArtifactMaxBytes != 12 {
			t.Errorf("%q: artifact_max_bytes = %d, want 12", text, cfg.Policy.ArtifactMaxBytes)
		}
	}
	for text, want := range map[string]string{
		"lease = 60":       "policy.lease: \"60\" is not a duration",
		"lease = \"1ns\"":  "policy.lease: must be at least 100ms, not 1ns",
		"lease = \"5ms\"":  "policy.lease: must be at least 100ms, not 5ms",
		"lease = true":     "policy.lease: \"true\" is not a duration",
		"lease = [\"1m\"]": "policy.lease: [1m] is not a single value",
		"artifact_max_bytes = 1.5": "policy.artifact_max_bytes: \"1.5\" is not a whole number, between 1 and " +
			"1099511627776",
		"backoff_jitter = \"nan\"":        "policy.backoff_jitter: must lie between 0 and 1, not NaN",
		"max_attempts = 1001":             "policy.max_attempts: must lie between 1 and 1000, not 1001",
		"timeouts = \"1h\"":               "policy.timeouts is a section",
		"timeouts.task = \"1h\"":          "policy.timeouts.task is a section",
		"timeouts.task.least = \"1h\"":    "policy.timeouts.task.least: there is no such setting",
		"timeouts.task.default = \"2h\"":  "policy.timeouts.task.default: 2h0m0s is above timeouts.task.max, 1h0m0s",
		"lease.long = \"1m\"":             "policy.lease: map[long:1m] is not a single value",
		"\"timeouts.task.max\" = \"2h\"":  "policy.timeouts.task.max: there is no such setting",
		"artifact_max_bytes = -1":         "policy.artifact_max_bytes: must lie between",
		"artifact_total_bytes = 100":      "policy.artifact_max_bytes: must not be above artifact_total_bytes, 100",
		"artifact_max_bytes = 1000000000": "artifact_total_bytes",
		"retention = \"1h\"":              "policy.retention: must not be shorter",
		"nonsense = 1":                    "policy.nonsense",
	} {
		if _, err := load(t, "[policy]\n"+text); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "invalid:") {
			t.Errorf("policy %q: %v, want an error with %q", text, err, want)
		}
	}
}

func TestThresholdsFromFile(t *testing.T) {
	cfg, err := load(t, `
[liveness.activity.llm_thinking]
silent = "2m"
[liveness.kind.report]
dead = "1h"
[liveness.kind.report.activity."running tests"]
stale = "30m"
`)
	if err != nil {
		t.Fatal(err)
	}
	r := perdure.Run{Kind: "report", Activity: "running tests"}
	if got := cfg.Policy.Thresholds(&r); got != (perdure.Thresholds{Silent: 30 * time.Second,
		NoProgress: 10 * time.Minute, Stale: 30 * time.Minute, Dead: time.Hour}) {
		t.Errorf("thresholds of report while running tests = %+v, want 30s, 10m, 30m and 1h", got)
	}
	r.Activity = "llm_thinking"
	if got := cfg.Policy.Thresholds(&r); got.Silent != 2*time.Minute || got.Stale != 2*time.Minute {
		t.Errorf("thresholds of report while llm_thinking = %+v, want silent and stale after 2m", got)
	}
	var out strings.Builder
	cfg.Print(&out)
	for _, want := range []string{"[liveness.kind.report]\ndead                       1h0m0s\n",
		"[liveness.activity.llm_thinking]\nsilent", `[liveness.kind.report.activity.running tests]`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("Print lacks %q:\n%s", want, out.String())
		}
	}
	for text, want := range map[string]string{
		"[liveness.kind.report]\nsilent = \"soon\"": "silent",
		"[liveness.kind.report]\nquiet = \"1m\"":    "quiet",
		"[liveness.kind.report]\nstale = \"20m\"":   "must be shorter",
		"[liveness.activity.a]\nsilent = \"-1m\"":   "silent",
		"[liveness.kind.\"\"]\nsilent = \"1m\"":     "liveness.kind",
		"[policy]\nstale_after = \"1h\"":            "stale_after",
		"[liveness.kinds.report]\nsilent = \"1m\"":  "kinds",
		"[liveness.kind.a]\nsilent = \"0s\"":        "must be positive",
		"[liveness.kind.a]\nsilent = 5":             "duration",
		"[liveness.kind.a]\nsilent = \"1ns\"":       "liveness.kind.a.silent: must be at least 1ms",
		"liveness = 5":                              "liveness",
		"[liveness]\nkind = 5":                      "liveness.kind is a section",
		"[liveness]\nkind = \"report\"":             "liveness.kind is a section",
		"[liveness]\nactivity = true":               "liveness.activity is a section",
		"[liveness.kind]\nreport = 5":               "liveness.kind.report",
		"[liveness.kind.report]\nactivity = [1]":    "liveness.kind.report.activity is a section",
		"[liveness.kind.report.activity]\na = 1":    "liveness.kind.report.activity.a",
		"[liveness.activity]\na = \"1m\"":           "liveness.activity.a",
		"[[liveness.kind]]\nsilent = \"1m\"":        "liveness.kind",
		"policy = 5":                                "policy is a section",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("file %q: %v, want an error with %q", text, err, want)
		}
	}
}

func TestThresholdsFromFlags(t *testing.T) {
	cfg, err := load(t, "[liveness.kind.report]\ndead = \"1h\"\nsilent = \"1m\"\n",
		"--liveness", "kind.report.silent=3m", "--liveness", `kind."a.b".activity."running tests".stale=4m`)
	if err != nil {
		t.Fatal(err)
	}
	kinds := cfg.Policy.Liveness.Kinds
	if got, want := kinds["report"].Thresholds, (perdure.Thresholds{Silent: 3 * time.Minute,
		Dead: time.Hour}); got != want {
		t.Errorf("thresholds of report = %+v, want %+v", got, want)
	}
	if got := kinds["a.b"].Activities["running tests"].Stale; got != 4*time.Minute {
		t.Errorf("stale of an activity of a.b = %s, want 4m", got)
	}
	for _, bad := range []string{"kind.report.silent", "kind.report=1m", "kind=1m", "silent=1m", "kind.report.loud=1m",
		"kind.report.activity.x.y.silent=1m", "=1m", "kind..silent=1m"} {
		if _, err := load(t, "", "--liveness", bad); err == nil || !strings.Contains(err.Error(), "liveness") {
			t.Errorf("--liveness %s: %v, want a refusal that names it", bad, err)
		}
	}
}

// The flag overrides the environment, which overrides the file. An overridden value is not checked.
func TestFlagOverridesEnvironmentAndFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "perdure.toml")
	text := "max_streams = 1\nhosts = [\"file\"]\nlog_level = \"warn\"\n[policy]\nmax_attempts = 4\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"PERDURE_CONFIG": path, "PERDURE_HOSTS": "env", "PERDURE_MAX_STREAMS": "none",
		"PERDURE_POLICY_MAX_ATTEMPTS": "5"}
	f := flag.NewFlagSet("test", flag.ContinueOnError)
	flags := AddFlags(f)
	if err := f.Parse([]string{"--max-streams", "3", "--policy", "max_attempts=6", "--policy",
		"max_attempts=7"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Load(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxStreams != 3 || cfg.Policy.MaxAttempts != 7 || cfg.Text("hosts") != "env" || cfg.LogLevel != "warn" {
		t.Errorf("max_streams = %d, max_attempts = %d, hosts = %s, log_level = %s; want 3, 7, env, warn",
			cfg.MaxStreams, cfg.Policy.MaxAttempts, cfg.Text("hosts"), cfg.LogLevel)
	}
}

// Every field of the policy is set by a row, or by the sections of liveness.
func TestEveryPolicyFieldHasARow(t *testing.T) {
	p := perdure.DefaultPolicy()
	at := map[uintptr]bool{}
	for _, s := range p.Settings() {
		at[reflect.ValueOf(s.Value).Pointer()] = true
	}
	var walk func(v reflect.Value, name string)
	walk = func(v reflect.Value, name string) {
		switch {
		case v.Type() == reflect.TypeFor[perdure.Liveness](), name == "Policy.EpochFloor": // the store has it
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
		case !at[v.Addr().Pointer()]:
			t.Errorf("%s has no row in Policy.Settings", name)
		}
	}
	walk(reflect.ValueOf(&p).Elem(), "Policy")
}
