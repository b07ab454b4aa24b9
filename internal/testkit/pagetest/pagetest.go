// Package pagetest executes the commands of a documentation page, so that a page can't promise what
// does not happen.
//
// A block of commands is fenced as sh. Those of a page run in one shell and in order. A block that is
// fenced as text, after it, has lines that its output must contain, in order. "…" stands for the rest
// of a line, or for several lines.
package pagetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A Block is a block of commands, with the output that the page shows.
type Block struct{ Typed, Shown string }

var fenced = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// Blocks reads the blocks of a page.
func Blocks(t *testing.T, page string, least int) (out []Block) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "sh" {
			out = append(out, Block{Typed: m[2]})
		} else {
			out[len(out)-1].Shown = m[2]
		}
	}
	if len(out) < least {
		t.Fatalf("the page has %d blocks of commands, want at least %d", len(out), least)
	}
	return out
}

// defaultAddress is the address of a server in pages. A test has another one.
const defaultAddress = "127.0.0.1:7373"

// Run executes blocks in a folder, with an address of its own for the server and with more variables. It
// compares their output with what the page shows. Of a block that does not end it shows the logs.
func Run(t *testing.T, blocks []Block, dir string, env ...string) {
	t.Helper()
	var script strings.Builder
	script.WriteString("trap 'kill -9 $SERVER $WORKER 2>/dev/null' EXIT; trap 'exit 1' TERM\n") // of this shell's own
	for i, b := range blocks {
		fmt.Fprintf(&script, "%s\necho '==== %d'\n", b.Typed, i)
	}
	address := freeAddress(t)
	cmd := exec.CommandContext(t.Context(), "timeout", "150", "sh", "-c",
		strings.ReplaceAll(script.String(), defaultAddress, address))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PERDURE_LISTEN="+address, "TMPDIR="+dir, "PERDURE_DATA=", "PERDURE_CONFIG=")
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("commands of the page: %v\n%s", err, out)
	}
	rest := string(out)
	for i, b := range blocks {
		output, after, ok := strings.Cut(rest, fmt.Sprintf("==== %d\n", i))
		if !ok {
			for _, log := range []string{"server.log", "worker.log"} {
				text, _ := os.ReadFile(filepath.Join(dir, log))
				t.Logf("%s:\n%s", log, text)
			}
			t.Fatalf("commands\n%s\ndid not end; their output is\n%s", b.Typed, rest)
		}
		rest = after
		if missing := notIn(b.Shown, output); missing != "" {
			t.Errorf("commands\n%s\nwant the line\n%s\nin the output\n%s", b.Typed, missing, output)
		}
	}
}

// notIn returns the first shown line that the output lacks after the ones before it.
func notIn(shown, output string) string {
	lines := strings.Split(output, "\n")
	for want := range strings.Lines(shown) {
		want = strings.TrimRight(want, "\n")
		start, cut := strings.CutSuffix(want, "…")
		if start == "" {
			continue
		}
		start = scrub(start)
		for {
			if len(lines) == 0 {
				return want
			}
			line := scrub(lines[0])
			lines = lines[1:]
			if line == start || cut && strings.HasPrefix(line, start) {
				break
			}
		}
	}
	return ""
}

var differs = regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|apv_[a-z0-9]+|` +
	`\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z)?|\d\d:\d\d:\d\d\.\d{3}|\b(\d+m)?[0-9.]+m?s\b|` +
	`"(duration|delay)_ms":\d+|\b[\w.-]+-[a-z2-7]{8}\b|\d\d:\d\d:\d\d|/\S*/report-| +`)

// scrub removes from a line what differs each time: ids, instants, durations, the worker's name,
// and spaces for alignment.
func scrub(line string) string { return differs.ReplaceAllString(strings.TrimRight(line, " "), "~") }

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
