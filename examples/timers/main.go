// Timers: an agent that runs for weeks. It welcomes a customer, waits for a subscription, reminds,
// and closes the account. While it waits it is only a row on disk. Its test uses virtual time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A Trial is an agent for days of a certain length, with a way to send mails.
type Trial struct {
	Day  time.Duration
	Mail func(ctx context.Context, key, to, text string) error
}

func (t Trial) run(ctx *agent.Context, customer string) (string, error) {
	mail := func(text string) error {
		_, err := agent.Step(ctx, "mail", func(ctx context.Context) (string, error) {
			return text, t.Mail(ctx, agent.IdempotencyKey(ctx), customer, text)
		})
		return err
	}
	if err := mail("welcome"); err != nil {
		return "", err
	}
	plan, err := agent.Signal[string](ctx, "subscribed", 25*t.Day)
	if err == nil {
		return plan, mail("thank you")
	}
	if !errors.Is(err, agent.ErrSignalTimeout) {
		return "", err
	}
	if err := mail("your trial ends in three days"); err != nil {
		return "", err
	}
	if err := agent.Sleep(ctx, 3*t.Day); err != nil {
		return "", err
	}
	return "closed", mail("goodbye")
}

func main() {
	day := flag.Duration("day", 100*time.Millisecond, "how long a day is")
	flag.Parse()
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	worker.Agent(w, "trial", Trial{*day, func(_ context.Context, _, to, text string) error {
		_, err := fmt.Printf("to %s: %s\n", to, text)
		return err
	}}.run)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go w.Run(ctx)
	run, _, err := c.Run(ctx,
		perdure.Submission{Kind: "trial", Class: perdure.Agent, Input: client.JSON("Ada"),
			Timeout: perdure.Duration(30 * 24 * time.Hour)}, time.Hour)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stdout, run.State, string(run.Result))
}
