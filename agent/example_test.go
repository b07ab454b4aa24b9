package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A world is a server in this process. Its workers execute what an example registers.
type world struct {
	*client.Client
	close func()
}

func newWorld(register func(w *worker.Worker)) world {
	policy := perdure.DefaultPolicy()
	policy.BackoffBase = 10 * time.Millisecond // between attempts
	srv, err := embedded.Open(embedded.Options{Policy: &policy})
	if err != nil {
		panic(err)
	}
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	stop := work(c, register)
	return world{c, func() {
		stop()
		srv.Close()
	}}
}

// work runs a worker until it is stopped.
func work(c *client.Client, register func(w *worker.Worker)) (stop func()) {
	w := worker.New(c, worker.Options{})
	register(w)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			panic(err)
		}
	}
}

// start starts a run of an agent.
func (w world) start(kind string, input any) *api.Run {
	run, err := w.Start(context.Background(),
		perdure.Submission{Kind: kind, Class: perdure.Agent, Input: client.JSON(input)})
	if err != nil {
		panic(err)
	}
	return run
}

// end waits until a run has ended, and prints how.
func (w world) end(id perdure.RunID) {
	run, _, err := w.Join(context.Background(), id, time.Minute)
	if err != nil {
		panic(err)
	}
	if run.Error != nil {
		fmt.Println(run.State, run.Error.Code)
		return
	}
	fmt.Println(run.State, string(run.Result))
}

// suspended waits until a run is suspended.
func (w world) suspended(id perdure.RunID) {
	for e, err := range w.Stream(context.Background(), id, 0) {
		if err != nil {
			panic(err)
		}
		if e.Type == "run:suspended" {
			return
		}
	}
}

// A step that has succeeded is not executed again: the second attempt gets its result from the
// journal.
func ExampleStep() {
	tries := 0
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "order", func(ctx *agent.Context, item string) (string, error) {
			price, err := agent.Step(ctx, "price", func(context.Context) (int, error) {
				fmt.Println("asking for the price of", item)
				return 42, nil
			})
			if err != nil {
				return "", err
			}
			return agent.Step(ctx, "charge", func(context.Context) (string, error) {
				fmt.Println("charging", price)
				if tries++; tries == 1 {
					return "", errors.New("the bank is away")
				}
				return "paid", nil
			})
		})
	})
	defer w.close()
	w.end(w.start("order", "a chair").RunID)
	// Output:
	// asking for the price of a chair
	// charging 42
	// charging 42
	// completed "paid"
}

// Children are runs of their own. Any worker may execute them, at the same time.
func ExampleJoinAll() {
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "square", func(_ context.Context, n int) (int, error) { return n * n, nil })
		worker.Agent(w, "sum", func(ctx *agent.Context, n int) (int, error) {
			var squares []*agent.Future[int]
			for i := range n {
				squares = append(squares, agent.Spawn[int](ctx, "square", i+1))
			}
			results, err := agent.JoinAll(ctx, squares...)
			sum := 0
			for _, r := range results {
				sum += r
			}
			return sum, err
		})
	})
	defer w.close()
	w.end(w.start("sum", 4).RunID)
	// Output:
	// completed 30
}

// JoinAllSettled returns the results of the children that succeeded, and the errors of the others.
func ExampleJoinAllSettled() {
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "look", func(ctx context.Context, where string) (string, error) {
			switch where {
			case "attic":
				return "a chest", nil
			case "cellar":
				return "", perdure.Permanent(errors.New("it is locked"))
			}
			<-ctx.Done() // it never returns by itself
			return "", ctx.Err()
		})
		worker.Agent(w, "search", func(ctx *agent.Context, _ struct{}) (string, error) {
			found, err := agent.JoinAllSettled(ctx,
				agent.Spawn[string](ctx, "look", "attic"),
				agent.Spawn[string](ctx, "look", "cellar"),
				agent.Spawn[string](ctx, "look", "woods", agent.Timeout(100*time.Millisecond)))
			if err != nil {
				return "", err
			}
			late := errors.Is(found.Errors[2], agent.ErrTaskTimedOut{})
			return fmt.Sprintf("%s; %d failed, %d out of time: %v", found.Results[0], found.Failed, found.TimedOut,
				late), nil
		})
	})
	defer w.close()
	w.end(w.start("search", nil).RunID)
	// Output:
	// completed "a chest; 1 failed, 1 out of time: true"
}

