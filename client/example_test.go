package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
)

// Somebody starts a run and waits a moment; the moment passes; the run goes on; he comes back for the result.
func Example() {
	srv, err := embedded.Open(embedded.Options{}) // or a server elsewhere, by its address
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	ctx := context.Background()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "add", Input: client.JSON([]int{1, 2})}, 20*time.Millisecond)
	fmt.Println("deferred:", deferred, "state:", run.State, "error:", err)

	// A worker turns up; see package worker for a comfortable one.
	polled, _ := c.Poll(ctx, "example", api.Poll{Slots: 1, Start: true})
	g := polled.Runs[0]
	c.Commit(ctx, "example", perdure.Commit{ID: "1", RunID: g.RunID, Epoch: g.Epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: client.JSON(3)}})

	run, deferred, _ = c.Join(ctx, run.RunID, time.Minute)
	sum, err := client.Result[int](run)
	fmt.Println("deferred:", deferred, "state:", run.State, "sum:", sum, "error:", err)
	// Output:
	// deferred: true state: queued error: <nil>
	// deferred: false state: completed sum: 3 error: <nil>
}

// A run's log, from its first line to its last, as it is written. A loop that stops at any error stops at a gap too.
func ExampleClient_Stream() {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	ctx := context.Background()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	run, _ := c.Start(ctx, perdure.Submission{Kind: "report"})
	for e, err := range c.Stream(ctx, run.RunID, 0) {
		var gap *client.GapError
		switch {
		case errors.As(err, &gap):
			fmt.Println(gap) // older than the server keeps them; what follows still comes
			continue
		case err != nil:
			panic(err) // a refusal, or the context has ended
		}
		fmt.Println(e.Seq, e.Type)
		if e.Type == perdure.LineCreated {
			c.Cancel(ctx, run.RunID, "not needed any more", 0)
		}
	}
	// Output:
	// 1 run:created
	// 2 run:cancel_requested
	// 3 run:cancelled
}

// The same by polling.
func ExampleClient_Events() {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	ctx := context.Background()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	run, _ := c.Start(ctx, perdure.Submission{Kind: "report"})
	c.Cancel(ctx, run.RunID, "not needed any more", 0)
	for e, err := range c.Events(ctx, run.RunID, 0) {
		if err != nil {
			panic(err)
		}
		fmt.Println(e.Seq, e.Type)
	}
	// Output:
	// 1 run:created
	// 2 run:cancel_requested
	// 3 run:cancelled
}

// Refusals have codes.
func ExampleCodeOf() {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	_, err = c.Get(context.Background(), "no-such-run")
	fmt.Println(client.CodeOf(err), errors.Is(err, &perdure.Error{Code: perdure.CodeNotFound}))
	// Output:
	// not_found true
}
