// Stream: the text of a model, followed while it is written, interrupted in the middle, and
// continued from there. Streamed text stays in the run's log, so a reader that comes late or again
// gets every word once.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
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

const answer = "A run survives its caller's impatience and its server's death: nothing that was accepted is lost."

// model stands for a real one: it returns its answer token by token.
func model(ctx context.Context, token func(string) error) error {
	for _, word := range strings.SplitAfter(answer, " ") {
		if err := token(word); err != nil {
			return err
		}
		time.Sleep(15 * time.Millisecond)
	}
	return ctx.Err()
}

func run(ctx context.Context, out io.Writer) error {
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		return err
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	w := worker.New(c, worker.Options{})
	worker.Handle(w, "ask", func(ctx context.Context, question string) (string, error) {
		worker.Heartbeat(ctx, "llm_streaming")
		var whole strings.Builder
		err := model(ctx, func(token string) error {
			whole.WriteString(token)
			return worker.Delta(ctx, token)
		})
		return whole.String(), err
	})
	working, stop := context.WithCancel(ctx)
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(working) }()

	r, err := c.Start(ctx, perdure.Submission{Kind: "ask", Input: client.JSON("What does it survive?")})
	if err != nil {
		return err
	}
	said, cursor, err := follow(ctx, c, r.RunID, 0, 2) // two lines, and the tab is closed
	if err != nil {
		return err
	}
	rest, _, err := follow(ctx, c, r.RunID, cursor, -1) // and opened again
	if err != nil {
		return err
	}
	fmt.Fprintln(out, said+rest)
	stop()
	return <-drained
}

// follow returns the text of a run after a line of its log: a number of deltas, or all until its
// end.
func follow(ctx context.Context, c *client.Client, id perdure.RunID, after int64, deltas int) (text string,
	cursor int64, err error) {
	for e, err := range c.Stream(ctx, id, after) {
		if err != nil {
			return text, cursor, err
		}
		cursor = e.Seq
		if e.Type != perdure.LineDelta {
			continue
		}
		var d struct{ Text string }
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return text, cursor, err
		}
		text += d.Text
		if deltas--; deltas == 0 {
			break
		}
	}
	return text, cursor, nil
}
