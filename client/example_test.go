package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A caller starts a run and waits briefly. The run is not done in time, continues, and is joined
// later.
func Example() {
	srv, err := embedded.Open(embedded.Options{}) // or a server elsewhere, by its address
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	ctx := context.Background()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "add", Input: client.JSON([]int{1, 2})},
		20*time.Millisecond)
	fmt.Println("deferred:", deferred, "state:", run.State, "error:", err)

	// A worker starts and executes the run.
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "add", func(_ context.Context, in []int) (int, error) { return in[0] + in[1], nil })
	defer begin(w)()

	run, deferred, _ = c.Join(ctx, run.RunID, time.Minute)
	sum, err := client.Result[int](run)
	fmt.Println("deferred:", deferred, "state:", run.State, "sum:", sum, "error:", err)
	// Output:
	// deferred: true state: queued error: <nil>
	// deferred: false state: completed sum: 3 error: <nil>
}

// here opens a server in this process, as in the first example, and returns a client of it.
func here() (c *client.Client, end func()) {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	return client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()}), func() { srv.Close() }
}

// begin runs a worker; end drains it.
func begin(w *worker.Worker) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	return func() {
		stop()
		if err := <-done; err != nil {
			panic(err)
		}
	}
}

// Start returns at once. Any program that has the id can join the run, any number of times. Joining
// an ended run returns at once.
func ExampleClient_Join() {
	c, end := here()
	defer end()
	ctx := context.Background()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "greet", func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	defer begin(w)()

	run, err := c.Start(ctx, perdure.Submission{Kind: "greet", Input: client.JSON("Ann")})
	if err != nil {
		panic(err)
	}
	for range 2 {
		run, _, err := c.Join(ctx, run.RunID, time.Minute)
		if err != nil {
			panic(err)
		}
		fmt.Println(client.Result[string](run))
	}
	// Output:
	// hello, Ann <nil>
	// hello, Ann <nil>
}

// StartMany starts many runs in one call. Each is accepted or refused by itself. The key makes a
// repeated call give the same runs.
func ExampleClient_StartMany() {
	c, end := here()
	defer end()
	ctx := context.Background()
	var runs []api.BatchRun
	for _, name := range []string{"Ann", "Bob"} {
		runs = append(runs, api.BatchRun{Submission: perdure.Submission{Kind: "greet", Input: client.JSON(name)}})
	}
	runs = append(runs, api.BatchRun{}) // it has no kind
	for range 2 {
		results, err := c.StartMany(ctx, runs, client.IdempotencyKey("greetings of 1 May"))
		if err != nil {
			panic(err)
		}
		for _, r := range results {
			if r.Error != nil {
				fmt.Println(r.Index, "refused:", r.Error.Code, r.Error.Field)
			} else {
				fmt.Println(r.Index, r.Run.Status, "duplicate:", r.Duplicate)
			}
		}
	}
	// Output:
	// 0 queued duplicate: false
	// 1 queued duplicate: false
	// 2 refused: invalid kind
	// 0 queued duplicate: true
	// 1 queued duplicate: true
	// 2 refused: invalid kind
}

// A wait can end before the run does. That is not an error, and the run continues.
func ExampleClient_Run() {
	c, end := here()
	defer end()
	ctx := context.Background()
	enough := make(chan struct{})
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "think", func(ctx context.Context, _ any) (int, error) {
		<-enough
		return 42, nil
	})
	defer begin(w)()

	run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "think"}, 50*time.Millisecond)
	switch {
	case err != nil:
		fmt.Println("it was refused, or nobody answered:", err)
	case deferred:
		fmt.Println("not done yet; its status is", run.Status)
	default:
		fmt.Println(client.Result[int](run))
	}

	close(enough)
	run, deferred, err = c.Join(ctx, run.RunID, 0)
	fmt.Println(run.State, string(run.Result), deferred, err)
	// Output:
	// not done yet; its status is deferred
	// completed 42 false <nil>
}

