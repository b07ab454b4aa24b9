// Research: an agent that asks eight sources at once, takes the first five answers, cancels the rest,
// and buys from the cheapest. The purchase is a saga: if a later step fails, the steps before it are
// undone, the last first. Its test crashes it at every point.
//
//	go run ./examples/research
//	go run ./examples/research -broken
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A Question is the input of one source, and an Offer its answer.
type (
	Question struct{ Source, Item string }
	Offer    struct {
		Source string
		Price  int
	}
)

// A Purchase is the result of the agent.
type Purchase struct {
	Offers []Offer // the cheapest first
	Parcel string
}

// A Shop is a service elsewhere. A call with the key of an earlier call changes nothing, and returns
// the same id.
type Shop func(ctx context.Context, key, action, what string) (id string, err error)

// research finds five offers for an item, and buys the cheapest.
func (s Shop) research(ctx *agent.Context, item string) (Purchase, error) {
	var asked []*agent.Future[Offer]
	for _, source := range sources {
		asked = append(asked, agent.Spawn[Offer](ctx, "ask", Question{source.name, item}, agent.Timeout(time.Hour)))
	}
	got, err := agent.FirstOK(ctx, 5, asked...)
	if err != nil {
		return Purchase{}, err
	}
	for _, late := range got.Remaining {
		if err := late.Cancel(ctx); err != nil {
			return Purchase{}, err
		}
	}
	offers := slices.SortedFunc(slices.Values(got.Values), func(a, b Offer) int {
		return cmp.Compare(a.Price, b.Price)
	})
	parcel, err := s.buy(ctx, offers[0])
	return Purchase{offers, parcel}, err
}

// buy accepts an offer, or leaves nothing behind.
func (s Shop) buy(ctx *agent.Context, o Offer) (parcel string, err error) {
	err = agent.Saga(ctx, "buy", func() error {
		reservation, err := agent.Step(ctx, "reserve", s.call("reserve", o.Source), s.undo("release"))
		if err != nil {
			return err
		}
		if _, err := agent.Step(ctx, "charge", s.call("charge", strconv.Itoa(o.Price)), s.undo("refund")); err != nil {
			return err
		}
		// A short outage is no reason to undo the purchase, so the step is tried three times.
		parcel, err = agent.Step(ctx, "ship", s.call("ship", reservation), agent.Retry{Attempts: 3})
		return err
	})
	return parcel, err
}

// call returns the function of a step that calls the shop.
func (s Shop) call(action, what string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return s(ctx, agent.IdempotencyKey(ctx), action, what) }
}

// undo makes the shop undo a step. It gets the id that the step returned.
func (s Shop) undo(action string) agent.StepOptions {
	return agent.Undo(func(ctx context.Context, id string) error {
		_, err := s(ctx, agent.IdempotencyKey(ctx), action, id)
		return err
	})
}

// sources stand for services that are quick, slow or closed.
var sources = []struct {
	name  string
	price int // none if it is closed
	takes time.Duration
}{
	{"Alder", 41, 300 * time.Millisecond}, {"Birch", 35, 500 * time.Millisecond}, {"Cedar", 20, 50 * time.Minute},
	{"Elm", 29, 400 * time.Millisecond}, {"Fir", 0, 0}, {"Hazel", 52, 200 * time.Millisecond},
	{"Larch", 18, 50 * time.Minute}, {"Maple", 33, 100 * time.Millisecond},
}

// ask asks one source. It ends early when its run is cancelled.
func ask(ctx context.Context, q Question) (Offer, error) {
	for _, s := range sources {
		if s.name != q.Source || s.price == 0 {
			continue
		}
		select {
		case <-time.After(s.takes):
			return Offer{s.name, s.price}, nil
		case <-ctx.Done():
			return Offer{}, ctx.Err()
		}
	}
	return Offer{}, perdure.Permanent(worker.Fail("closed", "%s sells no %s", q.Source, q.Item))
}

func (s Shop) register(w *worker.Worker) {
	worker.Handle(w, "ask", ask)
	worker.Agent(w, "research", s.research)
}

func main() {
	broken := flag.Bool("broken", false, "the shop can't ship")
	flag.Parse()
	if err := run(context.Background(), *broken, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broken bool, out io.Writer) error {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		return err
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	Shop(func(_ context.Context, _, action, what string) (string, error) {
		if broken && action == "ship" {
			return "", perdure.Permanent(errors.New("no van is left"))
		}
		fmt.Fprintln(out, action, what)
		return action + "-1", nil
	}).register(w)
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()

	r, _, err := c.Run(ctx,
		perdure.Submission{Kind: "research", Class: perdure.Agent, Input: client.JSON("a lamp")}, time.Minute)
	if err != nil {
		return err
	}
	if r.Error != nil {
		fmt.Fprintf(out, "%s: %s\n", r.State, r.Error.Message)
	} else if bought, err := client.Result[Purchase](r); err != nil {
		return err
	} else {
		fmt.Fprintln(out, r.State, bought.Offers, bought.Parcel)
	}
	stop()
	return <-drained
}
