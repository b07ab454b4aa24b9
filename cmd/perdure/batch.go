package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/cmd/internal/paint"
)

// maxBatchLine bounds a line of a batch. A submission has at most 8 MiB.
const maxBatchLine = 16 << 20

// A batchFlag is the flag --batch of "perdure run".
type batchFlag struct {
	flags *flagSet
	file  string
}

// addBatchFlag adds the flag --batch. With it, the command takes no KIND.
func addBatchFlag(f *flagSet) *batchFlag {
	b := &batchFlag{flags: f}
	f.Func("batch", "start the runs of this `file`, or of standard input with -: one JSON object a line, as in "+
		"POST /api/v1/runs and with an idempotency_key; print a line for each and don't stay", func(file string) error {
		if file == "" {
			return errors.New("it names no file")
		}
		b.file, f.takes = file, nil
		return nil
	})
	return b
}

// withBatch are the flags that --batch can be combined with.
var withBatch = []string{"batch", "url", "key", "ca", "data", "idempotency-key", "json", "detach", "d"}

// run starts the runs of the file. It prints a line for each, and how far it is on stderr.
func (b *batchFlag) run(ctx context.Context, conn *connFlags, key string, stdout, stderr io.Writer, asJSON bool) error {
	other := ""
	b.flags.Visit(func(f *flag.Flag) {
		if !slices.Contains(withBatch, f.Name) {
			other = f.Name
		}
	})
	if other != "" {
		fmt.Fprintf(stderr, "perdure run: --%s is for a single run; with --batch, it is a field of a line\n", other)
		return errUsage
	}
	in := io.Reader(os.Stdin)
	if b.file != "-" {
		file, err := os.Open(b.file)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	s := &batchSender{c: c, key: key, stdout: stdout, stderr: stderr, asJSON: asJSON}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxBatchLine)
	for n := 1; lines.Scan(); n++ {
		if text := bytes.TrimSpace(lines.Bytes()); len(text) > 0 {
			s.add(n, text)
		}
		if len(s.results) == perdure.MaxList {
			if err := s.send(ctx); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", b.file, err)
	}
	if err := s.send(ctx); err != nil {
		return err
	}
	if s.refused > 0 {
		return exitError(exitFail)
	}
	return nil
}

// A batchSender sends lines as runs, and counts them.
type batchSender struct {
	c              *client.Client
	key            string
	stdout, stderr io.Writer
	asJSON         bool

	// results are those of the lines that are not sent yet. A line that is not valid has its error.
	results []batchResult
	runs    []api.BatchRun
	read    int
	refused int
}

// A batchResult is the result of one line.
type batchResult struct {
	Line int `json:"line"`
	api.StartResult
}

// add takes a line.
func (s *batchSender) add(line int, text []byte) {
	r := batchResult{Line: line, StartResult: api.StartResult{Index: s.read}}
	var run api.BatchRun
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&run)
	if err == nil && d.InputOffset() < int64(len(text)) {
		err = errors.New("the line has more than one JSON value")
	}
	if err != nil {
		r.Error = &api.Refusal{Code: perdure.CodeInvalid, Detail: err.Error()}
	} else {
		if run.IdempotencyKey == "" && s.key != "" {
			run.IdempotencyKey = s.key + "/" + strconv.Itoa(s.read)
		}
		s.runs = append(s.runs, run)
	}
	s.results = append(s.results, r)
	s.read++
}

// send starts the runs of the lines so far, and prints the results.
func (s *batchSender) send(ctx context.Context) error {
	if len(s.results) == 0 {
		return nil
	}
	done, failed := s.c.StartMany(ctx, s.runs)
	for i := range s.results {
		r := &s.results[i]
		if r.Error == nil {
			if len(done) == 0 {
				return fmt.Errorf("line %d: %w", r.Line, failed)
			}
			done[0].Index = r.Index
			r.StartResult, done = done[0], done[1:]
		}
		if r.Error != nil {
			s.refused++
		}
		if err := s.print(r); err != nil {
			return err
		}
	}
	s.results, s.runs = s.results[:0], s.runs[:0]
	_, err := fmt.Fprintf(s.stderr, "%d accepted, %d refused\n", s.read-s.refused, s.refused)
	return err
}

// print prints the result of a line.
func (s *batchSender) print(r *batchResult) error {
	if s.asJSON {
		return printJSONLine(s.stdout, r)
	}
	text := ""
	if e := r.Error; e != nil {
		p := api.Problem{Code: e.Code, Detail: e.Detail, Field: e.Field}
		text = paint.Painter{On: paint.Colourful(s.stdout)}.In(paint.Red, literal(p.Error()))
	} else {
		text = string(r.Run.RunID) + " " + statusPainter(s.stdout)(visible(r.Run.Status))
		if r.Duplicate {
			text += " duplicate"
		}
		if r.Run.WebhookSecret != "" {
			fmt.Fprintf(s.stderr, "The secret of the webhook %s, shown this once: %s\n", r.Run.WebhookID,
				r.Run.WebhookSecret)
		}
	}
	_, err := fmt.Fprintf(s.stdout, "%d %s\n", r.Line, text)
	return err
}
