package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/process/adaptor"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// asAgent lets the test's program be the agent.
const asAgent = "PERDURE_TEST_SCRIPTED"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		main()
	}
	os.Exit(m.Run())
}

// agent returns the command of an agent with a script.
func agent(script string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asAgent+"=1", "SCRIPTED_AGENT="+script)
	return cmd
}

func writeScript(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// facts describes what the adaptor of claude-code understands of an output.
func facts(t *testing.T, output []byte) string {
	t.Helper()
	a, err := adaptor.Load("claude-code", "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range bytes.Lines(output) {
		for _, f := range a.Parse(line) {
			switch f := f.(type) {
			case adaptor.Text:
				b.WriteString(f.Delta)
			case adaptor.Status:
			default:
				fmt.Fprintf(&b, "%T%+v\n", f, f)
			}
		}
	}
	return b.String()
}

func TestAgentFollowsItsScript(t *testing.T) {
	script := writeScript(t, `{"session": "s-1", "cost_usd": 0.5, "input_tokens": 10, "output_tokens": 20, "turns": [
		[{"think": "hm"}, {"text": "You said {prompt}."}, {"tool": {"name": "Bash", "output": "no", "failed": true}},
		 {"raw": "plain\n"}, {"stderr": "careful\n"}, {"fill": 250}, {"raw": "\n"}, {"text": "Done."}],
		[{"text": "Turn {turn}, after {before}."}]]}`)
	const want = "adaptor.Sessions-1\nYou said hello.\n" +
		"adaptor.ToolStarted{ID:toolu_2 Name:Bash Input:[123 125]}\n" +
		"adaptor.ToolEnded{ID:toolu_2 Name:Bash Output:[34 110 111 34] Failed:true Error:no}\nDone.\n" +
		"adaptor.Sessions-1\nadaptor.Usage{InputTokens:10 OutputTokens:20 CostUSD:0.5 OfSession:false}\n" +
		"adaptor.End{Text:Done. Failed:false Error:}\n"
	for _, more := range []string{"", "--include-partial-messages"} {
		args := append([]string{"-p", "hello", "--output-format", "stream-json", "--verbose"}, strings.Fields(more)...)
		cmd := agent(script, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.String() != "careful\n" {
			t.Fatalf("the agent ended with %v, stderr %q, want 0 and its line", err, &stderr)
		}
		if got := facts(t, out); got != want {
			t.Errorf("with %q the output says\n%swant\n%s", more, got, want)
		}
	}
	for n, want := range []string{"Turn 2, after hello.", "Turn 3, after hello, again."} {
		out, err := agent(script, "-p", "again", "--resume", "s-1").Output()
		if got := facts(t, out); err != nil || !strings.Contains(got, want) {
			t.Errorf("continuation %d says %s (error %v), want %q", n+1, got, err, want)
		}
	}
	cmd := agent(script, "-p", "again", "--resume", "other")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no conversation found") {
		t.Errorf("continuation of a session that is not there: %s, error %v", out, err)
	}
}

func TestAgentEndsBadly(t *testing.T) {
	for name, c := range map[string]struct {
		steps, want string
		code        int
		killed      bool
	}{
		"failure": {`{"fail": "out of tokens"}`, "Failed:true Error:out of tokens", 1, false},
		"exit":    {`{"exit": 7}`, "", 7, false},
		"crash":   {`{"crash": true}`, "", -1, true},
	} {
		out, err := agent(writeScript(t, `{"turns": [[`+c.steps+`]]}`), "-p", "x").Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s: error %v, want an exit code", name, err)
		}
		status := exit.Sys().(syscall.WaitStatus)
		if exit.ExitCode() != c.code || status.Signaled() != c.killed {
			t.Errorf("%s: exit code %d, killed %v, want %d, %v", name, exit.ExitCode(), status.Signaled(), c.code,
				c.killed)
		}
		if got := facts(t, out); !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "End") {
			t.Errorf("%s: the output says %s, want %q", name, got, c.want)
		}
	}
}

func TestAgentIgnoresTerm(t *testing.T) {
	dir := t.TempDir()
	ready, goOn := filepath.Join(dir, "ready"), filepath.Join(dir, "go")
	cmd := agent(writeScript(t, fmt.Sprintf(`{"ignore_term": true, "turns": [[{"touch": %q}, {"await": %q}, `+
		`{"text": "Still here."}]]}`,
		ready, goOn)), "-p", "x")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the agent has begun", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(facts(t, out.Bytes()), "Still here.") {
		t.Errorf("the agent ended with %v and said %s, want it to go on", err, &out)
	}
}