// SelectOK returns the first result. Children that have not ended by then go on until their parent
// ends.
func ExampleSelectOK() {
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "ask", func(ctx context.Context, whom string) (string, error) {
			switch whom {
			case "the quick one":
				return "", perdure.Permanent(errors.New("no idea"))
			case "the good one":
				return "42", nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		worker.Agent(w, "ask around", func(ctx *agent.Context, _ struct{}) (string, error) {
			first, err := agent.SelectOK(ctx,
				agent.Spawn[string](ctx, "ask", "the slow one"),
				agent.Spawn[string](ctx, "ask", "the quick one"),
				agent.Spawn[string](ctx, "ask", "the good one"))
			return fmt.Sprintf("%s, by number %d; is somebody still thinking: %v", first.Value, first.Index,
				len(first.Remaining) > 0), err
		})
	})
	defer w.close()
	w.end(w.start("ask around", nil).RunID)
	// Output:
	// completed "42, by number 2; is somebody still thinking: true"
}

// Select waits for the first of several things, whatever they are: here for a child, and for
// directions that come while the child works.
func ExampleSelect() {
	listening, finish := make(chan string, 3), make(chan struct{})
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "write", func(context.Context, string) (string, error) {
			<-finish
			return "a book", nil
		})
		worker.Agent(w, "editor", func(ctx *agent.Context, _ struct{}) (string, error) {
			work, wishes := agent.Spawn[string](ctx, "write", "a book"), []string{}
			for {
				steer := agent.OnSignal[string](ctx, "steer") // on a thread: agent.OnMessage[string](ctx)
				first, err := agent.Select(ctx, work, steer)
				if err != nil {
					return "", err
				}
				if first == 0 {
					text, err := work.Result()
					return fmt.Sprint(text, ", with ", wishes), err
				}
				wish, err := steer.Result()
				if err != nil {
					return "", err
				}
				wishes = append(wishes, wish)
				listening <- wish
			}
		})
	})
	defer w.close()
	run := w.start("editor", nil)
	for _, wish := range []string{"less of it", "a map"} {
		if _, err := w.Signal(context.Background(), run.RunID, "steer", client.JSON(wish)); err != nil {
			panic(err)
		}
		for heard := ""; heard != wish; { // an execution that replays hears it again
			heard = <-listening
		}
	}
	close(finish)
	w.end(run.RunID)
	// Output:
	// completed "a book, with [less of it a map]"
}

// FirstOK waits for the first few that complete.
func ExampleFirstOK() {
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "ask", func(_ context.Context, expert int) (string, error) {
			if expert%2 == 0 {
				return "", perdure.Permanent(errors.New("on holiday"))
			}
			return fmt.Sprint("yes from ", expert), nil
		})
		worker.Agent(w, "survey", func(ctx *agent.Context, experts int) (string, error) {
			var asked []*agent.Future[string]
			for n := range experts {
				asked = append(asked, agent.Spawn[string](ctx, "ask", n))
			}
			got, err := agent.FirstOK(ctx, 3, asked...)
			if err != nil {
				return "", err
			}
			for _, late := range got.Remaining {
				if err := late.Cancel(ctx); err != nil {
					return "", err
				}
			}
			return fmt.Sprint(len(got.Values), " answers"), nil
		})
	})
	defer w.close()
	w.end(w.start("survey", 6).RunID)
	// Output:
	// completed "3 answers"
}

// Map has a kind work on many items, a few at the same time.
func ExampleMap() {
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "square", func(_ context.Context, n int) (int, error) { return n * n, nil })
		worker.Agent(w, "squares", func(ctx *agent.Context, numbers []int) ([]int, error) {
			got, err := agent.Map[int](ctx, "square", numbers, agent.MapOptions{Limit: 2})
			return got.Results, err
		})
	})
	defer w.close()
	w.end(w.start("squares", []int{1, 2, 3, 4, 5}).RunID)
	// Output:
	// completed [1,4,9,16,25]
}

// Parallel calls a function for many items. Each call is a step, recorded by itself.
func ExampleParallel() {
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "shout", func(ctx *agent.Context, words []string) ([]string, error) {
			got, err := agent.Parallel(ctx, "shout", words, func(_ context.Context, word string) (string, error) {
				return strings.ToUpper(word), nil
			}, agent.MapOptions{Limit: 8})
			return got.Results, err
		})
	})
	defer w.close()
	w.end(w.start("shout", []string{"hear", "ye"}).RunID)
	// Output:
	// completed ["HEAR","YE"]
}

