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
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/perdure/perdure/cmd/perdure/internal/confine"
	"github.com/perdure/perdure/cmd/perdure/internal/demo"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/process/runner"
	"github.com/perdure/perdure/internal/wire/release"
)

// Exit codes. They are part of the interface: scripts use them.
const (
	exitOK    = 0
	exitFail  = 1
	exitUsage = 2
	exitAway  = 69 // PostgreSQL could not be reached within start_wait
	exitIO    = 74 // the disk failed; a restart finds out what is stored
)

// exitCodes is a sentence of docs/server.md, for the help texts.
const exitCodes = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the run goes on without us, 4 the run timed " +
	"out, 5 it was cancelled,\n69 the database is away, 74 the disk failed, 79 the process goes on without us."

// errUsage is a mistake on the command line. Its explanation has been printed.
var errUsage = errors.New("usage")

func main() {
	confine.Enter() // a command of the supervisor's shell starts this program again
	// Requests allocate much, and little of it lives long. With the default, garbage collection
	// takes a third of the time under load. A GOGC from the environment has precedence.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if len(os.Args) > 1 && os.Args[1] == "runner" {
		if err := runner.HideKey(); err != nil {
			fmt.Fprintln(os.Stderr, "perdure runner:", err)
			os.Exit(exitFail)
		}
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// A command is the first word after "perdure".
type command struct {
	name  string
	about string
	run   func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	// hidden commands are called by the program itself and are not in the usage.
	hidden bool
}

// commands returns the table of commands, in the order of the usage.
func commands() []command {
	return []command{
		{"serve", "run the server", serve, false},
		{"dev", "run a server for trying things out", dev, false},
		{"run", "start a run and stay with it", runCommand, false},
		{"chat", "talk with an agent; leave, and come back to its answer", chatCommand, false},
		{"exec", "run a command as a run that outlives the server", execCommand, false},
		{"runner", "execute commands that are submitted elsewhere", runnerCommand, false},
		{"jobs", "list runs", jobs, false},
		{"logs", "print a run's events", logs, false},
		{"peek", "see what a run is doing", peek, false},
		{"journal", "print the steps that a run has recorded, or its inbox", journalCommand, false},
		{"fg", "come back to a run and stay with it", fg, false},
		{"bg", "leave a run to itself", bg, false},
		{"wait", "wait for a run to end", waitCommand, false},
		{"view", "list the views of a run, or print one", viewCommand, false},
		{"artifacts", "list or get what a run has left beside its result", artifactsCommand, false},
		{"kinds", "list what runs can be of, and change their defaults", kindsCommand, false},
		{"builds", "check a worker's build against the runs that live", buildsCommand, false},
		{"queues", "list queues, pause and resume them", queuesCommand, false},
		{"schedules", "start runs at instants of a plan", schedulesCommand, false},
		{"limits", "bound how many runs are leased at once, and how often", limitsCommand, false},
		{"threads", "list threads and what was last said", threadsCommand, false},
		{"groups", "list groups of runs that are waited for together", groupsCommand, false},
		{"rm", "delete ended runs, or threads", rmCommand, false},
		{"kill", "ask runs to stop", kill, false},
		{"release", "end the hold of runs whose code had a defect", releaseCommand, false},
		{"retry", "make new runs of ended ones, which go on where those stood", retryCommand, false},
		{"late", "see work that was finished too late, and take it", late, false},
		{"signal", "send a signal to a run", signalCommand, false},
		{"approve", "see what runs want to be approved, and decide", approve, false},
		{"dlq", "see runs that can't go on, and redrive them", dlqCommand, false},
		{"webhooks", "say who is told of runs, and see what was sent", webhooksCommand, false},
		{"dashboard", "print a link that opens the dashboard", dashboardCommand, false},
		{"keys", "make, list and revoke keys", keysCommand, false},
		{"secret", "rotate the store's root secret", secretCommand, false},
		{"tenants", "list tenants and set their limits", tenantsCommand, false},
		{"doctor", "find out what is wrong", doctor, false},
		{"watchdog", "see what the watchdog did, and why", watchdogCommand, false},
		{"recovery", "see which processes live, and what became of the others", recoveryCommand, false},
		{"audit", "see who did what, to what, and when", auditCommand, false},
		{"fsck", "check the store against its invariants", fsck, false},
		{"backup", "write a backup of everything stored", backup, false},
		{"restore", "fill an empty store from a backup", restore, false},
		{"upgrade", "see what a start of this program would change in the store", upgradeCommand, false},
		{"failover", "accept another PostgreSQL as the store's", failoverCommand, false},
		{"clock", "set the clock of a store back that was ahead", clockCommand, false},
		{"config", "check the configuration", configCommand, false},
		{"demo", "ask an agent, stop waiting, kill the server, and see the answer come", demoCommand, false},
		{"mock-model", "serve a scripted model, for tests and without a key", mockModel, false},
		{"version", "print the version", version, false},
		{runner.ProcessCommand, "the process that supervises a command", processRunner, true},
		{"demo-agent", "the agent of the demo", demo.Agent, true},
	}
}

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) == 1 {
			usage(stdout)
			return exitOK
		}
		args = append(args[1:], "-h")
	case "-version", "--version":
		args[0] = "version"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, args[1:], stdout, stderr)
		switch {
		case err == nil, errors.Is(err, flag.ErrHelp):
			return exitOK
		case errors.Is(err, errUsage):
			return exitUsage
		}
		var code exitError
		if errors.As(err, &code) {
			return int(code)
		}
		fmt.Fprintf(stderr, "perdure %s: %s\n", c.name, block(err.Error()))
		switch {
		case errors.Is(err, errIO):
			return exitIO
		case errors.Is(err, embedded.ErrAway):
			return exitAway
		}
		return exitFail
	}
	if args[0] == "bench" {
		fmt.Fprintln(stderr, "perdure: bench is a program of its own, perdure-bench, with the same flags: "+
			"\"make build\" makes bin/perdure-bench")
		return exitUsage
	}
	fmt.Fprintf(stderr, "perdure: there is no command %q%s\n\n", args[0], suggestion(args[0], commandNames()))
	usage(stderr)
	return exitUsage
}

