package worker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A server, a worker and a caller in one process. With another base URL and no Transport the same worker serves
// a server elsewhere.
func Example() {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	type Input struct{ Host string }
	type Report struct{ Free string }
	w := worker.New(c, worker.Options{Slots: 4})
	worker.Handle(w, "check-disk", func(ctx context.Context, in Input) (Report, error) {
		worker.Heartbeat(ctx, "looking at "+in.Host)
		return Report{Free: "42 GB on " + in.Host}, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()

	run, _, err := c.Run(ctx, perdure.Submission{Kind: "check-disk", Input: client.JSON(Input{"cube"})}, time.Minute)
	if err != nil {
		panic(err)
	}
	report, err := client.Result[Report](run)
	fmt.Println(run.State, report.Free, err)
	stop()
	fmt.Println("the worker drained:", <-done)
	// Output:
	// completed 42 GB on cube <nil>
	// the worker drained: <nil>
}

// An error says what became of the attempt: its code goes to the caller, and Permanent has it tried no more.
func ExamplePermanent() {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "check-disk", func(ctx context.Context, host string) (string, error) {
		return "", worker.Permanent(worker.Fail("no_such_host", "nobody knows %s", host))
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()

	run, _, err := c.Run(ctx, perdure.Submission{Kind: "check-disk", Input: client.JSON("cube")}, time.Minute)
	if err != nil {
		panic(err)
	}
	_, err = client.Result[string](run)
	fmt.Println(run.State, run.Attempt, run.Error.Code)
	stop()
	<-done
	// Output:
	// failed 1 no_such_host
}
