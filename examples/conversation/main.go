// Conversation: a turn that ends while its work goes on. The agent answers at once, "I'll tell
// you", and its run completes. When its children have ended, one new run continues on the thread
// and reports the results.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
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

// assist executes one turn. The input of a continuation says that it is one.
func assist(ctx *agent.Context, in struct{ Trigger string }) (string, error) {
	if in.Trigger != "chord" {
		if err := agent.Message(ctx, perdure.RoleAssistant, "Looking; I'll tell you."); err != nil {
			return "", err
		}
		return agent.Continue(ctx, "looking", agent.Spawn[string](ctx, "check", "disk"),
			agent.Spawn[string](ctx, "check", "load"))
	}
	said, err := ctx.History()
	if err != nil {
		return "", err
	}
	answer := "Done:"
	for _, m := range said {
		var check struct{ Key, Status, Result string }
		if m.Role == perdure.RoleTool && json.Unmarshal(m.Content, &check) == nil {
			answer += fmt.Sprintf(" %s: %s %s;", check.Key, check.Status, check.Result)
		}
	}
	return answer, agent.Message(ctx, perdure.RoleAssistant, answer)
}

func run(ctx context.Context, out io.Writer) error {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		return err
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	worker.Agent(w, "assist", assist)
	worker.Handle(w, "check", func(_ context.Context, what string) (string, error) {
		time.Sleep(300 * time.Millisecond)
		return "the " + what + " is fine", nil
	})
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()

	thread, err := c.CreateThread(ctx, nil)
	if err != nil {
		return err
	}
	turn, _, err := c.Run(ctx,
		perdure.Submission{Kind: "assist", ThreadID: thread.ThreadID,
			Messages: []perdure.Message{{Role: perdure.RoleUser, Content: client.JSON("How is cube?")}}}, time.Minute)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the first turn is over:", string(turn.Result))
	for turn.ContinuedByRunID == "" {
		time.Sleep(20 * time.Millisecond)
		if turn, err = c.Get(ctx, turn.RunID); err != nil {
			return err
		}
	}
	if _, _, err := c.Join(ctx, turn.ContinuedByRunID, time.Minute); err != nil {
		return err
	}
	said, err := c.Messages(ctx, thread.ThreadID, 0)
	if err != nil {
		return err
	}
	for _, m := range said.Messages {
		if m.Role != perdure.RoleTool {
			fmt.Fprintf(out, "%s: %s\n", m.Role, m.Content)
		}
	}
	stop()
	return <-drained
}
