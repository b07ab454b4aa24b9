package main

import (
	"regexp"
	"strings"
	"testing"
)

// sayable are all commands, and the words of those that have some, as their own help lists them.
func sayable(t *testing.T) (all [][]string) {
	t.Helper()
	for _, name := range commandNames() {
		all = append(all, []string{name})
	}
	for _, of := range [][]string{{"dlq"}, {"webhooks"}, {"keys"}, {"keys", "signing"}} {
		_, _, help := call(append(of, "-h")...)
		words := regexp.MustCompile(`(?m)^  perdure `+strings.Join(of, " ")+` ([a-z]+)`).FindAllStringSubmatch(help, -1)
		if len(words) < 4 {
			t.Fatalf("perdure %s has only the words %v", strings.Join(of, " "), words)
		}
		for _, w := range words {
			all = append(all, append(of[:len(of):len(of)], w[1]))
		}
	}
	return all
}

// Whatever is asked for wrongly is explained, and changes nothing: no server is there, and none is asked.
func TestEveryCommandExplainsItself(t *testing.T) {
	t.Setenv("PERDURE_URL", "http://127.0.0.1:1")
	t.Setenv("PERDURE_KEY", "prd_none")
	for _, args := range sayable(t) {
		name := strings.Join(args, " ")
		t.Run(name, func(t *testing.T) {
			last := len(args) - 1
			for _, help := range [][]string{append(args[:len(args):len(args)], "-h"), append(args[:len(args):len(args)], "--help"), append([]string{"help"}, args...)} {
				code, stdout, stderr := call(help...)
				if code != exitOK || stdout != "" || !strings.Contains(stderr, "\n  perdure "+name) {
					t.Errorf("perdure %s: exit code %d, no example of it:\n%s%s", strings.Join(help, " "), code, stdout, stderr)
				}
			}
			code, stdout, stderr := call(append(args[:len(args):len(args)], "--no-such-flag")...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, "sage") {
				t.Errorf("an unknown flag: exit code %d\n%s%s", code, stdout, stderr)
			}
			word := args[last]
			for _, typo := range []string{word + word[len(word)-1:], word[1:2] + word[:1] + word[2:]} {
				code, stdout, stderr = call(append(args[:last:last], typo)...)
				if code != exitUsage || stdout != "" || !strings.Contains(stderr, "did you mean "+word+"?") {
					t.Errorf("%s: exit code %d\n%s%s", typo, code, stdout, stderr)
				}
			}
		})
	}
}

func TestWhatIsNearNothingIsNotGuessed(t *testing.T) {
	for typed, want := range map[string]string{"dmeo": "demo", "demos": "demo", "wathcdog": "watchdog", "jbs": "jobs", "foo": "", "x": "", "": "", "frobnicate": "", strings.Repeat("demo", 1000): ""} {
		if got := meant(typed, commandNames()); got != "" && want == "" || !strings.Contains(got, want) {
			t.Errorf("%.20q: %q, not %q", typed, got, want)
		}
	}
}
