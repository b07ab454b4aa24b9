// Embedded: server, worker and agent in one process, with the data in one folder. Other programs may
// use the server over HTTP. Stop it in the middle and start it again, and the agent continues where it
// was. After a kill -9 that takes a minute, until the lease of the killed worker has expired.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "embedded-data", "127.0.0.1:7373", time.Second, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, address string, pause time.Duration, out io.Writer) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer listener.Close()
	srv, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		return err
	}
	web := &http.Server{Handler: srv.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go web.Serve(listener)
	fmt.Fprintf(out, "http://%s\n", listener.Addr())

	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{DrainTimeout: -1}) // a step that is stopped is done again
	worker.Agent(w, "count", func(ctx *agent.Context, to int) (string, error) {
		for n := range to {
			_, err := agent.Step(ctx, "count", func(ctx context.Context) (int, error) {
				fmt.Fprintln(out, n+1)
				return n + 1, wait(ctx, pause)
			})
			if err != nil {
				return "", err
			}
		}
		return "counted", nil
	})
	working, stop := context.WithCancel(context.Background())
	worked := make(chan error, 1)
	go func() { worked <- w.Run(working) }()
	stopWorker := func() error {
		stop()
		return <-worked
	}

	// Ctrl-C ends all waiting: the call below returns then, with a deferral. It ends no work.
	defer context.AfterFunc(ctx, srv.Drain)()
	// The same key is the same run: the first start makes it, and the next ones find it.
	r, deferred, err := c.Run(context.WithoutCancel(ctx), countToFive, time.Hour, client.IdempotencyKey(key))
	switch {
	case err != nil:
	case deferred:
		fmt.Fprintln(out, "stopped; the next start goes on")
	default:
		fmt.Fprintln(out, r.State, string(r.Result), "in attempt", r.Attempt)
	}
	return errors.Join(err, shutdown(srv, stopWorker, web))
}

const key = "count to five"

var countToFive = perdure.Submission{Kind: "count", Class: perdure.Agent, Input: client.JSON(5)}

// shutdown ends the parts of the program in the order in which nothing is lost and nobody waits.
func shutdown(srv *embedded.Server, stopWorker func() error, web *http.Server) error {
	// Callers that wait for a run are told that it goes on. Otherwise the HTTP server would wait for them.
	srv.Drain()
	// The worker delivers what is done and hands back the rest, for which it needs the server.
	err := stopWorker()
	// The last answers are sent.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = errors.Join(err, web.Shutdown(ctx))
	// Everything that was acknowledged is on disk.
	return errors.Join(err, srv.Close())
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
