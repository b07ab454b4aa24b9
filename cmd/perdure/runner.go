package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/process/runner"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/worker"
)

func runnerCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("runner",
		"Executes commands that are submitted elsewhere, as runs of class process and kind exec, each in a folder "+
			"of its\n"+
			"own. SIGTERM and Ctrl-C end it: it takes no more runs, and commands that have begun go on.\n\n"+
			"  perdure runner --slots 4 --queue builds\n"+
			"  perdure run exec --class process --queue builds --input '{\"command\":[\"make\",\"test\"]}'", stderr)
	conn := addConnFlags(f)
	p := &runner.Pool{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	var queues, keep textList
	f.IntVar(&p.Slots, "slots", 1, "how many commands run at once")
	f.Var(&queues, "queue", "take runs of this `queue`; can be given several times (default: default)")
	workspace := f.String("workspace", "", "`folder` of the jobs' files (default: PERDURE_WORKSPACE, or that of "+
		"perdure dev, or perdure in the folder for state)")
	f.Var(&keep, "env", "pass on this `variable`, beside PATH and HOME; can be given several times")
	f.StringVar(&p.Secrets, "secrets", "", "where the secrets are that runs name: a `file` of lines NAME=value, or "+
		"env:PREFIX")
	engines := f.String("engines", "", "`folder` of engines of your own (default: PERDURE_ENGINES)")
	f.DurationVar(&p.Job.Grace, "grace", 10*time.Second, "how long a command has to end when it is asked to")
	f.Int64Var(&p.Job.MaxOutput, "max-output", 1<<30, "`bytes` of each output stream that the disk may have")
	giveUp := addGiveUpFlag(f)
	var trust textList
	f.Var(&trust, "trust", "execute only runs that one of the public keys in this `file` has signed; can be given "+
		"several times (default: PERDURE_TRUST, or all runs)")
	if err := parse(f, args); err != nil {
		return err
	}
	if p.Job.Grace <= 0 || p.Job.MaxOutput <= 0 {
		fmt.Fprintln(stderr, "perdure runner: --grace and --max-output have to be positive")
		return errUsage
	}
	if slices.Contains(keep, "PERDURE_KEY") {
		fmt.Fprintln(stderr, "perdure runner: --env PERDURE_KEY would give the pool's key to the commands of others")
		return errUsage
	}
	var err error
	if p.Job.GiveUpAfter, err = giveUp(); err == nil {
		p.Job.Trust, err = loadTrust(trust)
	}
	if err != nil {
		fmt.Fprintf(stderr, "perdure runner: %s\n", block(err.Error()))
		return errUsage
	}
	if p.Job.Queues = queues; len(queues) == 0 {
		p.Job.Queues = []string{"default"}
	}
	if err = p.Validate(); err != nil {
		fmt.Fprintf(stderr, "perdure runner: %s\n", block(err.Error()))
		return errUsage
	}
	if p.Job.Engines = first(*engines, os.Getenv("PERDURE_ENGINES")); p.Job.Engines != "" {
		p.Job.Engines, _ = filepath.Abs(p.Job.Engines)
	}
	if _, err := conn.connect(ctx); err != nil {
		return err
	}
	if p.Job.Server, p.Job.Workspace, p.Job.SentinelEvery, err = runnerSettings(conn, *workspace); err != nil {
		return err
	}
	p.Job.Env = kept(keep)
	p.Log.Info("waiting for runs", "queues", strings.Join(p.Job.Queues, ","), "slots", p.Slots,
		"workspace", p.Job.Workspace)
	return p.Run(ctx)
}

