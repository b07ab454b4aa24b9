// Package bench is what perdure-bench runs. It measures the engine in this process, and servers of the
// program perdure over HTTP, on SQLite and on PostgreSQL.
//
// # How it works
//
// A [Scenario] measures one thing and returns figures. Each runs on new data (place), against each
// target that it has: the engine in this process, or a server (system). A figure is a rate, a size
// or a distribution of latencies. Figures are compared with the goals of the project in report.go.
//
// There are two kinds of load. In a closed loop each caller waits for its answer before the next
// call; that measures throughput. In an open loop calls come at random instants with a given rate.
// A latency counts from the instant at which the call was due. A slow answer therefore does not
// delay the next call, and does not hide from the figures.
//
// Thousands of streams would compete with the server for file descriptors and memory, so they are
// in a process of their own (streams_clients.go). The bench sends it requests as JSON lines.
//
// # What it is not
//
// It makes no claims about other machines. The report has the machine, the settings of the database
// and the time of one sync, on which all figures depend. Benchmarks of single functions are in
// /bench.
//
// # Where to start reading
//
//   - bench.go: the table of scenarios.
//   - targets.go: what is measured. place.go: where its data is.
//   - scenarios.go: the short scenarios; one file for each group of the others. sdks.go starts the
//     workers of other languages.
//   - samples.go: loops, latencies and progress.
//   - report.go: figures, goals and the machine. page.go: docs/results.md from recorded reports.
//
// # Invariants
//
//   - Every write is durable before it counts.
//   - A scenario never sees the data of another one, and its data is removed.
//   - A scenario also checks its results: a wrong answer is an error and not a figure.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"

	"github.com/perdure/perdure/cmd/internal/paint"
	"github.com/perdure/perdure/internal/server/store"
)

// A Bench has the sizes of the scenarios.
type Bench struct {
	Duration time.Duration
	Settle   time.Duration // pause before memory is read
	Callers  int
	Workers  int
	Slots    int
	Rate     float64       // calls a second of open loops; 0 means the scenario's own
	Backlog  int           // runs of drain
	Live     int           // live runs of alarms and backlog
	Due      int           // deadlines at one instant
	Streams  int           // attached streams
	Lines    int           // lines of the replayed log
	Behind   int           // lines that a stream has missed when it reconnects
	Tokens   int           // tokens that one run streams
	Steps    int           // steps of the longest replayed journal
	Sync     time.Duration // how much longer a sync of SQLite takes, in process
	Ended    int           // ended runs that the store of jobs has already
	Queues   int           // further queues with queued runs
	Tenants  int           // further tenants with queued runs
	Input    int           // bytes of a job's input, or 0 for a small one
	Doorbell string
	Dir      string
	SDKs     string // folder of the SDKs in other languages
	// Program is the file of the program perdure, whose servers are measured. Check sets the default.
	Program  string
	Profiles string // prefix of the files for a server's profiles, or empty for none

	*progress
}

// New returns a bench that prints its progress.
func New(progressTo io.Writer) *Bench {
	return &Bench{progress: &progress{out: progressTo, overwrite: paint.Colourful(progressTo)}}
}

