// Agents: seven small agents, a file for each. Each shows one way of working: ask many and take the
// first, talk, pay and undo, work on fifty items, wait for a person until a deadline, wait for
// days, and use a result that came too late.
//
// Without a server the program starts one, and with names it runs these only:
//
//	go run ./examples/agents
//	go run ./examples/agents payment chat
//	PERDURE_URL=… PERDURE_KEY=… go run ./examples/agents -day 24h reminder
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A World has the things that agents act on.
type World struct {
	// Day is how long a day is.
	Day time.Duration
	// Do has an effect, such as a payment. A second call with the same key changes nothing.
	Do func(ctx context.Context, key, what string) error
}

// do returns the function of a step that has an effect.
func (w World) do(what string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return what, w.Do(ctx, agent.IdempotencyKey(ctx), what) }
}

// A Program is an agent and a run of it.
type Program struct {
	Name     string
	Register func(w *worker.Worker, world World)
	Input    any
	// OnThread says that the run is a conversation.
	OnThread bool
	// Meanwhile acts for people while the run is under way. It may be nil.
	Meanwhile func(ctx context.Context, c *client.Client, id perdure.RunID, day time.Duration) error
}

var programs = []Program{research, chat, payment, library, approval, reminder, survey}

func (p Program) submission() perdure.Submission {
	return perdure.Submission{Kind: p.Name, Class: perdure.Agent, Input: client.JSON(p.Input),
		Timeout: perdure.Duration(30 * 24 * time.Hour)}
}

func main() {
	day := flag.Duration("day", 200*time.Millisecond, "how long a day is")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *day, flag.Args()...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run executes the programs that are named, one after the other, or all.
func run(ctx context.Context, out io.Writer, day time.Duration, names ...string) error {
	c, end, err := connect()
	if err != nil {
		return err
	}
	defer end()
	w := worker.New(c, worker.Options{})
	for _, p := range programs {
		p.Register(w, World{Day: day, Do: func(_ context.Context, _, what string) error {
			_, err := fmt.Fprintln(out, " ", what)
			return err
		}})
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()
	for _, p := range programs {
		if len(names) > 0 && !slices.Contains(names, p.Name) {
			continue
		}
		fmt.Fprintln(out, p.Name)
		if err := p.execute(ctx, c, out, day); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	stop()
	return <-drained
}

// connect returns a client of the server in the environment, or of one in this process.
func connect() (c *client.Client, end func() error, err error) {
	if url := os.Getenv("PERDURE_URL"); url != "" {
		return client.New(url, os.Getenv("PERDURE_KEY"), client.Options{}), func() error { return nil }, nil
	}
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		return nil, nil, err
	}
	return client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()}), srv.Close, nil
}

func (p Program) execute(ctx context.Context, c *client.Client, out io.Writer, day time.Duration) error {
	sub := p.submission()
	if p.OnThread {
		thread, err := c.CreateThread(ctx, nil)
		if err != nil {
			return err
		}
		sub.ThreadID = thread.ThreadID
	}
	r, err := c.Start(ctx, sub)
	if err != nil {
		return err
	}
	if p.Meanwhile != nil {
		if err := p.Meanwhile(ctx, c, r.RunID, day); err != nil {
			return err
		}
	}
	if r, _, err = c.Join(ctx, r.RunID, cmp.Or(31*day, time.Minute)); err != nil {
		return err
	}
	if r.Error != nil {
		_, err = fmt.Fprintf(out, "  %s: %s\n", r.State, r.Error.Message)
	} else {
		_, err = fmt.Fprintf(out, "  %s: %s\n", r.State, r.Result)
	}
	return err
}
