package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/wire/redact"
	"github.com/perdure/perdure/internal/wire/release"
)

// drainTime bounds how long a server that shuts down waits for its requests.
const drainTime = 10 * time.Second

func serve(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("serve",
		"Runs the server until it is interrupted. The first start of a store makes a key of the platform and\n"+
			"writes it to <data>/admin.key, readable by its owner alone; the other commands find it there. "+
			"Later starts "+
			"make none: see keys bootstrap.\n\n  perdure serve --data /var/lib/perdure\n"+
			"  perdure serve --store postgres://perdure@db/perdure --doorbell nats://nats:4222", stderr)
	cfg, err := configure(f, args)
	if err != nil {
		return err
	}
	return serveWith(ctx, cfg, stdout, stderr, nil)
}

func dev(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("dev",
		"Runs a server for trying things out, and says how to talk to it. The same as serve, with a friendlier "+
			"voice.\n\n  perdure dev", stderr)
	moved := f.Bool(clockFromStdin, false, "for tests: move the clock ahead by each duration on standard input, and "+
		"end with it; the data folder has to be new")
	cfg, err := configure(f, args)
	if err != nil {
		return err
	}
	if *moved {
		return serveMoved(ctx, cfg, os.Stdin, stdout, stderr)
	}
	cfg.Trial = true
	if len(cfg.WebhookAllow) == 0 {
		cfg.WebhookAllow = []string{"127.0.0.0/8", "::1/128"} // receivers for trying out run on this machine
	}
	if len(cfg.Doors) == 0 {
		cfg.Doors = embedded.DoorNames()
	}
	if cfg.Supervisor == "" {
		cfg.Supervisor = scriptedSupervisor
	}
	if cfg.Workspace == "" {
		cfg.Workspace = filepath.Join(cfg.Dir, "workspace")
	}
	workspace, err := filepath.Abs(cfg.Workspace)
	if err != nil {
		return err
	}
	return serveWith(ctx, cfg, stdout, stderr, func(url string, srv *embedded.Server) {
		fmt.Fprintf(stdout, `
Perdure is listening on %[1]s; its data is in %[2]s.

The dashboard: %[5]s

In another terminal:

  export PERDURE_URL=%[1]s PERDURE_KEY=$(cat %[2]s/%[3]s)
  export PERDURE_WORKSPACE=%[4]s    # of perdure exec: this server looks after it
  python3 examples/python/worker.py &       # a worker; any language will do
  perdure run count --input 5               # stay with a run; Ctrl-C detaches, the run goes on
  perdure jobs
  perdure chat "check disk space"           # a supervisor, with a script for a model: see --supervisor
  curl -s $PERDURE_URL/api/v1/runs -H "Authorization: Bearer $PERDURE_KEY" \
       -H 'Content-Type: application/json' -d '{"kind":"greet","input":"you","wait":"5s"}'

The API: %[1]s/openapi.json. Ctrl-C stops the server; nothing is lost.

`, url, cfg.Dir, embedded.KeyFile, workspace, dashboardLink(ctx, url, srv))
	})
}

// dashboardLink returns a link that opens the dashboard of a server of this process. It works once; a
// node without a key gives the plain address.
func dashboardLink(ctx context.Context, url string, srv *embedded.Server) string {
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	defer c.Close()
	if srv.Key() == "" {
		return url + "/ui/"
	}
	link, err := admin.New(c).LoginLink(ctx, api.OpenSession{})
	if err != nil {
		return url + "/ui/"
	}
	return url + link.Path + "   (works once; perdure dashboard prints another)"
}

// serveWith listens, opens the data, and serves until the context ends or the store fails.
func serveWith(ctx context.Context, cfg *settings.Config, stdout, stderr io.Writer,
	greet func(url string, srv *embedded.Server)) error {
	log, err := cfg.NewLogger(stderr)
	if err != nil {
		return err
	}
	secrets, err := redact.Load(cfg.Secrets)
	if err != nil {
		return err
	}
	log = secrets.Logger(log)
	// It listens first, so that a port that is in use is found before anything is written.
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	opt := cfg.Options
	opt.Logger = log
	door, err := newFrontDoor(l, opt)
	if err != nil {
		return err
	}
	defer door.hs.Close()
	if door.hs.TLSConfig == nil && !cfg.Loopback() {
		log.Warn("listening beyond this machine without TLS: put a proxy in front, or the keys travel in the clear",
			"listen", cfg.Listen)
	}
	opt.Waiting = func(at string, why error) bool { return door.waiting(ctx, at, why) }
	opt.Migrating = func(why string) bool {
		door.setReason(why)
		return ctx.Err() == nil
	}
	manager := newServiceManager(log)
	defer manager.close()
	opened := manager.opening(ctx, func() string { return *door.reason.Load() })
	slow := time.AfterFunc(startingAfter, door.serve)
	srv, err := embedded.Open(opt)
	slow.Stop()
	opened()
	if err != nil {
		return err
	}
	defer srv.Close()
	go boundGarbage(ctx)
	stopSupervisor := func() error { return nil }
	if cfg.Supervisor != "" {
		if stopSupervisor, err = startSupervisor(ctx, cfg, srv, log); err != nil {
			return err
		}
	}
	door.open(srv.Handler())
	manager.watch(ctx, srv)
	log.Info("serving", "version", release.Version, "url", door.url, "data", cfg.Dir)
	if greet != nil {
		greet(door.url, srv)
	} else {
		fmt.Fprintln(stdout, door.url)
	}
	health := time.NewTicker(500 * time.Millisecond)
	defer health.Stop()
	for {
		select {
		case err := <-door.served:
			return err
		case <-health.C:
			if err := srv.Err(); err != nil {
				return fmt.Errorf("%w: %w", errIO, err)
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	log.Info("stopping")
	manager.stopping()
	// The order is that of embedded.Server.Drain: nobody waits, and nothing is lost.
	srv.Drain()
	if err := stopSupervisor(); err != nil {
		log.Warn("the supervisor did not stop in order", "error", err)
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := door.hs.Shutdown(stop); err != nil {
		log.Warn("requests were cut off", "error", err)
		door.hs.Close()
	}
	if err := srv.Close(); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// server returns an HTTP server that writes its errors to the log. It supports HTTP/1.1 only, also
// with TLS: see tlscert. ReadHeaderTimeout limits the TLS handshake as well.
func server(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{Handler: h, Protocols: protocols, ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: stdlog.New(&serverLog{log: log}, "", 0)}
}

// errIO means that a commit of the store failed. The process exits, and a restart finds out what is
// on disk.
var errIO = errors.New("the store is in doubt")
