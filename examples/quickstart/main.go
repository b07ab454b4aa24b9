// Quickstart: a durable server, a worker and a caller in one process. The caller waits for a moment
// and gets "deferred". The work goes on, and the caller joins the run again for the result.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	srv, err := embedded.Open(embedded.Options{}) // Dir: "data" keeps it on disk
	if err != nil {
		return err
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	w := worker.New(c, worker.Options{})
	worker.Handle(w, "greet", func(ctx context.Context, name string) (string, error) {
		worker.Heartbeat(ctx, "thinking of something to say")
		time.Sleep(300 * time.Millisecond)
		return "Hello, " + name, nil
	})
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()

	r, deferred, err := c.Run(ctx, perdure.Submission{Kind: "greet", Input: client.JSON("world")}, 50*time.Millisecond)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "after 50 ms: deferred %v, the run is %s\n", deferred, r.State)
	if r, _, err = c.Join(ctx, r.RunID, time.Minute); err != nil {
		return err
	}
	greeting, err := client.Result[string](r)
	fmt.Fprintf(out, "joined again: %s, %q, %v\n", r.State, greeting, err)
	stop()
	return <-drained
}
