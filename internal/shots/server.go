package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A stage is a server of the pictures' own, with a command that it looks after and an endpoint that it tells.
type stage struct {
	dir, program, listen string
	server               *exec.Cmd
	hook                 *httptest.Server
}

// build compiles the program and starts its server. The server was killed once, so that there is a recovery to
// show: the commands have outlived it.
func build(ctx context.Context, f *filler) (s *stage, err error) {
	s = &stage{}
	if s.dir, err = os.MkdirTemp("", "perdure-shots-"); err != nil {
		return nil, err
	}
	s.program = filepath.Join(s.dir, "perdure")
	compile := exec.CommandContext(ctx, "go", "build", "-o", s.program, "./cmd/perdure")
	if out, err := compile.CombinedOutput(); err != nil {
		return s, fmt.Errorf("build: %w: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return s, err
	}
	s.listen = l.Addr().String()
	l.Close()
	s.hook = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	f.url, f.hook = "http://"+s.listen, s.hook.URL+"/perdure"
	if err := s.start(ctx, f); err != nil {
		return s, err
	}
	for name, script := range map[string]string{
		"nightly-export": "for i in $(seq 1 900); do echo exported table $i; sleep 1; done",
		"reindex":        "for i in $(seq 1 900); do printf 'shard %d of 900\\r' $i; sleep 2; done",
	} {
		c := exec.CommandContext(ctx, s.program, "exec", "-d", "--name", name, "--", "sh", "-c", script)
		c.Env = append(os.Environ(), "PERDURE_URL="+f.url, "PERDURE_KEY="+f.key,
			"PERDURE_WORKSPACE="+filepath.Join(s.dir, "data", "workspace"))
		if out, err := c.CombinedOutput(); err != nil {
			return s, fmt.Errorf("exec: %w: %s", err, out)
		}
	}
	time.Sleep(2 * time.Second) // until both have begun
	s.kill()
	return s, s.start(ctx, f)
}

// start starts the server and waits until it answers.
func (s *stage) start(ctx context.Context, f *filler) error {
	data := filepath.Join(s.dir, "data")
	s.server = exec.Command(s.program, "dev", "--data", data, "--listen", s.listen, "--webhook-allow", "127.0.0.0/8")
	s.server.Dir = s.dir
	if err := s.server.Start(); err != nil {
		return err
	}
	for range 200 {
		key, err := os.ReadFile(filepath.Join(data, "admin.key"))
		if err == nil {
			f.key = strings.TrimSpace(string(key))
			if err = f.call(ctx, "GET", "/readyz", nil, nil); err == nil {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the server does not answer")
}

// kill is kill -9 of the server.
func (s *stage) kill() {
	if s.server != nil && s.server.Process != nil {
		_ = s.server.Process.Kill()
		_ = s.server.Wait() // it was killed
	}
}

// end ends everything, the commands too.
func (s *stage) end(f *filler) {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	var list struct {
		Runs []run `json:"runs"`
	}
	if f.call(ctx, "GET", "/api/v1/runs?kind=exec&status=running", nil, &list) == nil {
		for _, r := range list.Runs {
			_ = f.call(ctx, "POST", "/api/v1/runs/"+r.RunID+"/cancel", obj{"reason": "the pictures are taken"}, nil)
		}
		time.Sleep(2 * time.Second)
	}
	if s.server != nil && s.server.Process != nil {
		_ = s.server.Process.Signal(syscall.SIGTERM)
		_ = s.server.Wait()
	}
	if s.hook != nil {
		s.hook.Close()
	}
	_ = os.RemoveAll(s.dir)
}
