package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

const limitsUsage = `Usage:

  perdure limits                                list them, with how many runs hold slots and wait
  perdure limits set NAME [--concurrency 5] [--rate 500/1m] [--burst 20] [--per-key] [--description TEXT]
  perdure limits set NAME --limit-key KEY [--concurrency 20] [--rate 2000/1m]   values of one key
  perdure limits set NAME --limit-key KEY --as-others                the key has those of the limit again
  perdure limits show NAME                      its values, some holders and some waiters
  perdure limits keys NAME                      its keys
  perdure limits close NAME [--limit-key KEY] --for 2m [--reason TEXT]   nothing is granted under it meanwhile
  perdure limits open NAME [--limit-key KEY]
  perdure limits rm NAME                        what waits there goes on

Every one takes --json. See docs/limits.md.
`

// limitsCommand implements "perdure limits".
func limitsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &limitsCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("limits", limitsUsage, "list", []subcommand{
		{"list", "Lists limits.", h.list},
		{"set NAME", "Makes a limit, or changes the one of this name; or the values of one of its keys.\n\n" +
			"  perdure limits set openai --rate 500/1m --burst 20\n" +
			"  perdure limits set customer --concurrency 5 --per-key\n" +
			"  perdure limits set customer --limit-key acme --concurrency 20", h.set},
		{"show NAME", "Shows a limit.", h.show},
		{"keys NAME", "Lists the keys of a limit.", h.keys},
		{"close NAME", "Closes a limit, or a key of it.\n\n" +
			"  perdure limits close openai --for 2m --reason 429", h.close},
		{"open NAME", "Opens a limit, or a key of it.", h.open},
		{"rm NAME", "Deletes a limit. What waits there goes on.", h.remove},
	})
}

// A limitsCall is one call of "perdure limits".
type limitsCall struct{ subcommandCall }

func (h *limitsCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.Limits(h.ctx)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "No limits: perdure limits set NAME --concurrency 5 makes one.")
			return
		}
		fmt.Fprintln(w, "NAME\tALLOWS\tKEYS\tLEASED\tWAITING\tCLOSED UNTIL")
		for i := range list {
			l := &list[i]
			keys := "-"
			if l.PerKey {
				keys = fmt.Sprint(l.Keys)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", visible(l.Name), limitText(l.Concurrency, l.Rate), keys,
				l.Leased, l.Waiting, localTime(l.ClosedUntil))
		}
	})
}