// A run that did not complete has a code, and so has every refusal.
func ExampleResult() {
	c, end := here()
	defer end()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "pay", func(context.Context, any) (string, error) {
		return "", perdure.Permanent(worker.Fail("no_money", "the account is empty"))
	})
	defer begin(w)()

	run, _, err := c.Run(context.Background(), perdure.Submission{Kind: "pay"}, time.Minute)
	if err != nil {
		panic(err)
	}
	_, err = client.Result[string](run)
	var ended *client.RunError
	fmt.Println(errors.As(err, &ended), ended.State, ended.Failure.Message)
	fmt.Println(errors.Is(err, &perdure.Error{Code: "no_money"}))
	// Output:
	// true failed the account is empty
	// true
}

// Stream yields the events of a run's log as they are written. A loop that stops at any error also
// stops at a gap.
func ExampleClient_Stream() {
	c, end := here()
	defer end()
	ctx := context.Background()

	run, err := c.Start(ctx, perdure.Submission{Kind: "report"})
	if err != nil {
		panic(err)
	}
	for e, err := range c.Stream(ctx, run.RunID, 0) {
		var gap *client.StreamGapError
		switch {
		case errors.As(err, &gap):
			fmt.Println(gap) // older than the server keeps them; what follows still comes
			continue
		case err != nil:
			panic(err) // a refusal, or the context has ended
		}
		fmt.Println(e.Seq, e.Type)
		if e.Type == perdure.LineCreated {
			if _, err := c.Cancel(ctx, run.RunID, "not needed any more", 0); err != nil {
				panic(err)
			}
		}
	}
	// Output:
	// 1 run:created
	// 2 run:cancel_requested
	// 3 run:cancelled
}

