// Approval: an agent that asks before it acts, and a person at this terminal who decides. The
// approval is for exactly the action that was shown. Without a decision it counts as rejected.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A Payment is the action to approve.
type Payment struct {
	To     string
	Amount int
}

func pay(ctx *agent.Context, p Payment) (string, error) {
	decision, err := agent.Approve(ctx,
		agent.Approval{Name: "pay", Title: "Pay this bill?", Action: p, Timeout: 24 * time.Hour})
	if err != nil {
		return "", err
	}
	if !decision.Approved {
		return "not paid: " + decision.Comment, nil
	}
	return agent.Step(ctx, "pay", func(ctx context.Context) (string, error) {
		return fmt.Sprintf("paid %d to %s", p.Amount, p.To), nil
	})
}

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		return err
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	worker.Agent(w, "pay", pay)
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()

	r, err := c.Start(ctx, perdure.Submission{Kind: "pay", Class: perdure.Agent,
		Input: client.JSON(Payment{"Ada", 42})})
	if err != nil {
		return err
	}
	for e, err := range c.Stream(ctx, r.RunID, 0) {
		if err != nil {
			return err
		}
		if e.Type == perdure.LineSuspended {
			if err := decide(ctx, c, r.RunID, in, out); err != nil {
				return err
			}
		}
	}
	if r, err = c.Get(ctx, r.RunID); err != nil {
		return err
	}
	fmt.Fprintln(out, r.State, string(r.Result))
	stop()
	return <-drained
}

// decide shows an approval and asks for the decision.
func decide(ctx context.Context, c *client.Client, id perdure.RunID, in io.Reader, out io.Writer) error {
	open, err := c.Approvals(ctx, client.ApprovalFilter{RunID: id})
	if err != nil || len(open.Approvals) == 0 {
		return err
	}
	a := open.Approvals[0]
	fmt.Fprintf(out, "%s %s [y/N] ", a.Title, a.Action)
	line, _ := bufio.NewReader(in).ReadString('\n')
	d := api.Decide{Decision: perdure.Reject, Comment: "somebody said no", ActionHash: a.ActionHash}
	if strings.TrimSpace(line) == "y" {
		d.Decision, d.Comment = perdure.Approve, ""
	}
	_, err = c.Decide(ctx, a.ID, d)
	return err
}