// Race waits for a limited time. The children go on, and can be joined again.
func ExampleRace() {
	finish := make(chan struct{})
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "think", func(context.Context, struct{}) (string, error) {
			<-finish
			return "42", nil
		})
		worker.Agent(w, "answer", func(ctx *agent.Context, _ struct{}) (string, error) {
			answer := agent.Spawn[string](ctx, "think", nil)
			first, err := agent.Race(ctx, 50*time.Millisecond, answer)
			if errors.Is(err, agent.ErrTimeout) {
				_, err = agent.Step(ctx, "excuse", func(context.Context) (bool, error) {
					fmt.Println("this takes longer; not ended yet:", len(first.Remaining))
					close(finish)
					return true, nil
				})
			}
			if err != nil {
				return "", err
			}
			return answer.Join(ctx)
		})
	})
	defer w.close()
	w.end(w.start("answer", nil).RunID)
	// Output:
	// this takes longer; not ended yet: 1
	// completed "42"
}

// A signal comes from outside, before or while the run waits for it. If none comes in time, Signal
// returns an error that the agent can handle.
func ExampleSignal() {
	type Address struct{ City string }
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "ship", func(ctx *agent.Context, item string) (string, error) {
			to, err := agent.Signal[Address](ctx, "address", time.Hour)
			if errors.Is(err, agent.ErrSignalTimeout) {
				return "kept for pick-up", nil
			}
			return item + " to " + to.City, err
		})
	})
	defer w.close()
	run := w.start("ship", "a chair")
	if _, err := w.Signal(context.Background(), run.RunID, "address", client.JSON(Address{"Delft"})); err != nil {
		panic(err)
	}
	w.end(run.RunID)
	// Output:
	// completed "a chair to Delft"
}

// A person sees exactly what will be done, and decides. A rejection is not an error. Without a
// decision in time the action counts as rejected.
func ExampleApprove() {
	type Push struct{ Branch, Commit string }
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "release", func(ctx *agent.Context, push Push) (string, error) {
			decision, err := agent.Approve(ctx, agent.Approval{Title: "Push to production?", Action: push,
				Timeout: time.Hour})
			if err != nil {
				return "", err
			}
			if !decision.Approved {
				return "not pushed: " + decision.Comment, nil
			}
			return "pushed " + push.Commit, nil
		})
	})
	defer w.close()
	run := w.start("release", Push{"main", "e860fe8"})
	w.suspended(run.RunID)

	open, err := w.Approvals(context.Background(), client.ApprovalFilter{RunID: run.RunID})
	if err != nil {
		panic(err)
	}
	asked := open.Approvals[0]
	fmt.Println(asked.Title, string(asked.Action))
	if _, err := w.Decide(context.Background(), asked.ID,
		api.Decide{Decision: perdure.Approve, ActionHash: asked.ActionHash}); err != nil {
		panic(err)
	}
	w.end(run.RunID)
	// Output:
	// Push to production? {"Branch":"main","Commit":"e860fe8"}
	// completed "pushed e860fe8"
}

// The token of a callback is given to another system, which answers with it once, without an API
// key.
func ExampleCallback() {
	var customer func(ctx context.Context, token string) error
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "pay", func(ctx *agent.Context, amount int) (string, error) {
			paid := agent.Callback[string](ctx, "answer", 24*time.Hour)
			token := paid.Token()
			_, err := agent.Step(ctx, "send the invoice", func(ctx context.Context) (int, error) {
				return amount, customer(ctx, token) // in a link of a mail, say
			})
			if err != nil {
				return "", err
			}
			return paid.Join(ctx)
		})
	})
	defer w.close()
	customer = func(ctx context.Context, token string) error {
		_, err := w.Callback(ctx, token, api.UseCallback{Result: client.JSON("paid in full")})
		return err
	}
	w.end(w.start("pay", 42).RunID)
	// Output:
	// completed "paid in full"
}

// A saga is completed, or its completed steps are undone, the last first.
func ExampleSaga() {
	book := func(what string, free bool) func(context.Context) (string, error) {
		return func(context.Context) (string, error) {
			if !free {
				return "", perdure.Permanent(errors.New("no " + what + " is free"))
			}
			fmt.Println("booked a", what)
			return what, nil
		}
	}
	cancel := agent.Undo(func(_ context.Context, what string) error {
		fmt.Println("gave back the", what)
		return nil
	})
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
			err := agent.Saga(ctx, "book", func() error {
				if _, err := agent.Step(ctx, "flight", book("flight", true), cancel); err != nil {
					return err
				}
				if _, err := agent.Step(ctx, "hotel", book("hotel", true), cancel); err != nil {
					return err
				}
				_, err := agent.Step(ctx, "car", book("car", false), cancel)
				return err
			})
			return "booked", err
		})
	})
	defer w.close()
	w.end(w.start("trip", nil).RunID)
	// Output:
	// booked a flight
	// booked a hotel
	// gave back the hotel
	// gave back the flight
	// failed failed
}

