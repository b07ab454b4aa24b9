package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/perdure/perdure/internal/testkit/tlstest"
)

// A sample is a setting with a valid value that is not its default, and one that is refused.
type sample struct {
	name  string // in the file, with dots between sections
	good  string // as a flag or in the environment gives it
	shown string // as config check shows it, or empty if that is the same
	bad   string // a value that is refused, or empty if there is none
	why   string // a part of the error beside the name
}

// settingSamples returns samples of every documented setting. Files are in dir.
func settingSamples(t *testing.T, dir string) []sample {
	ca, cert, key := tlstest.New(t), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Issue(cert, key, time.Now().Add(time.Hour))
	sign, seal := filepath.Join(dir, "signing.key"), filepath.Join(dir, "seal.key")
	mustRun(t, 0, "keys", "signing", "new", sign)
	if err := os.WriteFile(seal, []byte(strings.Repeat("ab", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOME_SECRET", "long-enough")
	const none = "no-such"
	all := []sample{
		{"listen", "127.0.0.1:1", "", none, "is not an address"},
		{"data", "elsewhere", "", "", ""},
		{"store", "postgres://db/perdure", "", none, "is not an address"},
		{"doorbell", "nats://bus:4222", "", "amqp://bus", "nats://"},
		{"hosts", "a.example,b.example", "", "", ""},
		{"origins", "https://a.example,https://b.example", "", none, "is not an origin"},
		{"doors", "openai", "", none, "is none of"},
		{"door_root", "openai", "", none, "none of the doors that are on"},
		{"doors.langgraph.on_disconnect", "as-asked", "", none, "neither continue nor as-asked"},
		{"max_streams", "17", "", "0", "must be at least 1, not 0"},
		{"max_streams_per_tenant", "16", "", "-1", "must be at least 1, not -1"},
		{"tls_cert", cert, "", none, "no such file"},
		{"tls_key", key, "", none, "no such file"},
		{"insecure", "true", "", "perhaps", "neither true nor false"},
		{"public_url", "https://p.example", "", none, "is not an address"},
		{"webhook_allow", "10.1.0.0/16,10.2.0.0/16", "", none, "is not a network"},
		{"webhook_ports", "443,9443", "", "70000", "1 to 65535"},
		{"secrets", "env:SOME_SECRET", "", none, "env:NAME"},
		{"insecure_key_file", "true", "", "perhaps", "neither true nor false"},
		{"seal_keys", "file:" + seal, "", none, "env:NAME"},
		{"signing_keys", sign, "", none, "no such file"},
		{"signing_required", "acme,beta", "", strings.Repeat("x", 300), "no tenant"},
		{"supervisor", "scripted", "", none, "no such file"},
		{"workspace", "elsewhere", "", cert, "is no folder"},
		{"sentinel_scan", "7s", "", "1µs", "must be at least 1ms, not 1µs"},
		{"reattach_window", "7m0s", "", "soon", "is not a duration"},
		{"presumed_dead_after", "7m0s", "", "1µs", "must be at least 1ms, not 1µs"},
		{"workspace_retention", "7h0m0s", "", "1µs", "must be at least 1ms, not 1µs"},
		{"start_wait", "7s", "", "-1s", "shorter than"},
		{"log_level", "debug", "", "loud", "debug, info, warn, error"},
		{"log_format", "json", "", "xml", "neither text nor json"},
		{"policy.backoff_jitter", "0.5", "", "1.5", "must lie between 0 and 1, not 1.5"},
		{"policy.hold_defects", "false", "", "perhaps", "neither true nor false"},
		{"policy.max_attempts", "7", "", "0", "must lie between 1 and 1000, not 0"},
		{"policy.max_deliveries", "12", "", "0", "must lie between 1 and 1000, not 0"},
		{"policy.artifact_max_bytes", "1000", "", "0", "must lie between 1 and 1099511627776, not 0"},
		{"policy.artifact_total_bytes", "1000000000", "", "many", "whole number"},
		{"liveness.kind.report.no_progress", "1h", "1h0m0s", "1ns", "must be at least 1ms, not 1ns"},
		{"liveness.kind.report.activity.testing.silent", "5m", "5m0s", "soon", "is not a duration"},
		{"liveness.activity.llm_thinking.silent", "2m", "2m0s", "0s", "must be positive"},
	}
	for _, limit := range []string{"calls", "polls", "live_runs", "bytes_per_hour"} {
		all = append(all, sample{"tenant_max_" + limit, "15", "", "0", "must be at least 1, not 0"})
	}
	for _, class := range []string{"task", "agent", "process"} {
		const why = "must be at least 1ms, not 0s"
		all = append(all, sample{"policy.timeouts." + class + ".default", "59m", "59m0s", "0s", why},
			sample{"policy.timeouts." + class + ".max", "800h", "800h0m0s", "0s", why})
	}
	durations := `lease cancel_grace cleanup_grace dispatched_retry dispatched_retry_max dispatched_timeout
		inbox_processing_timeout suspend_timeout pending_wakeup pending_wakeup_skip active_reap queued_alert
		silent no_progress stale_after dead_after worker_offline backoff_base backoff_max beat_every waiter_ttl
		detach_grace dead_letter_ttl idempotency_ttl retention audit_retention worker_retention
		webhook_retention key_retention kind_retention watchdog_interval gap_after
		gap_spare patrol_every hold_timeout hold_timeout_thread local_claim`
	fitting := map[string]string{"watchdog_interval": "400ms", "retention": "200h0m0s", "dead_after": "40m0s",
		"active_reap": "40m0s"} // these are bounded by other settings
	for _, name := range strings.Fields(durations) {
		least := "1ms"
		if name == "lease" {
			least = "100ms"
		}
		all = append(all, sample{"policy." + name, first(fitting[name], "7m0s"), "",
			"1µs", "must be at least " + least + ", not 1µs"})
	}
	for i := range all {
		all[i].shown = first(all[i].shown, all[i].good)
	}
	return all
}

// besides returns the settings that another one requires.
func besides(all []sample, name string) []string {
	pairs := [][2]string{{"tls_cert", "tls_key"}, {"tls_key", "tls_cert"}, {"signing_required", "signing_keys"},
		{"door_root", "doors"}}
	for _, pair := range pairs {
		for _, s := range all {
			if name == pair[0] && s.name == pair[1] {
				return flagOf(s.name, s.good)
			}
		}
	}
	return nil
}

// flagOf, variableOf and lineOf return a setting as a flag, a variable and a line of the file.
func flagOf(name, value string) []string {
	if section, rest, ok := strings.Cut(name, "."); ok && section != "doors" {
		return []string{"--" + section, rest + "=" + value}
	}
	return []string{"--" + strings.NewReplacer("_", "-", ".", "-").Replace(name) + "=" + value}
}

func variableOf(name, value string) (string, string) {
	if rest, ok := strings.CutPrefix(name, "liveness."); ok {
		return "PERDURE_LIVENESS", rest + "=" + value
	}
	return "PERDURE_" + strings.ToUpper(strings.ReplaceAll(name, ".", "_")), value
}

var bare = regexp.MustCompile(`^(true|false|-?[0-9.]+)$`)
var lists = regexp.MustCompile(`^(hosts|origins|doors|webhook_allow|secrets|seal_keys|signing_keys|signing_required)$`)

func lineOf(name, value string) string {
	switch {
	case name == "webhook_ports":
		value = "[" + value + "]"
	case lists.MatchString(name):
		value = `["` + strings.ReplaceAll(value, ",", `","`) + `"]`
	case !bare.MatchString(value):
		value = `"` + value + `"`
	}
	return name + " = " + value + "\n"
}

// effective returns the value of a setting in the output of config check.
func effective(t *testing.T, out, name string) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("config check --json: %v\n%s", err, out)
	}
	section, rest, _ := strings.Cut(name, ".")
	var at any = all[section]
	switch section {
	case "doors":
		at = all[name] // the list, or a setting of one of them
	case "policy":
		at = at.(map[string]any)[rest]
	case "liveness":
		for _, part := range strings.Split(rest, ".") {
			at = at.(map[string]any)[part]
		}
	}
	if list, ok := at.([]any); ok {
		var parts []string
		for _, x := range list {
			parts = append(parts, fmt.Sprint(x))
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(at)
}

func TestEverySettingFromFileEnvironmentAndFlag(t *testing.T) {
	all := settingSamples(t, t.TempDir())
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			check := []string{"config", "check", "--json"}
			more := besides(all, s.name)
			good, bad := writeFile(t, lineOf(s.name, s.good)), writeFile(t, lineOf(s.name, s.bad))
			given := map[string][]string{"file": {"--config", good}, "flag": flagOf(s.name, s.good)}
			refused := map[string][]string{"file": {"--config", bad}, "flag": flagOf(s.name, s.bad)}
			variable, value := variableOf(s.name, s.good)
			_, wrong := variableOf(s.name, s.bad)
			for _, way := range []string{"file", "environment", "flag"} {
				t.Setenv(variable, "")
				if way == "environment" {
					t.Setenv(variable, value)
				}
				code, out, errs := call(append(append(check, more...), given[way]...)...)
				if code != 0 {
					t.Errorf("%s by %s: %s", s.name, way, errs)
					continue
				}
				if got := effective(t, out, s.name); got != s.shown {
					t.Errorf("%s by %s: config check shows %q, want %q", s.name, way, got, s.shown)
				}
				_, text, _ := call(append(append([]string{"config", "check"}, more...), given[way]...)...)
				last := s.name[strings.LastIndexByte(s.name, '.')+1:]
				if !strings.Contains(text, last) || !strings.Contains(text, s.shown) {
					t.Errorf("%s by %s: config check does not show it as %s:\n%s", s.name, way, s.shown, text)
				}
				if s.bad == "" {
					continue
				}
				if way == "environment" {
					t.Setenv(variable, wrong)
				}
				code, _, errs = call(append(append(check, more...), refused[way]...)...)
				named := strings.Contains(errs, s.name) || s.why == "no such file" // an error that names the file
				if code != 1 || !named || !strings.Contains(errs, s.why) {
					t.Errorf("%s = %s by %s: exit code %d, want 1, the name and %q: %s", s.name, s.bad, way, code,
						s.why, errs)
				}
			}
			if !strings.HasPrefix(s.name, "liveness.") && !strings.Contains(string(page), "\n| `"+s.name+"` | ") {
				t.Errorf("docs/configuration.md has no row %s", s.name)
			}
		})
	}
}

