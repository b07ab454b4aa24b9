package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A runtime is a Restate server with the service.
type runtime struct {
	ingress string
	http    *http.Client
	stop    func() error
}

// openRestate starts a server with its defaults on new data, and the service of restate/service.mjs
// as a process of its own, with Restate's TypeScript SDK. dir is the folder of both.
func openRestate(ctx context.Context, dir string) (_ *runtime, err error) {
	found, _ := filepath.Glob(filepath.Join(dir, "node_modules/@restatedev/restate-server-*/bin/restate-server"))
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no Restate in %s: run npm install there", dir)
	}
	data, err := os.MkdirTemp("", "perdure-bench-restate-")
	if err != nil {
		return nil, err
	}
	var ports [4]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	var output bytes.Buffer
	service := exec.Command("node", "service.mjs", ports[3])
	service.Dir = dir
	service.Env = append(os.Environ(), "NODE_ENV=production", "RESTATE_LOGGING=ERROR")
	cmd := exec.Command(found[0], "--no-logo", "--base-dir", data, "--listen-mode", "tcp",
		"--bind-address", "127.0.0.1:"+ports[0])
	cmd.Env = append(os.Environ(), "RESTATE_INGRESS__BIND_ADDRESS=127.0.0.1:"+ports[1],
		"RESTATE_ADMIN__BIND_ADDRESS=127.0.0.1:"+ports[2], "RESTATE_LOG_FILTER=error", "RESTATE_DISABLE_TELEMETRY=true")
	for _, c := range []*exec.Cmd{service, cmd} {
		c.Stdout, c.Stderr = &output, &output
		if err := c.Start(); err != nil {
			return nil, errors.Join(err, os.RemoveAll(data))
		}
	}
	r := &runtime{ingress: "http://127.0.0.1:" + ports[1],
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * callers}}}
	r.stop = func() error {
		for _, c := range []*exec.Cmd{cmd, service} {
			c.Process.Kill()
			c.Wait()
		}
		return os.RemoveAll(data)
	}
	register := fmt.Sprintf(`{"uri":"http://127.0.0.1:%s","use_http_11":false}`, ports[3])
	deadline := time.Now().Add(time.Minute)
	for {
		trying, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := r.post(trying, "http://127.0.0.1:"+ports[2]+"/deployments", register)
		if err == nil {
			_, err = r.call(trying, "Jobs", 1)
		}
		cancel()
		if err == nil {
			return r, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("Restate does not start: %w: %s", err, output.String()), r.stop())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (r *runtime) post(ctx context.Context, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return string(text), err
}

// call invokes a handler over Restate's ingress and waits for its result.
func (r *runtime) call(ctx context.Context, handler string, n int) (string, error) {
	return r.post(ctx, r.ingress+"/Bench/"+handler, fmt.Sprint(n))
}

// waiting measures callers who call a handler and wait for its result, which has to be want: many at
// once, or one alone.
func waiting(handler string, n, want int, alone bool) func(context.Context, *bench) (float64, error) {
	return func(ctx context.Context, b *bench) (value float64, err error) {
		r, err := openRestate(ctx, b.restate)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
		once := func() (int, error) {
			got, err := r.call(ctx, handler, n)
			if err == nil && got != fmt.Sprint(want) {
				err = fmt.Errorf("%s results in %s, not in %d", handler, got, want)
			}
			return 1, err
		}
		for range 10 {
			if _, err := once(); err != nil {
				return 0, err
			}
		}
		if alone {
			return b.median(ctx, once)
		}
		return b.callers(ctx, callers, once)
	}
}
