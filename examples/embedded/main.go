// Embedded: server, worker and agent in one process, with the data in one folder. Stop it in the
// middle and start it again, and the agent continues where it was. After a kill -9 that takes a
// minute, until the lease of the killed worker has expired.
package main

import (
	"context"
	"fmt"
	"io"
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
	if err := run(ctx, "embedded-data", time.Second, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, pause time.Duration, out io.Writer) error {
	srv, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer srv.Close()
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
	working, stop := context.WithCancel(ctx)
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()
	defer func() { stop(); <-drained }()

	// The same key is the same run: the first start makes it, and the next ones find it.
	r, _, err := c.Run(ctx, perdure.Submission{Kind: "count", Class: perdure.Agent, Input: client.JSON(5)},
		time.Hour, client.IdempotencyKey("count to five"))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, r.State, string(r.Result))
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
