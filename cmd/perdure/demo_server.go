package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/watchdog"
)

// What the demo's agent does, step by step.
var demoSteps = []string{"read the alert", "ask the model for a plan", "look at the disk", "ask the model what it means", "remove old logs", "write the report"}

const (
	demoTenant  = "demo"
	demoKind    = "look-into-alert"
	demoWorker  = "worker-1"
	demoNode    = "node-1"
	demoFatal   = 4 // the step in which the first server is killed
	demoStep    = 350 * time.Millisecond
	demoPatient = 800 * time.Millisecond // of the caller
	demoAway    = 900 * time.Millisecond // between the two servers
)

// demoPolicy is the default with a lease and a backoff that are short enough to watch.
func demoPolicy() *perdure.Policy {
	p := perdure.DefaultPolicy()
	p.Lease = 2 * time.Second
	p.BackoffBase = 400 * time.Millisecond
	return &p
}

// news is what the server tells the demo, one JSON object a line.
type news struct {
	What  string          `json:"what"`
	At    perdure.Instant `json:"at"`
	RunID perdure.RunID   `json:"run_id,omitempty"`
	Step  int             `json:"step,omitempty"`
	Epoch int64           `json:"epoch,omitempty"`
	Line  *perdure.Line   `json:"line,omitempty"`
	Stock *stock          `json:"stock,omitempty"`
}

const (
	newsUp       = "up"       // the server serves
	newsAccepted = "accepted" // the submission was acknowledged
	newsBegan    = "began"    // a step is executed
	newsRecorded = "recorded" // its commit was acknowledged
	newsTook     = "took"     // the worker was granted the run
	newsLine     = "line"     // the run's log has a new line
	newsFound    = "found"    // what was in the store at the start
	newsEnd      = "end"      // what is in the store at the end
)

// stock is what a store holds of the run.
type stock struct {
	State   perdure.State  `json:"state"`
	Attempt int            `json:"attempt"`
	Epoch   int64          `json:"epoch"`
	Result  perdure.Value  `json:"result,omitempty"`
	Steps   []string       `json:"steps"` // of the journal, in order
	Lines   []perdure.Line `json:"lines"`
	Broken  int            `json:"broken"` // rows that break an invariant
}

// A server is a store, an engine, a watchdog, a worker and a caller in one process. It writes what happens to
// its standard output and ends when its standard input does, so that it never outlives the demo.
type server struct {
	dir    string
	store  *store.Store
	engine *engine.Engine
	bell   *doorbell.Local
	first  bool // this is the life that ends early

	mu  sync.Mutex
	out *json.Encoder
}

func demoServer(ctx context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) != 1 {
		return errors.New("this is for perdure demo alone")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	s := &server{dir: args[0], bell: &doorbell.Local{}, out: json.NewEncoder(stdout)}
	var err error
	if s.store, err = store.Open(store.Options{Path: filepath.Join(s.dir, "perdure.db")}); err != nil {
		return err
	}
	defer s.store.Close()
	if s.engine, err = engine.New(s.store, engine.Options{Policy: demoPolicy(), Bell: s.bell}); err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	failed := make(chan error, 3)
	start := func(f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	s.tell(news{What: newsUp})
	known, err := s.engine.List(ctx, demoTenant, store.RunFilter{Limit: 1})
	if err != nil {
		return err
	}
	s.first = len(known) == 0
	start(watchdog.New(s.engine, nil).Run)
	start(s.work)
	start(func(ctx context.Context) error { return s.call(ctx, known) })
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	return err
}

func (s *server) tell(n news) {
	n.At = s.store.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(n) // whoever does not listen any more has closed the standard input too
}

// call is the caller: it submits a run and waits for it as long as it has patience, or comes back to the run
// that it knows and waits until it ends.
func (s *server) call(ctx context.Context, known []perdure.Run) error {
	if !s.first {
		return s.callAgain(ctx, known[0].ID)
	}
	op := &engine.Submit{Tenant: demoTenant, Key: "demo", Submission: perdure.Submission{Kind: demoKind, Foreground: true,
		Input: json.RawMessage(`{"alert":"the disk is full"}`), Timeout: perdure.Duration(time.Minute)}}
	if err := s.engine.Do(ctx, op); err != nil {
		return err
	}
	s.tell(news{What: newsAccepted, RunID: op.Run.ID})
	if err := s.engine.Do(ctx, &engine.Attach{Tenant: demoTenant, Node: demoNode, RunIDs: []perdure.RunID{op.Run.ID}}); err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, demoPatient)
	last, ended, err := s.follow(waiting, op.Run.ID, 0)
	stop()
	if err != nil || ended {
		return err
	}
	if err := s.engine.Do(ctx, &engine.Defer{Tenant: demoTenant, RunID: op.Run.ID, Node: demoNode, Reason: "timeout"}); err != nil {
		return err
	}
	_, _, err = s.follow(ctx, op.Run.ID, last)
	return err
}

func (s *server) callAgain(ctx context.Context, id perdure.RunID) error {
	found, err := s.stock(ctx, id)
	if err != nil {
		return err
	}
	s.tell(news{What: newsFound, RunID: id, Stock: found})
	if err := s.engine.Do(ctx, &engine.Attach{Tenant: demoTenant, Node: demoNode, RunIDs: []perdure.RunID{id}}); err != nil {
		return err
	}
	_, ended, err := s.follow(ctx, id, found.Lines[len(found.Lines)-1].Seq)
	if err != nil || !ended {
		return err
	}
	left, err := s.stock(ctx, id)
	if err != nil {
		return err
	}
	s.tell(news{What: newsEnd, RunID: id, Stock: left})
	return nil
}