// commandNames returns the names in the usage.
func commandNames() (names []string) {
	for _, c := range commands() {
		if !c.hidden {
			names = append(names, c.name)
		}
	}
	return names
}

// usage prints the usage of the program.
func usage(w io.Writer) {
	fmt.Fprint(w, "Perdure is a durable runtime for AI-agent runs: timeouts stop waiting, not working.\n\n"+
		"Usage:\n\n  perdure <command> [flags]\n\nCommands:\n\n")
	for _, c := range commands() {
		if !c.hidden {
			fmt.Fprintf(w, "  %-10s %s\n", c.name, c.about)
		}
	}
	fmt.Fprint(w, "\nperdure <command> -h explains a command.\n"+exitCodes+"\n")
}

// A flagSet has the flags and arguments of a command.
type flagSet struct {
	*flag.FlagSet
	// takes has the names of the arguments: RUN, or RUN… for one or more. Optional ones are in
	// brackets.
	takes []string
	// conn has the flags that select the server, if the command calls one.
	conn *connFlags
}

// flags returns the flag set of a command. usage is the command in lower case, and then its
// arguments.
func flags(usage, about string, stderr io.Writer) *flagSet {
	words := strings.Fields(usage)
	n := slices.IndexFunc(words, func(w string) bool { return strings.ContainsFunc(w, isArgument) })
	if n < 0 {
		n = len(words)
	}
	f := &flagSet{FlagSet: flag.NewFlagSet(strings.Join(words[:n], " "), flag.ContinueOnError), takes: words[n:]}
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintf(stderr, "%s\n%s\n\nFlags:\n\n", f.line(), about)
		f.PrintDefaults()
	}
	return f
}

// Parse reads flags. A wrong one is named, and not lost above a list of all flags.
func (f *flagSet) Parse(args []string) error {
	out, usage := f.Output(), f.Usage
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	err := f.FlagSet.Parse(args)
	f.SetOutput(out)
	f.Usage = usage
	if errors.Is(err, flag.ErrHelp) {
		f.Usage()
	} else if err != nil {
		what := err.Error()
		if name, ok := strings.CutPrefix(what, "flag provided but not defined: -"); ok {
			var names []string
			f.VisitAll(func(g *flag.Flag) { names = append(names, g.Name) })
			what = "there is no flag " + name + suggestion(name, names)
		}
		fmt.Fprintf(out, "perdure %s: %s\n\nperdure %s --help lists the flags.\n", f.Name(), visible(what), f.Name())
	}
	return err
}

// isArgument tells whether a character occurs only in the names of arguments.
func isArgument(r rune) bool { return unicode.IsUpper(r) || r == '[' }

// given tells whether a flag was set.
func (f *flagSet) given(names ...string) (yes bool) {
	f.Visit(func(g *flag.Flag) { yes = yes || slices.Contains(names, g.Name) })
	return yes
}

// line returns the first line of the usage.
func (f *flagSet) line() string {
	words := append(append([]string{"Usage: perdure", f.Name()}, f.takes...), "[flags]")
	return strings.Join(words, " ") + "\n"
}

// checkArguments prints which argument is missing or too many, if any.
func (f *flagSet) checkArguments(args []string) error {
	complain := func(format, arg string) error {
		fmt.Fprintf(f.Output(), "perdure %s: "+format+"\n\n%s", f.Name(), visible(arg), f.line())
		return errUsage
	}
	if len(args) < len(f.takes) {
		// An optional argument may be missing, together with those after it.
		if name := f.takes[len(args)]; !strings.HasPrefix(name, "[") {
			return complain("%s is missing", strings.Trim(name, "[]…"))
		}
	}
	many := len(f.takes) > 0 && strings.Contains(f.takes[len(f.takes)-1], "…")
	if len(args) > len(f.takes) && !many {
		return complain("%s is one argument too many", args[len(f.takes)])
	}
	return nil
}

// resolveJobs replaces arguments such as %1 by the runs that they mean, where the command takes runs.
func (f *flagSet) resolveJobs(args []string) error {
	for i, arg := range args {
		name := strings.Trim(f.takes[min(i, len(f.takes)-1)], "[]…")
		if name != "RUN" && name != "RUN_ID" || f.conn == nil {
			continue
		}
		id, err := f.conn.runID(arg)
		if err != nil {
			return err
		}
		args[i] = string(id)
	}
	return nil
}

// parse reads the flags of a command that takes no arguments.
func parse(f *flagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if f.NArg() > 0 {
		fmt.Fprintf(f.Output(), "perdure %s takes no arguments: %s\n", f.Name(), strings.Join(f.Args(), " "))
		return errUsage
	}
	return nil
}

type versionOf struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func version(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("version", "Prints which Perdure this is.\n\n  perdure version", stderr)
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	v := versionOf{Version: release.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	v.Commit, v.Modified = release.Commit()
	if *asJSON {
		return json.NewEncoder(stdout).Encode(v)
	}
	text := "perdure " + v.Version
	if v.Commit != "" {
		text += " " + v.Commit[:min(12, len(v.Commit))]
		if v.Modified {
			text += " with changes"
		}
	}
	_, err := fmt.Fprintf(stdout, "%s, %s, %s\n", text, v.Go, v.Platform)
	return err
}