// addGiveUpFlag adds the flag that bounds how long a runner waits for a server after its command has
// ended. The function that it returns has the value, after parsing.
func addGiveUpFlag(f *flagSet) func() (time.Duration, error) {
	given := f.Duration("give-up-after", 0, "how long the runner of a command that has ended waits for a server that "+
		"takes the end (default: PERDURE_GIVE_UP_AFTER, or 168h)")
	return func() (time.Duration, error) {
		switch text := os.Getenv("PERDURE_GIVE_UP_AFTER"); {
		case *given < 0 || *given == 0 && f.given("give-up-after"):
			return 0, errors.New("--give-up-after has to be positive")
		case *given > 0:
			return *given, nil
		case text != "":
			d, err := time.ParseDuration(text)
			if err != nil || d <= 0 {
				return 0, fmt.Errorf("PERDURE_GIVE_UP_AFTER: %q is no time such as 168h", text)
			}
			return d, nil
		}
		return runner.DefaultGiveUpAfter, nil
	}
}

// loadTrust reads the public keys that runs have to be signed with: those of files, or of the files that
// PERDURE_TRUST names.
func loadTrust(files textList) (string, error) {
	if text := os.Getenv("PERDURE_TRUST"); len(files) == 0 && text != "" {
		if err := files.Set(text); err != nil {
			return "", fmt.Errorf("PERDURE_TRUST %w", err)
		}
	}
	if len(files) == 0 {
		return "", nil
	}
	trust, err := worker.LoadTrust(files...)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, k := range trust.Keys() {
		out.Write(k.PEM())
	}
	return out.String(), nil
}

// kept returns the variables of this program's environment that commands of others may have.
func kept(keep []string) (out []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); slices.Contains(keep, name) || slices.Contains(alwaysKept, name) {
			out = append(out, v)
		}
	}
	return out
}

// runnerSettings returns the settings of runners: the server, the workspace, and the time between two
// sentinels.
func runnerSettings(conn *connFlags, workspace string) (s runner.Server, path string, every time.Duration, err error) {
	if t := conn.tenantName(); t != "" {
		return s, "", 0, fmt.Errorf("runners work for the tenant of their key: --tenant and PERDURE_TENANT are not "+
			"for them (%s)", visible(t))
	}
	key, err := conn.findKey()
	if err != nil {
		return s, "", 0, err
	}
	s = runner.Server{URL: conn.address(), Key: key, CA: first(*conn.ca, os.Getenv("PERDURE_CA"))}
	if s.CA != "" {
		if s.CA, err = filepath.Abs(s.CA); err != nil {
			return s, "", 0, err
		}
	}
	if path = first(workspace, os.Getenv("PERDURE_WORKSPACE"), conn.ownWorkspace()); path == "" {
		if path, err = stateFolder(); err != nil {
			return s, "", 0, err
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return s, "", 0, err
	}
	if text := os.Getenv("PERDURE_SENTINEL_EVERY"); text != "" {
		if every, err = time.ParseDuration(text); err != nil || every <= 0 {
			return s, "", 0, fmt.Errorf("PERDURE_SENTINEL_EVERY: %q is no time such as 30s", text)
		}
	}
	return s, path, every, nil
}

// ownWorkspace returns the workspace of perdure dev, if its data folder is the one that the key is
// from. The server then watches the processes.
func (c *connFlags) ownWorkspace() string {
	if first(*c.key, os.Getenv("PERDURE_KEY")) != "" {
		return ""
	}
	path := filepath.Join(first(*c.data, os.Getenv("PERDURE_DATA"), settings.DefaultData), "workspace")
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return ""
	}
	return path
}

// Variables that a command gets in any case, and those of Perdure that are no secrets.
var (
	alwaysKept = []string{"PATH", "HOME"}
	harmless   = []string{"PERDURE_URL", "PERDURE_CA", "PERDURE_WORKSPACE", "PERDURE_ENGINES"}
)

// environ returns the environment of a command: all but the keys of Perdure, or the variables that are
// kept.
func environ(keep []string) (out []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case slices.Contains(keep, name), slices.Contains(alwaysKept, name):
		case len(keep) > 0:
			continue
		case strings.HasPrefix(name, "PERDURE_") && !slices.Contains(harmless, name):
			continue
		}
		out = append(out, v)
	}
	return out
}