// In a file the doors are a list, or sections, of which each turns a door on.
func TestDoorsAreListOrSections(t *testing.T) {
	for text, want := range map[string]string{
		"doors = [\"openai\"]": "openai",
		"[doors.langgraph]\non_disconnect = \"as-asked\"\n[doors.openai]": "langgraph,openai",
		"[doors.openai]\non_disconnect = \"as-asked\"":                    "doors.openai.on_disconnect: there is",
		"[doors.nobody]":         "is none of",
		"[doors]\nlanggraph = 3": "doors.langgraph is a section",
		"[doors]\nopenai = 3":    "doors.openai: there is no such",
	} {
		code, out, errs := call("config", "check", "--json", "--config", writeFile(t, text))
		if code == 0 {
			errs = effective(t, out, "doors")
		}
		if !strings.Contains(errs, want) {
			t.Errorf("config check of %q = %d %s, want %s", text, code, errs, want)
		}
	}
}

// Each row of the page is a setting that has a sample.
func TestEveryDocumentedSettingIsTried(t *testing.T) {
	tried := map[string]bool{}
	for _, s := range settingSamples(t, t.TempDir()) {
		tried[s.name] = true
	}
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(string(text), -1)
	if len(rows) < 60 {
		t.Errorf("docs/configuration.md has %d rows, want one for each setting", len(rows))
	}
	for _, row := range rows {
		if !tried[row[1]] {
			t.Errorf("docs/configuration.md has a row %s, and no sample of it is tried", row[1])
		}
	}
}

// The configuration files in the documentation contain only known settings.
func TestDocumentedFilesNameSettings(t *testing.T) {
	tried := map[string]bool{}
	for _, s := range settingSamples(t, t.TempDir()) {
		tried[s.name] = true
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			var tree map[string]any
			meta, err := toml.Decode(block[1], &tree)
			if err != nil {
				t.Errorf("%s: a configuration file is not TOML: %v", page, err)
			}
			for _, key := range meta.Keys() {
				name := strings.Join(key, ".")
				if meta.Type(key...) == "Hash" || key[0] == "liveness" {
					continue
				}
				if found++; !tried[name] {
					t.Errorf("%s shows %s, which is no setting", page, name)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page of the documentation has a configuration file, want some")
	}
}
