package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
)

// The protocol of systemd's sd_notify: datagrams of lines NAME=value to the socket that NOTIFY_SOCKET names.
//
// A node says READY=1 when /readyz is 200 for the first time. Until then it asks for more time, because a node that
// waits for PostgreSQL is not stuck, and gives up by itself (start_wait). After that it says STATUS whenever /readyz
// changes. It is not taken out of service by systemd: what is not ready becomes ready by itself.
//
// WATCHDOG=1 says that the process runs and answers a call. It says nothing about the store, since a restart does not
// bring a store back.

const (
	// notifyEvery is the interval in which readiness is looked at.
	notifyEvery = time.Second
	// notifyExtends is how much more time a start asks for, in each interval.
	notifyExtends = 30 * time.Second
)

// A serviceManager is told how a node is. One without a socket is told nothing.
type serviceManager struct {
	socket net.Conn // nil: nobody listens
	log    *slog.Logger
	beat   time.Duration // between two signs of life; 0: none are wanted
}

// newServiceManager connects to the socket that the environment names. It takes the variables out of the environment,
// so that no child process speaks for this one.
func newServiceManager(log *slog.Logger) *serviceManager {
	m := &serviceManager{log: log}
	path, usec := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC")
	pid := os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(name)
	}
	if path == "" {
		return m
	}
	// A name that begins with @ is in the abstract namespace, for systemd as for package net.
	socket, err := net.Dial("unixgram", path)
	if err != nil {
		log.Warn("the service manager can't be told anything", "socket", path, "error", err)
		return m
	}
	m.socket = socket
	mine := pid == "" || pid == strconv.Itoa(os.Getpid())
	if n, err := strconv.ParseInt(usec, 10, 64); err == nil && n > 0 && mine {
		m.beat = time.Duration(n) * time.Microsecond / 3
	}
	return m
}

// tell sends lines. A message that can't be sent is lost: nothing depends on it here.
func (m *serviceManager) tell(lines ...string) {
	if m.socket == nil {
		return
	}
	if _, err := m.socket.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		m.log.Debug("the service manager was not told", "lines", lines, "error", err)
	}
}

// status is the line that people see. A value has no line breaks.
func status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
}

// opening asks for more time while the node is being opened, and says what that waits for. It returns a function that
// ends it.
func (m *serviceManager) opening(ctx context.Context, reason func() string) (opened func()) {
	if m.socket == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every(ctx, notifyEvery, func() { m.starting(reason()) })
	}()
	return func() {
		cancel()
		<-ended
	}
}

// starting asks for more time.
func (m *serviceManager) starting(text string) {
	m.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", notifyExtends.Microseconds()), status(text))
}

// watch looks at a node's readiness until the context ends, and tells of changes. It gives signs of life, if they are
// wanted.
func (m *serviceManager) watch(ctx context.Context, srv *embedded.Server) {
	if m.socket == nil {
		return
	}
	c := client.New("http://perdure", "", client.Options{Transport: srv.Transport()})
	said, begun := "", false
	go every(ctx, notifyEvery, func() {
		health, ready, err := c.Ready(ctx)
		now := ""
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			now = "not ready: " + err.Error()
		case health.Detail != "":
			now = health.Status + ": " + health.Detail
		default:
			now = health.Status
		}
		switch {
		case ready && !begun:
			begun = true
			m.tell("READY=1", status(now))
		case !begun:
			m.starting(now)
		case now != said:
			m.tell(status(now))
		}
		said = now
	})
	if m.beat > 0 {
		go every(ctx, m.beat, func() {
			call, cancel := context.WithTimeout(ctx, m.beat)
			defer cancel()
			if _, err := c.Health(call); err == nil {
				m.tell("WATCHDOG=1")
			}
		})
	}
}

// every calls a function at once and then in an interval, until the context ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// stopping says that the node ends.
func (m *serviceManager) stopping() { m.tell("STOPPING=1", status("stopping")) }

func (m *serviceManager) close() {
	if m.socket != nil {
		m.socket.Close()
	}
}