// limitText says what a limit allows.
func limitText(concurrency int, rate *perdure.LimitRate) string {
	var parts []string
	if concurrency > 0 {
		parts = append(parts, fmt.Sprintf("%d at once", concurrency))
	}
	if rate != nil {
		parts = append(parts, fmt.Sprintf("%d in %s, burst %d", rate.Count, rate.Per, max(1, rate.Burst)))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func (h *limitsCall) set() error {
	f := h.flags
	concurrency := f.Int("concurrency", 0, "how many runs may be leased at once")
	rate := f.String("rate", "", "how often runs may be granted: `COUNT/TIME`, such as 500/1m")
	burst := f.Int("burst", 0, "how many more grants of the rate may come together (default 1)")
	perKey := f.Bool("per-key", false, "count each limit_key of runs by itself")
	description := f.String("description", "", "what it is for")
	key := f.String("limit-key", "", "set the values of this `key`")
	asOthers := f.Bool("as-others", false, "with --limit-key: remove the values of the key")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	in := api.PutLimit{PerKey: *perKey, Description: *description}
	if f.given("concurrency") {
		in.Concurrency = concurrency
	}
	if *rate != "" {
		if in.Rate = readRate(*rate); in.Rate == nil {
			fmt.Fprintln(h.stderr, "perdure limits set: --rate takes a count and a time, such as 500/1m")
			return errUsage
		}
		in.Rate.Burst = *burst
	}
	var k *api.LimitKey
	switch {
	case *key != "" && *asOthers:
		k, err = c.DeleteLimitKey(h.ctx, args[0], *key)
	case *key != "":
		k, err = c.PutLimitKey(h.ctx, args[0], *key, api.PutLimitKey{Concurrency: in.Concurrency, Rate: in.Rate})
	default:
		l, err := c.PutLimit(h.ctx, args[0], in)
		if err != nil {
			return err
		}
		return h.shown(l)
	}
	if err != nil {
		return err
	}
	return h.shownKeys(k, []api.LimitKey{*k})
}

// readRate reads a rate such as 500/1m. It gives nil for anything else.
func readRate(text string) *perdure.LimitRate {
	count, per, ok := strings.Cut(text, "/")
	var n int
	if _, err := fmt.Sscanf(count+"\n", "%d\n", &n); err != nil || !ok {
		return nil
	}
	d, err := time.ParseDuration(per)
	if err != nil {
		return nil
	}
	return &perdure.LimitRate{Count: n, Per: perdure.Duration(d)}
}

func (h *limitsCall) show() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	l, err := c.Limit(h.ctx, args[0])
	if err != nil {
		return err
	}
	return h.shown(l)
}

// shown prints a limit, one line for each thing that is known.
func (h *limitsCall) shown(l *api.Limit) error {
	return h.print(l, func(w io.Writer) {
		item := func(name, text string) {
			if text != "" && text != "-" {
				fmt.Fprintf(w, "%s\t%s\n", name, visible(text))
			}
		}
		item("name", l.Name)
		item("description", l.Description)
		item("allows", limitText(l.Concurrency, l.Rate))
		if l.PerKey {
			item("keys", fmt.Sprintf("%d, each by itself", l.Keys))
		}
		item("leased", fmt.Sprint(l.Leased))
		item("waiting", fmt.Sprint(l.Waiting))
		item("closed until", localTime(l.ClosedUntil))
		item("because", l.CloseReason)
		for i := range l.Holders {
			r := &l.Holders[i]
			item("holds a slot", strings.TrimSpace(fmt.Sprintf("%s %s %s", r.RunID, r.Kind, r.Key)))
		}
		for i := range l.Waiters {
			r := &l.Waiters[i]
			item("waits", strings.TrimSpace(fmt.Sprintf("%s %s %s", r.RunID, r.Kind, r.Key)))
		}
	})
}

func (h *limitsCall) keys() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.LimitKeys(h.ctx, args[0])
	if err != nil {
		return err
	}
	return h.shownKeys(list, list)
}

// shownKeys prints keys.
func (h *limitsCall) shownKeys(answer any, list []api.LimitKey) error {
	return h.print(answer, func(w io.Writer) {
		fmt.Fprintln(w, "KEY\tOWN VALUES\tLEASED\tWAITING\tCLOSED UNTIL")
		for i := range list {
			k := &list[i]
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", visible(k.Key), limitText(k.Concurrency, k.Rate), k.Leased,
				k.Waiting, localTime(k.ClosedUntil))
		}
	})
}

func (h *limitsCall) close() error {
	key := h.flags.String("limit-key", "", "close this `key` alone")
	length := h.flags.Duration("for", 0, "how long")
	reason := h.flags.String("reason", "", "why, for people")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	l, err := c.CloseLimit(h.ctx, args[0], api.CloseLimit{Key: *key, For: perdure.Duration(*length), Reason: *reason})
	if err != nil {
		return err
	}
	return h.shown(l)
}

func (h *limitsCall) open() error {
	key := h.flags.String("limit-key", "", "open this `key`")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	l, err := c.OpenLimit(h.ctx, args[0], api.OpenLimit{Key: *key})
	if err != nil {
		return err
	}
	return h.shown(l)
}

func (h *limitsCall) remove() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	if err := c.DeleteLimit(h.ctx, args[0]); err != nil {
		return err
	}
	return h.print(map[string]string{"deleted": args[0]}, func(w io.Writer) {
		fmt.Fprintf(w, "%s is deleted; runs that wait there go on\n", visible(args[0]))
	})
}
