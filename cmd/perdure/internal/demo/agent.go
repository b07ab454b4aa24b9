package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// A report is what the agent's process prints, as one JSON object a line.
type report struct {
	What string          `json:"what"`
	At   perdure.Instant `json:"at"`
}

const (
	reportUp    = "up"    // the process asks for work
	reportBegan = "began" // it begins to look at the disk
	reportDone  = "done"  // df has ended
)

// script is the model. It answers as a model would that may delegate: the first two rules are the
// supervisor's, the others its worker's.
var script = mockmodel.Script{Rules: []mockmodel.Rule{
	{Match: mockmodel.Match{Offers: "spawn_worker", Role: "user"},
		Answer: mockmodel.Answer{Text: "Let me look.", ToolCalls: []mockmodel.Call{{Name: "spawn_worker",
			Arguments: map[string]any{"task": "Check the disk space of this machine.", "wait": 60}}}}},
	{Match: mockmodel.Match{Tool: "spawn_worker"},
		Answer: mockmodel.Answer{Text: "A worker has looked at the disk. {{last}}"}},
	{Match: mockmodel.Match{Offers: "disk_space", Role: "user"},
		Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{{Name: "disk_space", Arguments: map[string]any{}}},
			FirstToken: perdure.Duration(modelTakes)}},
	{Match: mockmodel.Match{Tool: "disk_space"},
		Answer: mockmodel.Answer{Text: "df says:\n{{last}}", FirstToken: perdure.Duration(modelTakes)}},
}}

// Agent is the process that the demo starts beside the server: a supervisor and its workers, as a program
// of a user would have them, with a scripted model.
func Agent(ctx context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) != 1 {
		return errors.New("this is for perdure demo alone")
	}
	tell := func(what string) {
		b, _ := json.Marshal(report{what, now()})
		fmt.Fprintf(stdout, "%s\n", b)
	}
	m, stop, err := scripted()
	if err != nil {
		return err
	}
	defer stop()
	s, err := supervisor.New(supervisor.Options{Model: m, WorkerTools: []supervisor.Tool{diskSpace(args[0], tell)}})
	if err != nil {
		return err
	}
	c := client.New(os.Getenv("PERDURE_URL"), os.Getenv("PERDURE_KEY"), client.Options{})
	w := worker.New(c, worker.Options{ID: "agents"})
	s.Register(w)
	tell(reportUp)
	return w.Run(ctx)
}

// scripted serves the script as a model on a port of this machine.
func scripted() (m *model.Client, stop func() error, err error) {
	h, err := mockmodel.New(script)
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	hs := &http.Server{Handler: h}
	go hs.Serve(l)
	m, err = model.New(model.Options{Models: []model.Endpoint{
		{BaseURL: "http://" + l.Addr().String() + "/v1", Model: "scripted"}}})
	return m, hs.Close, err
}

// diskSpace is the worker's tool. It waits as if the disk was slow, and executes df. It is not declared
// as repeatable, so Perdure never calls it twice.
func diskSpace(dir string, tell func(what string)) supervisor.Tool {
	return supervisor.Func(supervisor.Spec{Name: "disk_space", Description: "the disk space of this machine"},
		func(ctx context.Context, _ struct{}) (string, error) {
			tell(reportBegan)
			if err := writeEffect(dir); err != nil {
				return "", err
			}
			timer.Sleep(ctx, diskTakes)
			out, err := exec.CommandContext(ctx, "df", "-h", "/").Output()
			if err != nil {
				return "", err
			}
			tell(reportDone)
			return string(out), nil
		})
}

// writeEffect adds a line to a file, so that executions can be counted.
func writeEffect(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "effects.txt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, time.Now().Format(time.RFC3339Nano))
	return errors.Join(err, f.Close())
}
