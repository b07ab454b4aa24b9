package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// This file lets perdure builds check use a worker's own program: the command starts it with an
// environment variable, and Run makes a check and returns, instead of polling. The program may have
// several workers. Each appends its lines to one file, from which the command takes the result.

// Checking tells whether the program was started by perdure builds check. [Worker.Run] then replays live
// runs and returns. A program can leave out what it does beside its workers, such as migrations.
func Checking() bool { return os.Getenv(session.CheckVariable) != "" }

// runCheck makes the check that the environment asks for, and appends its result to the file.
func (w *Worker) runCheck(ctx context.Context) error {
	var ask session.CheckRequest
	if err := json.Unmarshal([]byte(os.Getenv(session.CheckVariable)), &ask); err != nil {
		return fmt.Errorf("worker: %s is not what perdure builds check writes: %w", session.CheckVariable, err)
	}
	if err := appendLine(ask.Report, session.CheckLine{Began: true}); err != nil {
		return err
	}
	line := session.CheckLine{Ended: true}
	report, err := w.checkFor(ctx, &ask)
	if err == nil {
		line.Report, err = perdure.Marshal(report)
	}
	if err != nil {
		line.Error = err.Error()
	}
	return appendLine(ask.Report, line)
}

// checkFor makes a check, and prints its progress.
func (w *Worker) checkFor(ctx context.Context, ask *session.CheckRequest) (*CheckReport, error) {
	opt := CheckOptions{Files: ask.Files, Sample: ask.Sample, AtOnce: ask.AtOnce}
	if ask.URL != "" {
		with := client.Options{Tenant: ask.Tenant}
		if ask.CA != "" {
			var err error
			if with.RootCAs, err = client.LoadCA(ask.CA); err != nil {
				return nil, err
			}
		}
		opt.Client = client.New(ask.URL, ask.Key, with)
		defer opt.Client.Close()
	}
	began := time.Now()
	var said atomic.Int64
	opt.Progress = func(done, held int) {
		if s := int64(time.Since(began) / progressEvery); s > said.Load() {
			said.Store(s)
			fmt.Fprintf(os.Stderr, "%d runs replayed, %d would be held\n", done, held)
		}
	}
	return Check(ctx, w, opt)
}

// progressEvery is the time between two lines about the progress.
const progressEvery = 2 * time.Second

// appendLine adds a line to the file of results. The system appends a short write as a whole, and a report
// is written by one call.
func appendLine(file string, line session.CheckLine) error {
	text, err := perdure.Marshal(line)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("worker: the file of perdure builds check: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	return cmp.Or(err, f.Close())
}
