package worker_test

import (
	"context"
	"encoding/json"
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

// A server, a worker and a caller in one process, without a socket. With another base URL and no
// Transport, the same worker uses a remote server.
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

// call starts a run and waits for its end.
func call(c *client.Client, kind string, input any) *api.Run {
	run, _, err := c.Run(context.Background(), perdure.Submission{Kind: kind, Input: client.JSON(input)}, time.Minute)
	if err != nil {
		panic(err)
	}
	return run
}

// A handler's input and result can be any type that JSON can encode.
func ExampleHandle() {
	c, end := here()
	defer end()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "sum", func(ctx context.Context, numbers []int) (sum int, err error) {
		for _, n := range numbers {
			sum += n
		}
		return sum, nil
	})
	defer begin(w)()

	run := call(c, "sum", []int{1, 2, 3})
	fmt.Println(run.State, string(run.Result))
	run = call(c, "sum", "not numbers")
	fmt.Println(run.State, run.Error.Code, run.Attempt)
	// Output:
	// completed 6
	// failed invalid_input 1
}

// Agents have recorded steps and wait without holding a slot; see package agent. A worker can
// execute both tasks and agents.
func ExampleAgent() {
	c, end := here()
	defer end()
	w := worker.New(c, worker.Options{Slots: 20, AgentSlots: 5})
	worker.Handle(w, "check-disk", func(ctx context.Context, host string) (int, error) { return len(host), nil })
	worker.Agent(w, "survey", func(ctx *agent.Context, hosts []string) (total int, err error) {
		var checks []*agent.Future[int]
		for _, host := range hosts {
			checks = append(checks, agent.Spawn[int](ctx, "check-disk", host))
		}
		free, err := agent.JoinAll(ctx, checks...)
		for _, n := range free {
			total += n
		}
		return total, err
	})
	defer begin(w)()

	run := call(c, "survey", []string{"cube", "sphere"})
	fmt.Println(run.State, string(run.Result))
	// Output:
	// completed 10
}

// Middleware wraps every execution of tasks and agents, for metrics, traces, logs or checks.
func ExampleWorker_Use() {
	c, end := here()
	defer end()
	w := worker.New(c, worker.Options{})
	w.Use(func(ctx context.Context, run worker.RunInfo, next func(context.Context) error) error {
		fmt.Printf("%s begins, attempt %d\n", run.Kind, run.Attempt)
		err := next(ctx)
		fmt.Printf("%s ends: %v\n", run.Kind, err)
		return err
	})
	worker.Handle(w, "check-disk", func(ctx context.Context, host string) (string, error) {
		if host == "" {
			return "", perdure.Permanent(errors.New("which host?"))
		}
		return "fine", nil
	})
	defer begin(w)()

	call(c, "check-disk", "cube")
	call(c, "check-disk", "")
	// Output:
	// check-disk begins, attempt 1
	// check-disk ends: <nil>
	// check-disk begins, attempt 1
	// check-disk ends: which host?
}

// Streamed text, log lines and progress of a handler can be read while it runs, and afterwards.
func ExampleDelta() {
	c, end := here()
	defer end()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "poem", func(ctx context.Context, _ string) (string, error) {
		for _, token := range []string{"Time", "outs ", "stop ", "wait", "ing"} {
			if err := worker.Delta(ctx, token); err != nil {
				return "", err
			}
		}
		if err := worker.Progress(ctx, map[string]int{"percent": 100}); err != nil {
			return "", err
		}
		return "done", worker.Emit(ctx, "x:rating", 5)
	})
	defer begin(w)()

	run := call(c, "poem", "")
	text := ""
	for e, err := range c.Events(context.Background(), run.RunID, 0) {
		if err != nil {
			panic(err)
		}
		switch e.Type {
		case perdure.LineDelta:
			var d struct{ Text string }
			if err := json.Unmarshal(e.Data, &d); err != nil {
				panic(err)
			}
			text += d.Text
		case "x:rating":
			fmt.Println(text)
			fmt.Println("rating", string(e.Data))
		}
	}
	// Output:
	// Timeouts stop waiting
	// rating 5
}

// The code of a handler's error is in the run's error. Permanent prevents a retry.
func ExamplePermanent() {
	c, end := here()
	defer end()
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "check-disk", func(ctx context.Context, host string) (string, error) {
		return "", perdure.Permanent(worker.Fail("no_such_host", "nobody knows %s", host))
	})
	defer begin(w)()

	run := call(c, "check-disk", "cube")
	fmt.Println(run.State, run.Attempt, run.Error.Code, run.Error.Message)
	// Output:
	// failed 1 no_such_host nobody knows cube
}

// A worker that shuts down hands back runs that it cannot finish in time. That costs no attempt.
func ExampleWorker_Run() {
	c, end := here()
	defer end()
	running := make(chan struct{})
	first := worker.New(c, worker.Options{DrainTimeout: -1}) // no time to finish
	worker.Handle(first, "think", func(ctx context.Context, _ string) (string, error) {
		close(running)
		<-ctx.Done()
		fmt.Println("stopped:", context.Cause(ctx))
		return "", ctx.Err()
	})
	drain := begin(first)
	run, err := c.Start(context.Background(), perdure.Submission{Kind: "think"})
	if err != nil {
		panic(err)
	}
	<-running
	drain()

	second := worker.New(c, worker.Options{})
	worker.Handle(second, "think", func(context.Context, string) (string, error) { return "thought", nil })
	defer begin(second)()
	ended, _, err := c.Join(context.Background(), run.RunID, time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(ended.State, string(ended.Result), "in attempt", ended.Attempt)
	// Output:
	// stopped: the worker shuts down
	// completed "thought" in attempt 1
}
