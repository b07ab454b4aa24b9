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

// steps are those of the demo's agent.
var steps = []string{"read the alert", "ask the model for a plan", "look at the disk",
	"ask the model what it means", "remove old logs", "write the report"}

const kind = "look-into-alert"

// A report is what a worker prints, as one JSON object a line.
type report struct {
	What  string          `json:"what"`
	At    perdure.Instant `json:"at"`
	Step  int             `json:"step,omitempty"`
	Epoch int64           `json:"epoch,omitempty"`
}

const (
	reportUp       = "up"       // the worker polls
	reportTook     = "took"     // it was granted the run; Step is the number of steps in the journal
	reportBegan    = "began"    // it begins a step
	reportDone     = "done"     // it has executed the step, and sends the result
	reportRecorded = "recorded" // the server has acknowledged the result
)

// Worker is a simple worker on top of the API. It polls, executes one step after the other, and
// commits each before it goes on. It does not repeat steps that are in the journal.
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
	tell := func(n report) {
		n.At = perdure.At(time.Now())
		b, _ := json.Marshal(n)
		fmt.Fprintf(stdout, "%s\n", b)
	}
	tell(report{What: reportUp})
	for {
		polled, err := c.Poll(ctx, name, api.Poll{Kinds: []string{kind}, Slots: 1, Start: true})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			child.Pause(ctx, 50*time.Millisecond) // the server is away
			continue
		}
		for i := range polled.Runs {
			if err := execute(ctx, c, name, dir, dies, &polled.Runs[i], tell); err != nil {
				return err
			}
		}
	}
}

// execute executes the steps that are not in the journal. The step in which the worker is killed
// lasts until then.
func execute(ctx context.Context, c *client.Client, worker, dir string, dies int, g *api.Grant,
	tell func(report)) error {
	recorded := make(map[string]bool)
	for _, j := range g.Journal {
		recorded[j.Key] = true
	}
	tell(report{What: reportTook, Step: len(recorded), Epoch: g.Epoch})
	// The client repeats a commit with the same commit_id until it is answered.
	commit := func(id string, in perdure.Commit) error {
		in.ID, in.RunID, in.Epoch = id, g.RunID, g.Epoch
		_, err := c.Commit(ctx, worker, in)
		return err
	}
	for i, step := range steps {
		if recorded[step] {
			continue
		}
		tell(report{What: reportBegan, Step: i + 1})
		if err := writeEffect(dir, step); err != nil {
			return err
		}
		if i+1 == dies {
			child.Pause(ctx, limit)
		}
		child.Pause(ctx, stepTakes)
		tell(report{What: reportDone, Step: i + 1})
		err := commit(fmt.Sprintf("step-%d", i+1), perdure.Commit{
			Journal: []perdure.JournalEntry{{Key: step, Value: json.RawMessage(`"done"`)}},
			Events:  []perdure.Emitted{{Type: line, Data: client.JSON(map[string]any{"step": i + 1, "name": step})}},
		})
		if err != nil {
			return err
		}
		tell(report{What: reportRecorded, Step: i + 1})
	}
	return commit("end", perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete,
		Result: client.JSON("the disk was full of old logs; they are gone")}})
}

// line is the type of the worker's own lines in the run's log.
const line = "x:step"

// writeEffect is the effect of a step: a line in a file, so that executions can be counted.
func writeEffect(dir, step string) error {
	f, err := os.OpenFile(filepath.Join(dir, "effects.txt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, step)
	return errors.Join(err, f.Close())
}
