package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/pagetest"
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
	bin(t, dir)
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
	bin(t, dir)
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

// programs has the folder with the programs of the page, which are built once for all tests.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "perdure-tutorial-")
	if err != nil {
		return "", err
	}
	built = dir
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "../../cmd/perdure", ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, err
})

// built is the folder of programs. It is removed after all tests.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// bin puts the programs of the page where it expects them.
func bin(t *testing.T, dir string) {
	t.Helper()
	from, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(from, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
}
