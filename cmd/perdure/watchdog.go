package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/cmd/internal/paint"
	"github.com/perdure/perdure/internal/server/watchdog"
)

func watchdogCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("watchdog",
		"Lists what the watchdog did and why, newest first, or its rules. Takes a key of the platform.\n\n"+
			"  perdure watchdog --rule lost-worker\n  perdure watchdog --run RUN\n  perdure watchdog --rules", stderr)
	conn := addConnFlags(f)
	var filter admin.WatchdogFilter
	f.StringVar(&filter.Rule, "rule", "", "only what this `rule` did: W6, or lost-worker")
	run := f.String("run", "", "only what was done to this `run`")
	conn.useTenant(f, "only what was done to runs of this `tenant` (default: PERDURE_TENANT, or all)")
	f.IntVar(&filter.Limit, "n", 50, "at most so many")
	rules := f.Bool("rules", false, "list the rules with the settings that are in force on the server")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if filter.Limit < 1 || filter.Limit > 1000 {
		fmt.Fprintln(stderr, "perdure watchdog: -n takes 1 to 1000")
		return errUsage
	}
	filter.Rule = watchdog.StoredName(filter.Rule)
	if names := watchdog.RuleNames(); filter.Rule != "" && !slices.Contains(names, filter.Rule) {
		fmt.Fprintf(stderr, "perdure watchdog: there is no rule %q: the rules are %s\n", filter.Rule,
			strings.Join(names, ", "))
		return errUsage
	}
	filter.Tenant = perdure.TenantID(conn.tenantName())
	var err error
	if filter.RunID, err = conn.runID(*run); err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	if *rules {
		return printRules(ctx, c, *asJSON, stdout)
	}
	page, err := admin.New(c).Watchdog(ctx, filter)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, page)
	}
	if len(page.Actions) == 0 {
		fmt.Fprintln(stdout, "The watchdog did nothing.")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AT\tRULE\tNAME\tRUN\tWHAT\tWHY")
	paint := actionPainter(stdout)
	for i := range page.Actions {
		a := &page.Actions[i]
		about := string(a.Run)
		if about == "" {
			about = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", a.At.Time().Local().Format("15:04:05.000"), visible(a.Rule),
			visible(a.Name), visible(about), paint(visible(a.What)), visible(a.Why))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if page.NextCursor != "" {
		fmt.Fprintf(stderr, "There may be more: -n %d\n", min(1000, 2*filter.Limit))
	}
	return nil
}

// printRules prints the rules of the watchdog, each with the settings that its bound names. As JSON
// it prints the settings.
func printRules(ctx context.Context, c *client.Client, asJSON bool, stdout io.Writer) error {
	policy, err := admin.New(c).Policy(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(stdout, policy)
	}
	var values []string
	for _, s := range policy.Settings {
		value := s.Value
		if s.Changed {
			value += " (set)"
		}
		values = append(values, "`"+s.Name+"`", visible(s.Name+" "+value))
	}
	inForce := strings.NewReplacer(append(values, "`", "")...)
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tNAME\tBOUND")
	for _, r := range watchdog.Rules {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.ID, r.Name, inForce.Replace(r.Bound))
	}
	return w.Flush()
}

// actionPainter returns a function that colours an action: failures red, losses and alerts yellow,
// all others green. Without a terminal it colours nothing.
func actionPainter(w io.Writer) func(string) string {
	if !paint.Colourful(w) {
		return func(s string) string { return s }
	}
	return func(s string) string {
		colour := "32"
		switch state, _, _ := strings.Cut(s, "/"); {
		case state == string(perdure.Failed) || state == string(perdure.TimedOut):
			colour = "31"
		case state == string(perdure.Cancelled), strings.HasPrefix(s, "queued again"), strings.HasPrefix(s,
			"back to queued"), strings.HasPrefix(s, "run:"), strings.HasSuffix(s, "offline"):
			colour = "33"
		}
		return "\x1b[" + colour + "m" + s + "\x1b[0m"
	}
}
