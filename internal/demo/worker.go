package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/child"
)

// What the demo's agent does, step by step.
var steps = []string{"read the alert", "ask the model for a plan", "look at the disk", "ask the model what it means", "remove old logs", "write the report"}

const kind = "look-into-alert"

// news is what a worker tells the demo, one JSON object a line.
type news struct {
	What  string          `json:"what"`
	At    perdure.Instant `json:"at"`
	Step  int             `json:"step,omitempty"`
	Epoch int64           `json:"epoch,omitempty"`
}

const (
	newsUp       = "up"       // it asks for work
	newsTook     = "took"     // it was granted the run; Step says how many are in the journal
	newsBegan    = "began"    // a step is executed
	newsDone     = "done"     // it has been executed, and is sent to the server
	newsRecorded = "recorded" // the server has acknowledged it
)

// Worker is a worker as anybody could write it: it polls, executes one step after the other, and has each
// recorded before it goes on. What the journal has it does not do again.
func Worker(ctx context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) != 3 {
		return errors.New("this is for perdure demo alone")
	}
	name, dir := args[0], args[1]
	dies, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	c := client.New(os.Getenv("PERDURE_URL"), os.Getenv("PERDURE_KEY"), client.Options{})
	tell := func(n news) {
		n.At = perdure.At(time.Now())
		b, _ := json.Marshal(n)
		fmt.Fprintf(stdout, "%s\n", b)
	}
	tell(news{What: newsUp})
	for {
		polled, err := c.Poll(ctx, name, api.Poll{Kinds: []string{kind}, Slots: 1, Start: true})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			child.Pause(ctx, 50*time.Millisecond) // the server is away; it will be back
			continue
		}
		for i := range polled.Runs {
			if err := demoExecute(ctx, c, name, dir, dies, &polled.Runs[i], tell); err != nil {
				return err
			}
		}
	}
}

// demoExecute does what is left of the run. The step in which the worker is killed is not over before that, however late the kill comes.
func demoExecute(ctx context.Context, c *client.Client, worker, dir string, dies int, g *api.Grant, tell func(news)) error {
	recorded := make(map[string]bool)
	for _, j := range g.Journal {
		recorded[j.Key] = true
	}
	tell(news{What: newsTook, Step: len(recorded), Epoch: g.Epoch})
	// The client sends a commit again, under its commit_id, until there is an answer.
	say := func(id string, in perdure.Commit) error {
		in.ID, in.RunID, in.Epoch = id, g.RunID, g.Epoch
		_, err := c.Commit(ctx, worker, in)
		return err
	}
	for i, step := range steps {
		if recorded[step] {
			continue
		}
		tell(news{What: newsBegan, Step: i + 1})
		if err := demoEffect(dir, step); err != nil {
			return err
		}
		if i+1 == dies {
			child.Pause(ctx, limit)
		}
		child.Pause(ctx, stepTakes)
		tell(news{What: newsDone, Step: i + 1})
		err := say(fmt.Sprintf("step-%d", i+1), perdure.Commit{
			Journal: []perdure.JournalEntry{{Key: step, Value: json.RawMessage(`"done"`)}},
			Events:  []perdure.Emitted{{Type: line, Data: client.JSON(map[string]any{"step": i + 1, "name": step})}},
		})
		if err != nil {
			return err
		}
		tell(news{What: newsRecorded, Step: i + 1})
	}
	return say("end", perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: client.JSON("the disk was full of old logs; they are gone")}})
}

// demoLine is the type of the worker's own lines in the run's log.
const line = "x:step"

// demoEffect is a step's effect on the world: a line in a file, so that everybody can count.
func demoEffect(dir, step string) error {
	f, err := os.OpenFile(filepath.Join(dir, "effects.txt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, step)
	return errors.Join(err, f.Close())
}
