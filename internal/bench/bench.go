// Package bench measures Perdure: the engine in this process, and servers over HTTP that are processes of their own.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/paint"
)

// A Bench is what is measured, and how.
type Bench struct {
	Duration time.Duration
	Settle   time.Duration // before memory is read
	Callers  int
	Workers  int
	Slots    int
	Rate     float64 // of arrivals; 0: as each scenario has it
	Backlog  int     // runs that are drained
	Live     int     // runs that are there while alarms and backlog are measured
	Due      int     // deadlines at one instant
	Streams  int     // that are attached at once
	Lines    int     // of the log that is replayed
	Behind   int     // lines that a stream has missed when it comes back
	Tokens   int     // that one run says
	Steps    int     // of the longest journal that is replayed
	Doorbell string
	Dir      string
	Profiles string // where a server's profiles go; empty: none

	*progress
}

// New makes a bench that tells of its progress.
func New(progressTo io.Writer) *Bench {
	return &Bench{progress: &progress{out: progressTo, overwrite: paint.Colourful(progressTo)}}
}

// Check says what of a bench can't be measured. More streams than a process may have descriptors for are made fewer, with a note.
func (b *Bench) Check(note io.Writer, only, stores, targets []string) error {
	least := min(b.Callers, b.Workers, b.Slots, b.Backlog, b.Live, b.Due, b.Streams, b.Lines, b.Behind, b.Tokens, b.Steps)
	if b.Duration <= 0 || b.Settle < 0 || b.Rate < 0 || least < 1 {
		return errors.New("duration, callers, workers, slots, backlog, live, due, streams, lines, behind, tokens and steps have to be positive")
	}
	names := []string{"all"}
	for _, s := range Scenarios {
		names = append(names, s.Name)
	}
	for _, n := range only {
		if !slices.Contains(names, n) {
			return fmt.Errorf("there is no scenario %q: %s", n, strings.Join(names, ", "))
		}
	}
	for _, t := range targets {
		if t != targetProcess && t != targetHTTP {
			return fmt.Errorf("there is no target %q: process or http", t)
		}
	}
	for _, s := range stores {
		if s != storeSQLite && !isPostgres(s) {
			return fmt.Errorf("there is no store %q: sqlite or postgres://…", s)
		}
	}
	if most := MostStreams(); b.Streams > most {
		fmt.Fprintf(note, "%d streams are too many for the file descriptors that a process may have here (ulimit -n); %d are measured\n", b.Streams, most)
		b.Streams = most
	}
	return nil
}

// A Scenario measures on data of its own and gives a line or more.
type Scenario struct {
	Name, About string
	large       bool     // takes minutes: only when it is asked for
	targets     []string // where it is measured
	postgres    bool     // there alone
	run         func(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error)
}

const (
	targetProcess = "process"
	targetHTTP    = "http"
)

// Scenarios are all there are.
var Scenarios = []Scenario{
	{Name: "submit", About: "submits of many callers at once, each durable when it returns", run: measureSubmit},
	{Name: "drain", About: "a backlog that workers take and finish", run: measureDrain},
	{Name: "life", About: "whole lives: submitted, leased and started by the grant, completed", run: measureLife},
	{Name: "idle", About: "idle dispatch: from a submit that returned to a waiting worker that has the run", run: measureIdle},
	{Name: "wake", About: "the same across two servers on one PostgreSQL", targets: []string{targetHTTP}, postgres: true, run: measureWake},
	{Name: "start", About: "cold start to the first accepted run; memory when idle; size of the binary", targets: []string{targetHTTP}, run: measureStart},
	{Name: "alarms", About: "many live runs: a sweep with nothing due, many deadlines at one instant, lateness", large: true, run: measureAlarms},
	{Name: "backlog", About: "a claim with many queued runs, against one with none", large: true, run: measureBacklog},
	{Name: "streams", About: "many attached streams: memory of each, what they cost when idle, one event to all of them", large: true, targets: []string{targetHTTP}, run: measureStreams},
	{Name: "events", About: "events of many runs, each with an attached stream, from commit to client", large: true, targets: []string{targetHTTP}, run: measureEvents},
	{Name: "replay", About: "a long log read from its beginning, by stream and by polling", targets: []string{targetHTTP}, run: measureReplay},
	{Name: "reconnect", About: "a server starts again and all streams come back at once, each behind", large: true, targets: []string{targetHTTP}, run: measureReconnect},
	{Name: "tokens", About: "a run that streams a long text token by token: lines, bytes, exact replay", targets: []string{targetHTTP}, run: measureTokens},
	{Name: "webhooks", About: "ends of runs that somebody wants to hear of, a tenth of whom can't be reached", targets: []string{targetHTTP}, run: measureWebhooks},
	{Name: "agent-steps", About: "agents that record five steps, one after the other: many at once, and one alone", run: measureAgentSteps},
	{Name: "agent-children", About: "agents that spawn a hundred children and join them: many at once, and one alone", run: measureAgentChildren},
	{Name: "agent-replay", About: "a signal wakes an agent with a long journal: until the step behind it begins", large: true, run: measureAgentReplay},
	{Name: "agent-conversation", About: "a model that calls a tool a hundred times: growth of the store with every call", run: measureAgentConversation},
}

// Measure runs the scenarios that were asked for, each on each store and target that it has.
func (b *Bench) Measure(ctx context.Context, only, stores, targets []string) (*Report, error) {
	r := &Report{Machine: readMachine(b.Dir), Settings: b.settings(), Stores: make(map[string]map[string]string)}
	for _, st := range stores {
		for _, s := range Scenarios {
			wanted := len(only) == 0 && !s.large || slices.Contains(only, s.Name) || slices.Contains(only, "all")
			if !wanted || s.postgres && !isPostgres(st) {
				continue
			}
			for _, t := range targets {
				if s.targets != nil && !slices.Contains(s.targets, t) {
					continue
				}
				if err := b.one(ctx, r, s, st, t); err != nil {
					return r, fmt.Errorf("%s, %s, %s: %w", s.Name, storeName(st), t, err)
				}
			}
		}
	}
	return r, nil
}

// one measures a scenario in a new place.
func (b *Bench) one(ctx context.Context, r *Report, s Scenario, st, target string) (err error) {
	p, err := b.newPlace(ctx, st)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove(context.WithoutCancel(ctx))) }()
	if r.Stores[p.store] == nil {
		if r.Stores[p.store], err = p.settings(ctx); err != nil {
			return err
		}
	}
	stop := b.watch(fmt.Sprintf("%s, %s, %s", s.Name, p.store, target))
	defer stop()
	figures, err := s.run(ctx, b, p, target)
	for _, f := range figures {
		f.Store, f.Target, f.Scenario = p.store, target, s.Name
		f.Goals = b.goals(&f)
		r.Figures = append(r.Figures, f)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (b *Bench) settings() map[string]any {
	return map[string]any{"duration": b.Duration.String(), "callers": b.Callers, "workers": b.Workers, "slots": b.Slots, "rate": b.Rate,
		"backlog": b.Backlog, "live": b.Live, "due": b.Due, "streams": b.Streams, "lines": b.Lines, "behind": b.Behind, "tokens": b.Tokens, "steps": b.Steps}
}
