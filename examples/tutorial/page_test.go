package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/pagetest"
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

// The test executes all commands of the page.
func TestTutorialPageIsTrue(t *testing.T) {
	blocks := pagetest.Blocks(t, page, 5)
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
	pagetest.Run(t, blocks, dir, "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"))
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
	typed := strings.TrimPrefix(strings.ReplaceAll(pagetest.Blocks(t, page, 5)[0].Typed, "127.0.0.1:7373", address),
		"make build\n")
	cmd := exec.CommandContext(t.Context(), "timeout", "30", "sh", "-c", typed)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PERDURE_LISTEN="+address, "PERDURE_DATA=", "PERDURE_CONFIG=")
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == 124 || !bytes.Contains(out, []byte("address already in use")) {
		t.Errorf("first commands with a port in use: %v, output %q, want that the address is in use", err, out)
	}
}

func build(t *testing.T, to, from string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", to, from).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", from, err, out)
	}
}
