package main

import (
	"regexp"
	"strings"
	"testing"
)

// allCommands returns all commands and subcommands, as the help lists them.
func allCommands(t *testing.T) (all [][]string) {
	t.Helper()
	for _, name := range commandNames() {
		all = append(all, []string{name})
	}
	for _, of := range [][]string{{"dlq"}, {"webhooks"}, {"keys"}, {"keys", "signing"}} {
		_, _, help := call(append(of, "-h")...)
		words := regexp.MustCompile(`(?m)^  perdure `+strings.Join(of, " ")+` ([a-z]+)`).FindAllStringSubmatch(help, -1)
		if len(words) < 4 {
			t.Fatalf("the help of perdure %s lists only %v, want more subcommands", strings.Join(of, " "), words)
		}
		for _, w := range words {
			all = append(all, append(of[:len(of):len(of)], w[1]))
		}
	}
	return all
}

// A wrong call of any command prints an explanation and needs no server.
func TestEveryCommandExplainsItself(t *testing.T) {
	t.Setenv("PERDURE_URL", "http://127.0.0.1:1")
	t.Setenv("PERDURE_KEY", "prd_none")
	for _, args := range allCommands(t) {
		name := strings.Join(args, " ")
		t.Run(name, func(t *testing.T) {
			last := len(args) - 1
			for _, help := range [][]string{append(args[:len(args):len(args)], "-h"),
				append(args[:len(args):len(args)], "--help"), append([]string{"help"}, args...)} {
				code, stdout, stderr := call(help...)
				if code != exitOK || stdout != "" || !strings.Contains(stderr, "\n  perdure "+name) {
					t.Errorf("perdure %s: exit code %d, no example of it:\n%s%s", strings.Join(help, " "), code, stdout,
						stderr)
				}
			}
			code, stdout, stderr := call(append(args[:len(args):len(args)], "--no-such-flag")...)
			if code != exitUsage || stdout != "" || strings.Contains(stderr, "Flags:") ||
				!strings.Contains(stderr, "there is no flag no-such-flag") && !strings.Contains(stderr, "Usage:") {
				t.Errorf("unknown flag: exit code = %d, want 2 with the flag, without a list of all\n%s%s",
					code, stdout, stderr)
			}
			word := args[last]
			for _, typo := range []string{word + word[len(word)-1:], word[1:2] + word[:1] + word[2:]} {
				code, stdout, stderr = call(append(args[:last:last], typo)...)
				if code != exitUsage || stdout != "" || !strings.Contains(stderr, "did you mean "+word+"?") {
					t.Errorf("typing error %s: exit code = %d, want 2 with a suggestion\n%s%s", typo, code, stdout,
						stderr)
				}
			}
		})
	}
}

func TestSuggestion(t *testing.T) {
	for typed, want := range map[string]string{"dmeo": "demo", "demos": "demo", "wathcdog": "watchdog",
		"jbs": "jobs", "foo": "", "x": "", "": "", "frobnicate": "", strings.Repeat("demo", 1000): ""} {
		if got := suggestion(typed, commandNames()); got != "" && want == "" || !strings.Contains(got, want) {
			t.Errorf("suggestion for %.20q = %q, want %q", typed, got, want)
		}
	}
}