// Check returns an error if something can't be measured. It finds the program perdure if none is given,
// and reduces the number of streams to the file descriptors that a process may have, and prints that.
func (b *Bench) Check(note io.Writer, only, stores, targets []string) error {
	least := min(b.Callers, b.Workers, b.Slots, b.Backlog, b.Live, b.Due, b.Streams, b.Lines, b.Behind, b.Tokens,
		b.Steps)
	if b.Sync != 0 && (b.Sync < 0 || !slices.Equal(targets, []string{targetProcess}) ||
		!slices.Equal(stores, []string{storeSQLite})) {
		return errors.New("a slower sync is a time, and is measured with --target process --store sqlite")
	}
	if min(b.Ended, b.Queues, b.Tenants) < 0 {
		return errors.New("ended, queues and tenants must not be negative")
	}
	if b.Input != 0 && (b.Input < 2 || b.Input > perdure.MaxValue) {
		return fmt.Errorf("an input has 2 to %d bytes", perdure.MaxValue)
	}
	if b.Duration <= 0 || b.Settle < 0 || b.Rate < 0 || least < 1 {
		return errors.New("duration, callers, workers, slots, backlog, live, due, streams, lines, behind, tokens and " +
			"steps have to be positive")
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
	if slices.Contains(targets, targetHTTP) {
		if err := b.findProgram(); err != nil {
			return err
		}
	}
	if most := MostStreams(); b.Streams > most {
		fmt.Fprintf(note,
			"%d streams are too many for the file descriptors that a process may have here (ulimit -n); "+
				"%d are measured\n", b.Streams, most)
		b.Streams = most
	}
	return nil
}

// A Scenario measures on data of its own and returns one figure or more.
type Scenario struct {
	Name, About string
	large       bool     // takes minutes, so it runs only if it is named
	targets     []string // nil means all
	postgres    bool     // runs on PostgreSQL only
	run         func(ctx context.Context, b *Bench, p *place, target string) ([]Figure, error)
}

const (
	targetProcess = "process"
	targetHTTP    = "http"
)

// Scenarios lists all scenarios.
var Scenarios = []Scenario{
	{Name: "jobs", About: "callers who start a run and wait for its result: many at once, and one alone",
		run: measureJobs},
	{Name: "jobs-grown", About: "the same on a store that gets more and more ended runs", large: true,
		run: measureJobsGrown},
	{Name: "jobs-enqueue", About: "callers who start runs, one call for each, and do not wait",
		run: measureJobsEnqueue},
	{Name: "jobs-batch", About: "callers who start runs, a thousand with each call, and do not wait",
		run: measureJobsBatch},
	{Name: "jobs-drain", About: "a backlog that one worker executes, until the last result is stored",
		run: measureJobsDrain},
	{Name: "engine-submit", About: "without the SDK: submits of many callers at once, each durable when it returns",
		run: measureSubmit},
	{Name: "engine-drain", About: "without the SDK: a backlog that workers take and finish", run: measureDrain},
	{Name: "engine-life", About: "without the SDK: whole lives, submitted, leased and started by the grant, completed",
		run: measureLife},
	{Name: "idle", About: "idle dispatch: from a submit that returned to a waiting worker that has the run",
		run: measureIdle},
	{Name: "wake", About: "the same across two servers on one PostgreSQL", targets: []string{targetHTTP},
		postgres: true, run: measureWake},
	{Name: "fleet",
		About:   "three servers on one PostgreSQL: against one, a dead one, a noisy tenant, an index under load",
		targets: []string{targetHTTP}, postgres: true, large: true, run: measureFleet},
	{Name: "start", About: "cold start to the first accepted run; memory when idle; size of the binary",
		targets: []string{targetHTTP}, run: measureStart},
	{Name: "footprint", About: "what an ended run leaves in the store: bytes with indexes, and rows",
		run: measureFootprint},
	{Name: "alarms", About: "many live runs: a sweep with nothing due, many deadlines at one instant, lateness",
		large: true, run: measureAlarms},
	{Name: "backlog", About: "a claim with many queued runs, against one with none", large: true, run: measureBacklog},
	{Name: "limits", About: "a backlog under a limit that never binds; from a freed slot to the next grant",
		large: true, run: measureLimits},
	{Name: "limits-backlog", About: "a claim beside many runs that wait at limits, against one in an empty store",
		large: true, run: measureLimitsBacklog},
	{Name: "schedules", About: "ten thousand schedules in a minute, and deadlines of another tenant", large: true,
		run: measureSchedules},
	{Name: "streams",
		About: "many attached streams: memory of each, what they cost when idle, one event to all of them",
		large: true, targets: []string{targetHTTP}, run: measureStreams},
	{Name: "events", About: "events of many runs, each with an attached stream, from commit to client",
		large: true, targets: []string{targetHTTP}, run: measureEvents},
	{Name: "feed", About: "sockets that show a page of runs while these change; lists beside many ended runs",
		large: true, targets: []string{targetHTTP}, run: measureFeed},
	{Name: "replay", About: "a long log read from its beginning, by stream and by polling",
		targets: []string{targetHTTP}, run: measureReplay},
	{Name: "reconnect", About: "a server starts again and all streams come back at once, each behind", large: true,
		targets: []string{targetHTTP}, run: measureReconnect},
	{Name: "tokens", About: "a run that streams a long text token by token: lines, bytes, exact replay",
		targets: []string{targetHTTP}, run: measureTokens},
	{Name: "webhooks", About: "ends of runs that somebody wants to hear of, a tenth of whom can't be reached",
		targets: []string{targetHTTP}, run: measureWebhooks},
	{Name: "agent-steps", About: "agents that record five steps, one after the other: many at once, and one alone",
		run: measureAgentSteps},
	{Name: "agent-children",
		About: "agents that spawn a hundred children and join them: many at once, and one alone",
		run:   measureAgentChildren},
	{Name: "agent-parallel",
		About: "agents that record a hundred steps at the same time: many at once, and one alone",
		run:   measureAgentParallel},
	{Name: "agent-replay", About: "a signal wakes an agent with a long journal: until the step behind it begins",
		large: true, run: measureAgentReplay},
	{Name: "sdks", About: "callers who wait for runs, with the workers of the SDKs in turns", large: true,
		targets: []string{targetHTTP}, run: measureSDKs},
	{Name: "doors", About: "callers who wait for results at the API and at each door, in turns; streams at both",
		large: true, targets: []string{targetHTTP}, run: measureDoors},
	{Name: "agent-conversation",
		About: "a model that calls a tool a hundred times: growth of the store with every call",
		run:   measureAgentConversation},
}

// Measure runs the selected scenarios, on each of their stores and targets.
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

// one runs a scenario in a new place.
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
	stop := b.show(fmt.Sprintf("%s, %s, %s", s.Name, p.store, target))
	defer stop()
	store.SlowDown(b.Sync)
	defer store.SlowDown(0)
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
	return map[string]any{"duration": b.Duration.String(), "callers": b.Callers, "workers": b.Workers,
		"slots": b.Slots, "rate": b.Rate,
		"backlog": b.Backlog, "live": b.Live, "due": b.Due, "streams": b.Streams, "lines": b.Lines,
		"behind": b.Behind, "tokens": b.Tokens, "steps": b.Steps, "sync": b.Sync.String(),
		"ended": b.Ended, "queues": b.Queues, "tenants": b.Tenants, "input": b.Input}
}
