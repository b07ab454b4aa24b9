// Limits: a hundred agents behind one key of a model that allows 500 calls a minute. One of them is told 429, and
// closes the door for all. Nobody polls, nobody is dropped, and a waiting agent occupies no worker.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A Refusal is the answer 429 of a model, with its Retry-After.
type Refusal struct{ RetryAfter time.Duration }

func (r *Refusal) Error() string { return "429: ask again in " + r.RetryAfter.String() }

// An Asker is an agent that asks a model.
type Asker struct {
	Model func(ctx context.Context, question string) (string, error)
}

func (a Asker) run(ctx *agent.Context, question string) (string, error) {
	return agent.Step(ctx, "ask", func(ctx context.Context) (string, error) {
		answer, err := a.Model(ctx, question)
		if refused, ok := err.(*Refusal); ok {
			if err := agent.CloseLimit(ctx, "model", "", refused.RetryAfter, "429"); err != nil {
				return "", err
			}
		}
		return answer, err
	}, agent.Limit("model", "", 1), agent.Retry{Attempts: 5})
}

// askAll starts as many agents as there are questions, and waits for their answers.
func askAll(ctx context.Context, c *client.Client, questions int, rate perdure.LimitRate) (answers int, err error) {
	if _, err := c.PutLimit(ctx, "model", api.PutLimit{Rate: &rate}); err != nil {
		return 0, err
	}
	var runs []perdure.RunID
	for n := range questions {
		run, err := c.Start(ctx, perdure.Submission{Kind: "ask", Class: perdure.Agent,
			Input: client.JSON(fmt.Sprint("question ", n))})
		if err != nil {
			return 0, err
		}
		runs = append(runs, run.RunID)
	}
	for _, id := range runs {
		run, _, err := c.Join(ctx, id, time.Hour)
		if err != nil {
			return answers, err
		}
		if run.State == perdure.Completed {
			answers++
		}
	}
	return answers, nil
}

func main() {
	questions := flag.Int("agents", 100, "how many agents ask")
	flag.Parse()
	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		panic(err)
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{Slots: 10})
	calls := make(chan int, 1)
	calls <- 0
	worker.Agent(w, "ask", Asker{func(_ context.Context, question string) (string, error) {
		n := <-calls + 1
		calls <- n
		if n == 10 {
			fmt.Println("call 10 is told 429")
			return "", &Refusal{2 * time.Second}
		}
		return "an answer to " + question, nil
	}}.run)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go w.Run(ctx)
	answers, err := askAll(ctx, c, *questions,
		perdure.LimitRate{Count: 500, Per: perdure.Duration(time.Minute), Burst: 10})
	if err != nil {
		panic(err)
	}
	fmt.Println(answers, "answers in", <-calls, "calls")
}