// Delta streams the text of a model into the run's log. Callers can read it now or later.
func ExampleDelta() {
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "tell", func(ctx *agent.Context, _ struct{}) (string, error) {
			return agent.Step(ctx, "model", func(ctx context.Context) (string, error) {
				var whole strings.Builder
				for _, token := range []string{"It ", "goes ", "on."} {
					whole.WriteString(token)
					if err := agent.Delta(ctx, token); err != nil {
						return "", err
					}
				}
				return whole.String(), nil
			})
		})
	})
	defer w.close()
	run := w.start("tell", nil)
	for e, err := range w.Stream(context.Background(), run.RunID, 0) {
		if err != nil {
			panic(err)
		}
		if e.Type == perdure.LineDelta {
			var delta struct{ Text string }
			if err := json.Unmarshal(e.Data, &delta); err != nil {
				panic(err)
			}
			fmt.Print(delta.Text)
		}
	}
	fmt.Println()
	// Output:
	// It goes on.
}

// A run that began under the old code finishes under it. A new run executes the new code.
func ExampleVersion() {
	step := func(ctx *agent.Context, name string) error {
		_, err := agent.Step(ctx, name, func(context.Context) (bool, error) { return true, nil })
		return err
	}
	before := func(w *worker.Worker) {
		worker.Agent(w, "greet", func(ctx *agent.Context, name string) (string, error) {
			if err := step(ctx, "look up"); err != nil {
				return "", err
			}
			if _, err := agent.Signal[any](ctx, "go", time.Hour); err != nil {
				return "", err
			}
			return "Hello, " + name, nil
		})
	}
	after := func(w *worker.Worker) {
		worker.Agent(w, "greet", func(ctx *agent.Context, name string) (string, error) {
			if agent.Version(ctx, "no look-up", 1) < 1 {
				if err := step(ctx, "look up"); err != nil {
					return "", err
				}
			} else {
				name = strings.ToUpper(name)
			}
			if _, err := agent.Signal[any](ctx, "go", time.Hour); err != nil {
				return "", err
			}
			return "Hello, " + name, nil
		})
	}
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "else", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil })
	})
	defer w.close()

	stop := work(w.Client, before)
	early := w.start("greet", "Ada")
	w.suspended(early.RunID)
	stop() // deploy the new code
	defer work(w.Client, after)()
	late := w.start("greet", "Ada")
	for _, run := range []*api.Run{early, late} {
		if _, err := w.Signal(context.Background(), run.RunID, "go", nil); err != nil {
			panic(err)
		}
		w.end(run.RunID)
	}
	// Output:
	// completed "Hello, Ada"
	// completed "Hello, ADA"
}

// A release that removes a step declares it, for the runs that have recorded it.
func ExampleRemoved() {
	before := func(w *worker.Worker) {
		worker.Agent(w, "greet", func(ctx *agent.Context, name string) (string, error) {
			if _, err := agent.Step(ctx, "look up", func(context.Context) (bool, error) {
				return true, nil
			}); err != nil {
				return "", err
			}
			if _, err := agent.Signal[any](ctx, "go", time.Hour); err != nil {
				return "", err
			}
			return "Hello, " + name, nil
		})
	}
	after := func(w *worker.Worker) {
		worker.Agent(w, "greet", func(ctx *agent.Context, name string) (string, error) {
			agent.Removed(ctx, "look up")
			if _, err := agent.Signal[any](ctx, "go", time.Hour); err != nil {
				return "", err
			}
			return "Hello, " + name, nil
		})
	}
	w := newWorld(func(w *worker.Worker) {
		worker.Handle(w, "else", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil })
	})
	defer w.close()

	stop := work(w.Client, before)
	run := w.start("greet", "Ada")
	w.suspended(run.RunID)
	stop() // deploy the new code
	defer work(w.Client, after)()
	if _, err := w.Signal(context.Background(), run.RunID, "go", nil); err != nil {
		panic(err)
	}
	w.end(run.RunID)
	// Output:
	// completed "Hello, Ada"
}
