package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
)

// ServeCommand is the first argument with which the bench starts this program as a server with
// profiles. The program perdure has none.
const ServeCommand = "bench-serve"

// findProgram finds the program whose servers are measured: the one that is given, or perdure beside
// this program, or in PATH.
func (b *Bench) findProgram() error {
	if b.Program == "" {
		if self, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(self), "perdure")
			if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
				b.Program = beside
				return nil
			}
		}
		path, err := exec.LookPath("perdure")
		if err != nil {
			return errors.New("there is no program perdure beside this one or in PATH: \"make build\" makes it, and " +
				"--perdure names it; --target process needs none")
		}
		b.Program = path
	}
	_, err := os.Stat(b.Program)
	return err
}

// Serve runs a server with profiles: of its CPU from start to end, and of its memory on SIGUSR1. The
// first argument is the prefix of their files, or empty for none, and the others are flags of "perdure
// serve".
func Serve(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if len(args) == 0 {
		return errors.New("this is for the bench alone")
	}
	if args[0] != "" {
		prefix := profilesOf(args[0], os.Getpid())
		stop, failed := Profile(prefix+"cpu", "")
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, stop()) }()
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGUSR1)
		go func() {
			for range asked {
				if err := writeMemory(prefix); err != nil {
					fmt.Fprintln(stderr, err)
				}
			}
		}()
	}
	return serve(ctx, args[1:], stdout, stderr)
}

// serve runs a server of package embedded, as "perdure serve" does, without its supervisor and TLS.
func serve(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	f.SetOutput(stderr)
	flags := settings.AddFlags(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Load(os.Getenv)
	if err != nil {
		return err
	}
	opt := cfg.Options
	if opt.Logger, err = cfg.NewLogger(stderr); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	srv, err := embedded.Open(opt)
	if err != nil {
		return err
	}
	defer srv.Close()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	hs := &http.Server{Handler: srv.Handler(), Protocols: protocols, ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	bounded, err := srv.Bound(hs, l, true)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(bounded) }()
	fmt.Fprintln(stdout, "http://"+l.Addr().String())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	srv.Drain()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := hs.Shutdown(stop); err != nil {
		hs.Close() // requests are cut off
	}
	return srv.Close()
}