// follow tells of the lines of a run's log after one, until the run has ended or the context has. It gives the
// last line that it told of.
func (s *server) follow(ctx context.Context, id perdure.RunID, after int64) (last int64, ended bool, err error) {
	for last = after; !ended && ctx.Err() == nil; {
		ring, stop := s.bell.Listen(doorbell.Run(demoTenant, string(id)))
		lines, err := s.engine.Events(context.WithoutCancel(ctx), demoTenant, id, last, 1000)
		if err != nil {
			stop()
			return last, false, err
		}
		for i := range lines {
			s.tell(news{What: newsLine, Line: &lines[i]})
			last = lines[i].Seq
			ended = ended || endsRun(lines[i].Type)
		}
		if !ended {
			select {
			case <-ring:
			case <-time.After(200 * time.Millisecond): // a ring is only a hint
			case <-ctx.Done():
			}
		}
		stop()
	}
	return last, ended, nil
}

func endsRun(line string) bool {
	for _, s := range perdure.States {
		if s.Terminal() && perdure.TerminalLine(s) == line {
			return true
		}
	}
	return false
}

// stock reads what the store holds of a run, and has the store checked.
func (s *server) stock(ctx context.Context, id perdure.RunID) (*stock, error) {
	var out stock
	d, err := s.engine.Get(ctx, demoTenant, id)
	if err != nil {
		return nil, err
	}
	out.State, out.Attempt, out.Epoch, out.Result = d.State, d.Attempt, d.Epoch, d.ResultText
	if out.Lines, err = s.engine.Events(ctx, demoTenant, id, 0, 1000); err != nil {
		return nil, err
	}
	err = s.store.View(ctx, func(v *store.View) error {
		journal, err := v.Journal(demoTenant, id, 0, 100)
		if err != nil {
			return err
		}
		for _, j := range journal {
			out.Steps = append(out.Steps, j.Key)
		}
		broken, err := v.Check(nil)
		out.Broken = len(broken)
		return err
	})
	return &out, err
}

// work is the worker: it polls, and executes what it is granted.
func (s *server) work(ctx context.Context) error {
	for {
		ring, stop := s.bell.Listen(doorbell.Queue(demoTenant, perdure.DefaultQueue))
		op := &engine.Claim{Tenant: demoTenant, Worker: demoWorker, Slots: 1, Start: true}
		if err := s.engine.Do(ctx, op); err != nil {
			stop()
			return err
		}
		for _, g := range op.Grants {
			if err := s.execute(ctx, &g); err != nil {
				stop()
				return err
			}
		}
		select {
		case <-ring:
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			stop()
			return nil
		}
		stop()
	}
}

// execute does the steps that the journal does not have, and records each.
func (s *server) execute(ctx context.Context, g *engine.Grant) error {
	s.tell(news{What: newsTook, RunID: g.Run.ID, Epoch: g.Run.Epoch, Step: len(g.Journal)})
	recorded := make(map[string]bool)
	for _, j := range g.Journal {
		recorded[j.Key] = true
	}
	for i, name := range demoSteps {
		if recorded[name] {
			continue
		}
		beat := &engine.Heartbeat{Tenant: demoTenant, Worker: demoWorker,
			Beats: []engine.BeatOf{{Lease: engine.Lease{RunID: g.Run.ID, Epoch: g.Run.Epoch}, Activity: name}}}
		if err := s.engine.Do(ctx, beat); err != nil {
			return err
		}
		s.tell(news{What: newsBegan, Step: i + 1})
		if err := s.effect(name); err != nil {
			return err
		}
		pause := demoStep
		if s.first && i+1 == demoFatal {
			pause = time.Hour // the demo kills this process before
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		err := s.commit(ctx, g, perdure.Commit{ID: fmt.Sprintf("step-%d-%d", i+1, g.Run.Epoch),
			Journal: []perdure.JournalEntry{{Key: name, Value: json.RawMessage(`"done"`)}},
			Events:  []perdure.Emitted{{Type: perdure.LineToolCompleted, Data: json.RawMessage(perdure.Object("tool", name))}}})
		if err != nil {
			return err
		}
		s.tell(news{What: newsRecorded, Step: i + 1})
	}
	return s.commit(ctx, g, perdure.Commit{ID: fmt.Sprintf("end-%d", g.Run.Epoch),
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"report":"old logs removed, the disk has room again"}`)}})
}

func (s *server) commit(ctx context.Context, g *engine.Grant, c perdure.Commit) error {
	c.RunID, c.Epoch = g.Run.ID, g.Run.Epoch
	op := &engine.Commit{Tenant: demoTenant, Worker: demoWorker, Commit: c}
	if err := s.engine.Do(ctx, op); err != nil {
		return err
	}
	if op.Refused != nil {
		return op.Refused
	}
	return nil
}

// effect is what a step does to the world outside of the store: here, a line in a file, so that the demo can
// count how often each was executed.
func (s *server) effect(name string) error {
	f, err := os.OpenFile(filepath.Join(s.dir, "effects.txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, name)
	return errors.Join(err, f.Close())
}
