package main

import (
	"bytes"
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

const page = "../../docs/tutorial.md"

func TestAgentOfTutorialIsShort(t *testing.T) {
	text, err := os.ReadFile("report.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n >= 60 {
		t.Errorf("report.go has %d lines; the tutorial promises fewer than 60", n)
	}
}

// The test executes all commands of the page, in one shell and in order. Their output has to
// contain the lines that the page shows, in order. "…" stands for the rest of a line, or for
// several lines.
func TestTutorialPageIsTrue(t *testing.T) {
	blocks := shellBlocks(t)
	dir := t.TempDir()
	build(t, filepath.Join(dir, "bin", "perdure"), "../../cmd/perdure")
	build(t, filepath.Join(dir, "bin", "tutorial"), ".")
	for _, built := range []string{"make", "go"} { // they are replaced, because everything is built already
		path := filepath.Join(dir, "path", built)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	script.WriteString("trap 'kill -9 $SERVER $WORKER 2>/dev/null' EXIT; trap 'exit 1' TERM\n") // of this shell's own
	for i, b := range blocks {
		fmt.Fprintf(&script, "%s\necho '==== %d'\n", b.typed, i)
	}
	address := freeAddress(t)
	cmd := exec.CommandContext(t.Context(), "timeout", "150", "sh", "-c",
		strings.ReplaceAll(script.String(), "127.0.0.1:7373", address))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"),
		"PERDURE_LISTEN="+address, "TMPDIR="+dir, "PERDURE_DATA=", "PERDURE_CONFIG=")
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
			t.Fatalf("commands\n%s\ndid not end; their output is\n%s", b.typed, rest)
		}
		rest = after
		if missing := notIn(b.shown, output); missing != "" {
			t.Errorf("commands\n%s\nwant the line\n%s\nin the output\n%s", b.typed, missing, output)
		}
	}
}

// If the port is in use, the first commands of the page say so, and don't wait for the server.
func TestTakenPortEndsTheFirstCommands(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir, address := t.TempDir(), taken.Addr().String()
	build(t, filepath.Join(dir, "bin", "perdure"), "../../cmd/perdure")
	typed := strings.TrimPrefix(strings.ReplaceAll(shellBlocks(t)[0].typed, "127.0.0.1:7373", address), "make build\n")
	cmd := exec.CommandContext(t.Context(), "timeout", "30", "sh", "-c", typed)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PERDURE_LISTEN="+address, "PERDURE_DATA=", "PERDURE_CONFIG=")
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == 124 || !bytes.Contains(out, []byte("address already in use")) {
		t.Errorf("first commands with a port in use: %v, output %q, want that the address is in use", err, out)
	}
}

// A shellBlock is a block of commands of the page, with the output that it shows.
type shellBlock struct{ typed, shown string }

func shellBlocks(t *testing.T) []shellBlock {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var out []shellBlock
	for _, m := range regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if m[1] == "sh" {
			out = append(out, shellBlock{typed: m[2]})
		} else {
			out[len(out)-1].shown = m[2]
		}
	}
	if len(out) < 5 {
		t.Fatalf("the page has %d blocks of commands, want at least 5", len(out))
	}
	return out
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

var differs = regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|apv_[a-z0-9]+|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z)?|\d\d:\d\d:\d\d\.\d{3}|\b(\d+m)?[0-9.]+m?s\b|"(duration|delay)_ms":\d+|\b[\w.-]+-[a-z2-7]{8}\b|\d\d:\d\d:\d\d|/\S*/report-| +`)

// scrub removes from a line what differs each time: ids, instants, durations, the worker's name,
// and spaces for alignment.
func scrub(line string) string { return differs.ReplaceAllString(strings.TrimRight(line, " "), "~") }

func build(t *testing.T, to, from string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", to, from).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", from, err, out)
	}
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
