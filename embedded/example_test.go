package embedded_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A program keeps its runs in a folder of its own. It ends while a run is queued, and starts again: the
// run is still there, and a worker in the same process executes it.
func Example() {
	dir, err := os.MkdirTemp("", "perdure-example-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	open := func() (*embedded.Server, *client.Client) {
		srv, err := embedded.Open(embedded.Options{Dir: dir})
		if err != nil {
			panic(err)
		}
		return srv, client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	}

	srv, c := open()
	run, err := c.Start(ctx, perdure.Submission{Kind: "greet", Input: client.JSON("Ann")})
	fmt.Println("state:", run.State, "error:", err)
	srv.Close()

	srv, c = open()
	defer srv.Close()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "greet", func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	working, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- w.Run(working) }()

	run, _, err = c.Join(ctx, run.RunID, time.Minute)
	if err != nil {
		panic(err)
	}
	greeting, err := client.Result[string](run)
	fmt.Println("state:", run.State, "result:", greeting, "error:", err)
	stop()
	fmt.Println("worker:", <-ended)
	// Output:
	// state: queued error: <nil>
	// state: completed result: hello, Ann error: <nil>
	// worker: <nil>
}
