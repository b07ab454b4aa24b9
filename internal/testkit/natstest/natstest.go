// Package natstest gives tests a real nats-server in a process of its own, which can be killed and started
// again on its port and dies with the test. The process is the test binary itself, which becomes a server
// before any test of it runs. It is for tests alone.
package natstest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// env holds the options of the process that is to be a server.
const env = "PERDURE_NATSTEST"

// Options of a server. The zero value lets everybody in.
type Options struct {
	User     string
	Password string
	Port     int // 0: a free one, which stays the same when the server is started again
}

// A Server is a nats-server, or was one until it was killed.
type Server struct {
	t     testing.TB
	opt   Options
	cmd   *exec.Cmd
	stdin io.Closer // the server ends when this does
}

// Start runs a server until the test ends.
func Start(t testing.TB, opt Options) *Server {
	t.Helper()
	s := &Server{t: t, opt: opt}
	if s.opt.Port == 0 {
		var err error
		if s.opt.Port, err = freePort(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// freePort finds a port that nobody listens on. It lies below those that outgoing connections get: one of these could
// take the port while the server is down, or even be connected to itself.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + rand.IntN(15000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// URL is where clients connect to, with the name and the password if there are any.
func (s *Server) URL() string {
	u := url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", s.opt.Port)}
	if s.opt.User != "" {
		u.User = url.UserPassword(s.opt.User, s.opt.Password)
	}
	return u.String()
}

// Port is the port of the server.
func (s *Server) Port() int { return s.opt.Port }

// Kill kills the server with -9, if it runs.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = s.stdin.Close()
	s.cmd = nil
}

// Freeze stops the server without ending it: connections stay, and nothing is answered. Thaw lets it go on.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Restart kills the server, if it runs, and starts it on the same port.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	text, err := json.Marshal(s.opt)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.stdin = cmd, in
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &s.opt.Port)
	}
	if err != nil {
		s.t.Fatalf("the nats-server does not come up: %v (%s)", err, strings.TrimSpace(line))
	}
}

func init() {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	if err := run(text); err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the server: it says its port and ends when whoever started it is gone.
func run(text string) error {
	var opt Options
	if err := json.Unmarshal([]byte(text), &opt); err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: opt.Port, Username: opt.User,
		Password: opt.Password, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return fmt.Errorf("not ready on port %d", opt.Port)
	}
	_, port, ok := strings.Cut(s.Addr().String(), ":")
	if !ok {
		return fmt.Errorf("no port in %s", s.Addr())
	}
	fmt.Println(port)
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return err
}