// Events yields the same by polling.
func ExampleClient_Events() {
	c, end := here()
	defer end()
	ctx := context.Background()

	run, err := c.Start(ctx, perdure.Submission{Kind: "report"})
	if err != nil {
		panic(err)
	}
	if _, err := c.Cancel(ctx, run.RunID, "not needed any more", 0); err != nil {
		panic(err)
	}
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

// A signal can be sent before the run waits for it. The server keeps it.
func ExampleClient_Signal() {
	c, end := here()
	defer end()
	ctx := context.Background()
	w := worker.New(c, worker.Options{})
	worker.Agent(w, "order", func(ctx *agent.Context, item string) (string, error) {
		size, err := agent.Signal[string](ctx, "size", time.Hour)
		return size + " " + item, err
	})

	run, err := c.Start(ctx, perdure.Submission{Kind: "order", Class: perdure.Agent, Input: client.JSON("tea")})
	if err != nil {
		panic(err)
	}
	if _, err := c.Signal(ctx, run.RunID, "size", client.JSON("large")); err != nil {
		panic(err)
	}
	defer begin(w)() // only now

	run, _, err = c.Join(ctx, run.RunID, time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(client.Result[string](run))
	// Output:
	// large tea <nil>
}

// Cancel can wait until the run has stopped: the worker has received the request, cleaned up and
// confirmed it.
func ExampleClient_Cancel() {
	c, end := here()
	defer end()
	ctx := context.Background()
	started := make(chan struct{})
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "dig", func(ctx context.Context, _ any) (string, error) {
		close(started)
		<-ctx.Done()
		fmt.Println("put the spade away")
		return "", ctx.Err()
	})
	defer begin(w)()

	run, err := c.Start(ctx, perdure.Submission{Kind: "dig"})
	if err != nil {
		panic(err)
	}
	<-started
	run, err = c.Cancel(ctx, run.RunID, "it rains", time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(run.State, run.Cancel.Reason)
	// Output:
	// put the spade away
	// cancelled it rains
}

// A group is a set of runs that are waited for together, here for the first of them to end. The
// others continue.
func ExampleClient_CreateGroup() {
	c, end := here()
	defer end()
	ctx := context.Background()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "hare", func(context.Context, any) (string, error) { return "first", nil })
	defer begin(w)()

	var runs []perdure.RunID
	for _, kind := range []string{"tortoise", "hare"} {
		run, err := c.Start(ctx, perdure.Submission{Kind: kind})
		if err != nil {
			panic(err)
		}
		runs = append(runs, run.RunID)
	}
	group, err := c.CreateGroup(ctx, api.CreateGroup{Mode: perdure.ModeAny, RunIDs: runs})
	if err != nil {
		panic(err)
	}
	group, open, err := c.JoinGroup(ctx, group.GroupID, time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println("open:", open, "ended:", group.Ended, "of", group.Total, "the hare:",
		group.EndedRuns[0].RunID == runs[1])
	// Output:
	// open: false ended: 1 of 2 the hare: true
}

// A program that gives its own idempotency key and restarts does not start a run twice. Lost
// answers are handled without one.
func ExampleIdempotencyKey() {
	c, end := here()
	defer end()
	ctx := context.Background()

	order := perdure.Submission{Kind: "ship", Input: client.JSON("a teapot")}
	first, err := c.Start(ctx, order, client.IdempotencyKey("order-42"))
	if err != nil {
		panic(err)
	}
	again, err := c.Start(ctx, order, client.IdempotencyKey("order-42"))
	if err != nil {
		panic(err)
	}
	fmt.Println("one run:", first.RunID == again.RunID)

	order.Input = client.JSON("a kettle")
	_, err = c.Start(ctx, order, client.IdempotencyKey("order-42"))
	fmt.Println(client.CodeOf(err))
	// Output:
	// one run: true
	// key_reused
}

// A thread is a conversation. Its runs execute one after the other, and their messages stay.
func ExampleClient_CreateThread() {
	c, end := here()
	defer end()
	ctx := context.Background()
	w := worker.New(c, worker.Options{})
	worker.Agent(w, "chat", func(ctx *agent.Context, _ any) (string, error) {
		return "", agent.Message(ctx, "assistant", "good morning")
	})
	defer begin(w)()

	thread, err := c.CreateThread(ctx, client.JSON(map[string]string{"title": "breakfast"}))
	if err != nil {
		panic(err)
	}
	_, _, err = c.Run(ctx, perdure.Submission{Kind: "chat", ThreadID: thread.ThreadID,
		Messages: []perdure.Message{{Role: "user", Content: client.JSON("hello")}}}, time.Minute)
	if err != nil {
		panic(err)
	}
	if _, err := c.AppendMessage(ctx, thread.ThreadID,
		perdure.Message{Role: "user", Content: client.JSON("tea, please")}); err != nil {
		panic(err)
	}
	page, err := c.Messages(ctx, thread.ThreadID, 0)
	if err != nil {
		panic(err)
	}
	for _, m := range page.Messages {
		fmt.Println(m.Seq, m.Role, string(m.Content))
	}
	// Output:
	// 1 user "hello"
	// 2 assistant "good morning"
	// 3 user "tea, please"
}

// All reads the pages of a list.
func ExampleClient_All() {
	c, end := here()
	defer end()
	ctx := context.Background()
	for i := range 5 {
		_, err := c.Start(ctx, perdure.Submission{Kind: "job", Input: client.JSON(i),
			Metadata: map[string]string{"customer": fmt.Sprint("no-", i%2)}})
		if err != nil {
			panic(err)
		}
	}

	n := 0
	for run, err := range c.All(ctx, client.Filter{State: perdure.Queued,
		Metadata: map[string]string{"customer": "no-0"}, Limit: 2}) {
		if err != nil {
			panic(err)
		}
		n++
		fmt.Println(n, run.Kind, run.Metadata["customer"])
	}
	// Output:
	// 1 job no-0
	// 2 job no-0
	// 3 job no-0
}

// Every refusal has a code.
func ExampleCodeOf() {
	c, end := here()
	defer end()

	_, err := c.Get(context.Background(), "no-such-run")
	fmt.Println(client.CodeOf(err), errors.Is(err, &perdure.Error{Code: perdure.CodeNotFound}))
	// Output:
	// not_found true
}
