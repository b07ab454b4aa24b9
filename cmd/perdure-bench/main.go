// Command perdure-bench measures this machine: the engine in its own process, and servers of the
// program perdure over HTTP. It is a program of its own, so that the product does not carry it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure/cmd/internal/paint"
	"github.com/perdure/perdure/cmd/perdure-bench/internal/bench"
)

// Exit codes, as those of perdure.
const (
	exitOK    = 0
	exitFail  = 1
	exitUsage = 2
)

// errUsage is a mistake on the command line. Its explanation has been printed.
var errUsage = errors.New("usage")

const about = `Usage: perdure-bench [flags]

Measures this machine: the engine in this process, and a server of the program perdure, in a process of
its own, over HTTP; on SQLite and, with the URL of a PostgreSQL that may create databases, there. Every
scenario has new data, and every write is durable before it counts. In an open loop calls come by a
schedule, and a latency counts from the scheduled instant, so that a slow answer delays no other call.
A closed loop is for throughput alone.

  perdure-bench                                          the quick ones
  perdure-bench --scenario all --store sqlite,postgres://…
  perdure-bench --scenario jobs --duration 2m            sustained, not a burst
  perdure-bench --scenario engine-submit --target http --rate 2000
  perdure-bench --scenario jobs --target http --perdure /opt/old/perdure

Scenarios:

`

func main() {
	// The engine in this process is measured with the garbage collection of perdure serve.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := measure
	if len(args) > 0 { // the bench starts this program again
		switch args[0] {
		case bench.ClientsCommand:
			command, args = bench.Clients, args[1:]
		case bench.ServeCommand:
			command, args = bench.Serve, args[1:]
		case bench.WorkCommand:
			command, args = bench.Work, args[1:]
		}
	}
	switch err := command(ctx, args, stdout, stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		return exitUsage
	default:
		fmt.Fprintln(stderr, "perdure-bench:", err)
		return exitFail
	}
}

// measure reads the flags, measures and prints the report.
func measure(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	b := bench.New(stderr)
	f := flag.NewFlagSet("perdure-bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, about)
		for _, s := range bench.Scenarios {
			fmt.Fprintf(stderr, "  %-18s %s\n", s.Name, s.About)
		}
		fmt.Fprint(stderr, "\nFlags:\n\n")
		f.PrintDefaults()
	}
	only := f.String("scenario", "", "these `names`, separated by commas, or all (default: all that take no minutes)")
	target := f.String("target", "process,http",
		"`where`: process, http or both; a server over HTTP is a process of its own")
	stores := f.String("store", "sqlite", "`stores`, separated by commas: sqlite, postgres://…")
	f.StringVar(&b.Program, "perdure", "",
		"`file` of the program whose servers are measured (default: perdure beside this program, or in PATH)")
	addSizes(f, b)
	asJSON := f.Bool("json", false, "print JSON")
	cpu := f.String("cpuprofile", "",
		"write a CPU profile of this process to a `file`: of the engine with --target process, of the callers alone "+
			"with http")
	mem := f.String("memprofile", "", "write a profile of this process's allocations to a `file`")
	f.StringVar(&b.Profiles, "server-profile", "",
		"`prefix` of files for profiles of the server: its CPU, and its memory while it has streams. The server is "+
			"then one of this program, not --perdure")
	pages := f.String("results", "",
		"measure nothing; print results.md in this `folder` anew from the records in its evidence/measured")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return errUsage
	}
	wrong := func(format string, args ...any) error {
		fmt.Fprintf(stderr, "perdure-bench: "+format+"\n", args...)
		return errUsage
	}
	if f.NArg() > 0 {
		return wrong("there are no arguments, only flags: %s", strings.Join(f.Args(), " "))
	}
	if *pages != "" {
		return printResults(*pages)
	}
	if err := b.Check(stderr, list(*only), list(*stores), list(*target)); err != nil {
		return wrong("%v", err)
	}
	stop, err := bench.Profile(*cpu, *mem)
	if err != nil {
		return err
	}
	r, err := b.Measure(ctx, list(*only), list(*stores), list(*target))
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if len(r.Figures) == 0 {
		return wrong("nothing of this can be measured on %s", *stores)
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.Print(stdout, paint.Painter{On: paint.Colourful(stdout)})
}

// printResults writes the page of results anew from its records.
func printResults(docs string) error {
	page, err := bench.Results(docs)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, bench.ResultsPage), []byte(page), 0o644)
}

// addSizes adds the flags for the sizes of the scenarios.
func addSizes(f *flag.FlagSet, b *bench.Bench) {
	f.StringVar(&b.Doorbell, "doorbell", "", "`nats://…`: wake is measured with it too")
	f.DurationVar(&b.Duration, "duration", 10*time.Second, "how long a scenario measures")
	f.DurationVar(&b.Settle, "settle", 10*time.Second,
		"how long a server idles before its memory is read, and after jobs-grown has loaded runs")
	f.IntVar(&b.Callers, "callers", 128, "callers at once, in the closed loop")
	f.IntVar(&b.Workers, "workers", 4, "workers at once")
	f.IntVar(&b.Slots, "slots", 256, "runs that a worker takes at once")
	f.Float64Var(&b.Rate, "rate", 0,
		"arrivals a `second` by a schedule: engine-submit and engine-life as open loops; idle and wake with "+
			"another rate than 50")
	f.IntVar(&b.Backlog, "backlog", 50_000, "runs that are drained")
	f.IntVar(&b.Live, "live", 1_000_000, "live runs of alarms, queued runs of backlog")
	f.IntVar(&b.Due, "due", 100_000, "deadlines at one instant")
	f.IntVar(&b.Streams, "streams", 10_000,
		"streams that are attached at once; at most three quarters of the file descriptors that a process may have")
	f.IntVar(&b.Lines, "lines", 100_000, "lines of the log that replay reads")
	f.IntVar(&b.Behind, "behind", 200, "lines that a stream of reconnect has missed")
	f.IntVar(&b.Tokens, "tokens", 100_000, "tokens of the text that a run streams")
	f.IntVar(&b.Ended, "ended", 0, "ended runs that the store of jobs has already")
	f.IntVar(&b.Queues, "queues", 0, "further queues that the store of jobs has, with ten queued runs each")
	f.IntVar(&b.Input, "input", 0, "`bytes` of the input of jobs and jobs-grown; 0 is a small one")
	f.IntVar(&b.Tenants, "tenants", 0, "further tenants that the store of jobs has, with ten queued runs each")
	f.DurationVar(&b.Sync, "sync", 0, "how much longer every sync of SQLite takes, to see a slower disk: with "+
		"--target process --store sqlite")
	f.IntVar(&b.Steps, "steps", 10_000, "steps of the longest journal that an agent replays")
	f.StringVar(&b.SDKs, "sdks", "sdk", "`folder` of the SDKs in other languages: sdks starts their workers")
	f.StringVar(&b.Dir, "dir", "", "`folder` for the data (default: a temporary one)")
}

// list splits names at commas.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
