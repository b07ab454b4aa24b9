package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A manager is the end of the socket that systemd has.
type manager struct {
	t      *testing.T
	socket *net.UnixConn
}

// newManager listens on a name, and puts it into the environment.
func newManager(t *testing.T, name string) *manager {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	return &manager{t, socket}
}

// next reads a message.
func (m *manager) next() []string {
	m.t.Helper()
	b := make([]byte, 4096)
	m.socket.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := m.socket.Read(b)
	if err != nil {
		m.t.Fatalf("no message: %v", err)
	}
	return strings.Split(string(b[:n]), "\n")
}

// until reads messages up to one with a line, and returns the lines of all.
func (m *manager) until(line string) (lines []string) {
	m.t.Helper()
	for {
		lines = append(lines, m.next()...)
		if slices.Contains(lines, line) {
			return lines
		}
		if len(lines) > 10_000 {
			m.t.Fatalf("no %s in %q …", line, lines[:20])
		}
	}
}

// serving serves until the returned function is called.
func serving(t *testing.T, cfg *settings.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serveWith(ctx, cfg, io.Discard, io.Discard, func(string, *embedded.Server) {}) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestServiceManagerIsTold(t *testing.T) {
	for name, socket := range map[string]string{
		"a file":   filepath.Join(t.TempDir(), "notify"),
		"abstract": "@perdure-test-" + strconv.Itoa(os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t, socket)
			cfg := settings.Default()
			cfg.Listen, cfg.Dir = "127.0.0.1:0", filepath.Join(t.TempDir(), "data")
			stop := serving(t, cfg)
			m.until("READY=1")
			m.until("WATCHDOG=1")
			m.until("WATCHDOG=1")
			if left := os.Getenv("NOTIFY_SOCKET") + os.Getenv("WATCHDOG_USEC"); left != "" {
				t.Errorf("the environment still has %q: a child would speak for the server", left)
			}
			go stop()
			m.until("STOPPING=1")
		})
	}
}

// A node that waits for PostgreSQL asks for more time, says what for, and is ready when it is there.
func TestServiceManagerWaitsForPostgreSQL(t *testing.T) {
	c, err := pgtest.Start(pgtest.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Halt(pgtest.Fast))
	m := newManager(t, filepath.Join(t.TempDir(), "notify"))
	cfg := settings.Default()
	cfg.Listen, cfg.Dir, cfg.Store = "127.0.0.1:0", filepath.Join(t.TempDir(), "data"), c.URL("postgres")
	stop := serving(t, cfg)
	defer stop()
	waits := func(l string) bool { return strings.HasPrefix(l, "STATUS=waiting for PostgreSQL at ") }
	for lines := m.next(); !slices.ContainsFunc(lines, waits); lines = m.next() {
		if slices.Contains(lines, "READY=1") {
			t.Fatalf("lines = %q while PostgreSQL is away, want no READY=1", lines)
		}
		if !slices.Contains(lines, "EXTEND_TIMEOUT_USEC=30000000") {
			t.Errorf("lines = %q, want more time to be asked for", lines)
		}
	}
	must(c.Launch())
	m.until("READY=1")
	must(c.Halt(pgtest.Immediate))
	for lines := m.next(); !slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "STATUS=not ready")
	}); lines = m.next() {
	}
	m.until("WATCHDOG=1") // a restart of the node would bring no store back
	must(c.Launch())
	m.until("STATUS=ready")
}
