package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const benchAbout = `Measures this machine: the engine in this process, and a server of its own process over HTTP; on SQLite and, with
the URL of a PostgreSQL that may create databases, there. Every scenario has new data, and every write is durable
before it counts. Where callers come by a schedule (the open loop), a latency counts from the scheduled instant, so
that a slow answer delays nobody else's question; the closed loop is for throughput alone.

  perdure bench                                          the quick ones
  perdure bench --scenario all --store sqlite,postgres://…
  perdure bench --scenario life --duration 2m            sustained, not a burst
  perdure bench --scenario submit --target http --rate 2000

Scenarios:
`

// A bench is what is measured, and how.
type bench struct {
	duration time.Duration
	settle   time.Duration // before memory is read
	callers  int
	workers  int
	slots    int
	rate     float64 // of arrivals; 0: as each scenario has it
	backlog  int     // runs that are drained
	live     int     // runs that are there while alarms and backlog are measured
	due      int     // deadlines at one instant
	streams  int     // that are attached at once
	lines    int     // of the log that is replayed
	behind   int     // lines that a stream has missed when it comes back
	tokens   int     // that one run says
	steps    int     // of the longest journal that is replayed
	doorbell string
	dir      string
	profiles string // where a server's profiles go; empty: none

	*progress
}

// A benchScenario measures on data of its own and gives a line or more.
type benchScenario struct {
	name, about string
	large       bool     // takes minutes: only when it is asked for
	targets     []string // where it is measured
	postgres    bool     // there alone
	run         func(ctx context.Context, b *bench, p *benchPlace, target string) ([]benchFigure, error)
}

const (
	targetProcess = "process"
	targetHTTP    = "http"
)

var benchScenarios = []benchScenario{
	{name: "submit", about: "submits of many callers at once, each durable when it returns", run: benchSubmit},
	{name: "drain", about: "a backlog that workers take and finish", run: benchDrain},
	{name: "life", about: "whole lives: submitted, leased and started by the grant, completed", run: benchLife},
	{name: "idle", about: "idle dispatch: from a submit that returned to a waiting worker that has the run", run: benchIdle},
	{name: "wake", about: "the same across two servers on one PostgreSQL", targets: []string{targetHTTP}, postgres: true, run: benchWake},
	{name: "start", about: "cold start to the first accepted run; memory when idle; size of the binary", targets: []string{targetHTTP}, run: benchStart},
	{name: "alarms", about: "many live runs: a sweep with nothing due, many deadlines at one instant, lateness", large: true, run: benchAlarms},
	{name: "backlog", about: "a claim with many queued runs, against one with none", large: true, run: benchBacklog},
	{name: "streams", about: "many attached streams: memory of each, what they cost when idle, one event to all of them", large: true, targets: []string{targetHTTP}, run: benchStreams},
	{name: "events", about: "events of many runs, each with an attached stream, from commit to client", large: true, targets: []string{targetHTTP}, run: benchEvents},
	{name: "replay", about: "a long log read from its beginning, by stream and by polling", targets: []string{targetHTTP}, run: benchReplay},
	{name: "reconnect", about: "a server starts again and all streams come back at once, each behind", large: true, targets: []string{targetHTTP}, run: benchReconnect},
	{name: "tokens", about: "a run that streams a long text token by token: lines, bytes, exact replay", targets: []string{targetHTTP}, run: benchTokens},
	{name: "webhooks", about: "ends of runs that somebody wants to hear of, a tenth of whom can't be reached", targets: []string{targetHTTP}, run: benchWebhooks},
	{name: "agent-steps", about: "agents that record five steps, one after the other: many at once, and one alone", run: benchAgentSteps},
	{name: "agent-children", about: "agents that spawn a hundred children and join them: many at once, and one alone", run: benchAgentChildren},
	{name: "agent-replay", about: "a signal wakes an agent with a long journal: until the step behind it begins", large: true, run: benchAgentReplay},
	{name: "agent-conversation", about: "a model that calls a tool a hundred times: growth of the store with every call", run: benchAgentConversation},
}

func benchCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	about := benchAbout
	names := []string{"all"}
	for _, s := range benchScenarios {
		names = append(names, s.name)
		about += fmt.Sprintf("\n  %-18s %s", s.name, s.about)
	}
	f := flags("bench", about, stderr)
	b := &bench{progress: &progress{out: stderr, overwrite: colourful(stderr)}}
	only := f.String("scenario", "", "these `names`, separated by commas, or all (default: all that take no minutes)")
	target := f.String("target", "process,http", "`where`: process, http or both; a server over HTTP is a process of its own")
	stores := f.String("store", "sqlite", "`stores`, separated by commas: sqlite, postgres://…")
	f.StringVar(&b.doorbell, "doorbell", "", "`nats://…`: wake is measured with it too")
	f.DurationVar(&b.duration, "duration", 10*time.Second, "how long a scenario measures")
	f.DurationVar(&b.settle, "settle", 10*time.Second, "how long a server idles before its memory is read")
	f.IntVar(&b.callers, "callers", 128, "callers at once, in the closed loop")
	f.IntVar(&b.workers, "workers", 4, "workers at once")
	f.IntVar(&b.slots, "slots", 256, "runs that a worker takes at once")
	f.Float64Var(&b.rate, "rate", 0, "arrivals a `second` by a schedule: submit and life as open loops; idle and wake with another rate than 50")
	f.IntVar(&b.backlog, "backlog", 50_000, "runs that are drained")
	f.IntVar(&b.live, "live", 1_000_000, "live runs of alarms, queued runs of backlog")
	f.IntVar(&b.due, "due", 100_000, "deadlines at one instant")
	f.IntVar(&b.streams, "streams", 10_000, "streams that are attached at once; at most three quarters of the file descriptors that a process may have")
	f.IntVar(&b.lines, "lines", 100_000, "lines of the log that replay reads")
	f.IntVar(&b.behind, "behind", 200, "lines that a stream of reconnect has missed")
	f.IntVar(&b.tokens, "tokens", 100_000, "tokens of the text that a run streams")
	f.IntVar(&b.steps, "steps", 10_000, "steps of the longest journal that an agent replays")
	f.StringVar(&b.dir, "dir", "", "`folder` for the data (default: a temporary one)")
	asJSON := f.Bool("json", false, "print JSON")
	cpu := f.String("cpuprofile", "", "write a CPU profile of this process to a `file`: of the engine with --target process, of the callers alone with http")
	mem := f.String("memprofile", "", "write a profile of this process's allocations to a `file`")
	f.StringVar(&b.profiles, "server-profile", "", "`prefix` of files for profiles of the server: its CPU, and its memory while it has streams")
	if err := parse(f, args); err != nil {
		return err
	}
	wrong := func(format string, args ...any) error {
		fmt.Fprintf(stderr, "perdure bench: "+format+"\n", args...)
		return errUsage
	}
	if b.duration <= 0 || b.settle < 0 || b.rate < 0 || min(b.callers, b.workers, b.slots, b.backlog, b.live, b.due, b.streams, b.lines, b.behind, b.tokens, b.steps) < 1 {
		return wrong("duration, callers, workers, slots, backlog, live, due, streams, lines, behind, tokens and steps have to be positive")
	}
	for _, n := range list(*only) {
		if !slices.Contains(names, n) {
			return wrong("there is no scenario %q: %s", n, strings.Join(names, ", "))
		}
	}
	for _, t := range list(*target) {
		if t != targetProcess && t != targetHTTP {
			return wrong("there is no target %q: process or http", t)
		}
	}
	for _, s := range list(*stores) {
		if s != storeSQLite && !isPostgres(s) {
			return wrong("there is no store %q: sqlite or postgres://…", s)
		}
	}
	if most := mostStreams(); b.streams > most {
		fmt.Fprintf(stderr, "%d streams are too many for the file descriptors that a process may have here (ulimit -n); %d are measured\n", b.streams, most)
		b.streams = most
	}
	stop, err := profile(*cpu, *mem)
	if err != nil {
		return err
	}
	r, err := b.measure(ctx, list(*only), list(*stores), list(*target))
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if len(r.Figures) == 0 {
		return wrong("nothing of this can be measured on %s", *stores)
	}
	if *asJSON {
		return printJSON(stdout, r)
	}
	return r.print(stdout, painter{on: colourful(stdout)})
}

// list splits a list of names.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// measure runs the scenarios that were asked for, each on each store and target that it has.
func (b *bench) measure(ctx context.Context, only, stores, targets []string) (*benchReport, error) {
	r := &benchReport{Machine: readMachine(b.dir), Settings: b.settings(), Stores: make(map[string]map[string]string)}
	for _, st := range stores {
		for _, s := range benchScenarios {
			wanted := len(only) == 0 && !s.large || slices.Contains(only, s.name) || slices.Contains(only, "all")
			if !wanted || s.postgres && !isPostgres(st) {
				continue
			}
			for _, t := range targets {
				if s.targets != nil && !slices.Contains(s.targets, t) {
					continue
				}
				if err := b.one(ctx, r, s, st, t); err != nil {
					return r, fmt.Errorf("%s, %s, %s: %w", s.name, storeName(st), t, err)
				}
			}
		}
	}
	return r, nil
}

// one measures a scenario in a new place.
func (b *bench) one(ctx context.Context, r *benchReport, s benchScenario, st, target string) (err error) {
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
	stop := b.watch(fmt.Sprintf("%s, %s, %s", s.name, p.store, target))
	defer stop()
	figures, err := s.run(ctx, b, p, target)
	for _, f := range figures {
		f.Store, f.Target, f.Scenario = p.store, target, s.name
		f.Goals = b.goals(&f)
		r.Figures = append(r.Figures, f)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (b *bench) settings() map[string]any {
	return map[string]any{"duration": b.duration.String(), "callers": b.callers, "workers": b.workers, "slots": b.slots, "rate": b.rate,
		"backlog": b.backlog, "live": b.live, "due": b.due, "streams": b.streams, "lines": b.lines, "behind": b.behind, "tokens": b.tokens, "steps": b.steps}
}
