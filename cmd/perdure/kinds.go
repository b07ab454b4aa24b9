package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const kindsUsage = `Usage:

  perdure kinds                                list them, and whether somebody serves them
  perdure kinds show KIND
  perdure kinds set KIND [--timeout 1h] [--max-attempts 5] [--unset timeout,retry.backoff]
  perdure kinds set KIND [--concurrency 5] [--limits openai,customer] [--limit-key-from /customer]
  perdure kinds set KIND [--input-schema FILE] [--output-schema FILE] [--signal NAME=FILE]…
  perdure kinds pause KIND [--reason "…"] [--for 30m | --until 2026-01-31T18:00:00Z]
  perdure kinds resume KIND
  perdure kinds drain KIND [--wait]            pause it, and say how many of its runs are still leased
  perdure kinds rm KIND

Every one takes --json. Workers announce kinds when they start; see docs/kinds.md.
`

// kindsCommand implements "perdure kinds".
func kindsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &kindsCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("kinds", kindsUsage, "list", []subcommand{
		{"list", "Lists kinds.", h.list},
		{"show KIND", "Shows a kind: its defaults, where they come from, its schemas and builds.\n\n" +
			"  perdure kinds show KIND", h.show},
		{"set KIND", "Overrides defaults of a kind, whatever its workers announce; --unset removes that again.\n\n" +
			"  perdure kinds set KIND --timeout 1h", h.set},
		{"pause KIND", "Pauses a kind: none of its runs is granted, until it is resumed or its pause ends.\n\n" +
			"  perdure kinds pause KIND --reason \"a bad build\" --for 30m", h.pause},
		{"resume KIND", "Ends the pause of a kind.\n\n  perdure kinds resume KIND", h.resume},
		{"drain KIND", "Pauses a kind, and says how many of its runs are still leased. " +
			"With --wait it returns at 0.\n\n" +
			"  perdure kinds drain KIND --wait", h.drain},
		{"rm KIND", "Deletes a kind from the registry. It appears again when a worker announces it.\n\n" +
			"  perdure kinds rm KIND", h.remove},
	})
}

// A kindsCall is one call of "perdure kinds".
type kindsCall struct{ subcommandCall }

func (h *kindsCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := c.Kinds(h.ctx)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "No kinds: workers announce theirs when they start.")
			return
		}
		fmt.Fprintln(w, "KIND\tCLASS\tTIMEOUT\tATTEMPTS\tSERVED\tDESCRIPTION")
		for i := range list {
			k := &list[i]
			about, _, _ := strings.Cut(k.Description, "\n")
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", visible(k.Kind), or(string(k.Class)), ofDuration(k.Timeout),
				ofNumber(k.RetryPolicy().MaxAttempts), servedText(k), visible(about))
		}
	})
}

// or returns a text, or a dash for an empty one.
func or(text string) string { return first(text, "-") }

func ofDuration(d perdure.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.String()
}

func ofNumber(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func servedText(k *api.Kind) string {
	switch {
	case k.Served:
		return "yes"
	case k.LastPolledAt == nil:
		return "no"
	}
	return "no, since " + k.LastPolledAt.Time().Local().Format(time.DateTime)
}

func (h *kindsCall) show() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	k, err := c.Kind(h.ctx, args[0])
	if err != nil {
		return err
	}
	return h.printKind(k)
}

// printKind prints a kind, one line for each field that is set.
func (h *kindsCall) printKind(k *api.Kind) error {
	return h.print(k, func(w io.Writer) {
		item := func(name, text, field string) {
			if text == "" || text == "-" {
				return
			}
			source := ""
			if s := k.Sources[field]; s != "" {
				source = "(" + visible(s) + ")"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, visible(text), source)
		}
		r := k.RetryPolicy()
		var codes []string
		for _, c := range r.NotRetried {
			codes = append(codes, string(c))
		}
		item("kind", k.Kind, "")
		item("description", k.Description, "description")
		item("class", string(k.Class), "class")
		item("timeout", ofDuration(k.Timeout), "timeout")
		item("max attempts", ofNumber(r.MaxAttempts), "retry.max_attempts")
		item("backoff", ofDuration(r.Backoff), "retry.backoff")
		item("max backoff", ofDuration(r.MaxBackoff), "retry.max_backoff")
		item("not retried", strings.Join(codes, ", "), "retry.not_retried")
		item("hold timeout", ofDuration(k.HoldTimeout), "hold_timeout")
		if k.HoldDefects != nil {
			item("hold defects", fmt.Sprint(*k.HoldDefects), "hold_defects")
		}
		item("at once", ofNumber(k.Concurrency), "concurrency")
		item("limits", limitsText(k.Limits, 0, k.MissingLimits), "limits")
		item("limit key from", k.LimitKeyFrom, "limit_key_from")
		item("input", string(k.InputSchema), "input_schema")
		item("output", string(k.OutputSchema), "output_schema")
		for _, name := range slices.Sorted(maps.Keys(k.Signals)) {
			item("signal "+visible(name), string(k.Signals[name]), "signals")
		}
		item("served", servedText(k), "")
		for i, b := range k.Builds {
			name := ""
			if i == 0 {
				name = "builds"
			}
			fmt.Fprintf(w, "%s\t%s\tfirst seen %s\n", name, visible(first(b.Build, "(unnamed)")),
				b.FirstSeenAt.Time().Local().Format(time.DateTime))
		}
	})
}

func (h *kindsCall) set() error {
	var in api.ChangeKind
	var retry perdure.KindRetry
	f := h.flags
	f.StringVar(&in.Description, "description", "", "what it does")
	class := f.String("class", "", "task, agent or process")
	f.TextVar(&in.Timeout, "timeout", perdure.Duration(0), "the time that a run has")
	f.IntVar(&retry.MaxAttempts, "max-attempts", 0, "attempts before it is given up")
	f.TextVar(&retry.Backoff, "backoff", perdure.Duration(0), "the delay of the first retry")
	f.TextVar(&retry.MaxBackoff, "max-backoff", perdure.Duration(0), "the longest delay of a retry")
	f.IntVar(&in.Concurrency, "concurrency", 0, "how `many` of its runs may be leased at once")
	limits := f.String("limits", "", "`limits` that its runs are under, separated by commas")
	f.StringVar(&in.LimitKeyFrom, "limit-key-from", "", "JSON `pointer` to the key of its limits in the input")
	notRetried := f.String("not-retried", "", "`codes` of failures that are not retried, separated by commas")
	f.TextVar(&in.HoldTimeout, "hold-timeout", perdure.Duration(0), "how long a run is held because of a defect")
	hold := f.Bool("hold-defects", true, "whether a defect of the code holds a run")
	f.Func("input-schema", "`file` with the JSON Schema of the input", schemaInto(&in.InputSchema))
	f.Func("output-schema", "`file` with the JSON Schema of the result", schemaInto(&in.OutputSchema))
	f.Func("signal", "`name=file` with the JSON Schema of a signal; repeat it: all signals are replaced by these",
		func(text string) error {
			name, file, ok := strings.Cut(text, "=")
			if !ok || name == "" {
				return fmt.Errorf("write it as name=file")
			}
			if _, twice := in.Signals[name]; twice {
				return fmt.Errorf("the signal %s is given twice", name)
			}
			var schema json.RawMessage
			if err := schemaInto(&schema)(file); err != nil {
				return err
			}
			if in.Signals == nil {
				in.Signals = make(map[string]json.RawMessage)
			}
			in.Signals[name] = schema
			return nil
		})
	unset := f.String("unset", "", "`fields` whose overrides are removed, such as timeout,retry.backoff")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	in.Class = perdure.Class(*class)
	if f.given("hold-defects") {
		in.HoldDefects = hold
	}
	if f.given("not-retried") {
		retry.NotRetried = []perdure.Code{}
		for _, code := range separated(*notRetried) {
			retry.NotRetried = append(retry.NotRetried, perdure.Code(code))
		}
	}
	if f.given("max-attempts") || f.given("backoff") || f.given("max-backoff") || f.given("not-retried") {
		in.Retry = &retry
	}
	in.Limits, in.Remove = separated(*limits), separated(*unset)
	if in.Empty() && len(in.Remove) == 0 {
		fmt.Fprintln(h.stderr, "perdure kinds set: say what to set, such as --timeout 1h, or --unset timeout")
		return errUsage
	}
	k, err := c.ChangeKind(h.ctx, args[0], in)
	if err != nil {
		return err
	}
	return h.printKind(k)
}

// schemaInto returns the function of a flag that reads a JSON Schema from a file.
func schemaInto(into *json.RawMessage) func(file string) error {
	return func(file string) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !json.Valid(b) {
			return fmt.Errorf("%s has no JSON", file)
		}
		*into = b
		return nil
	}
}

func (h *kindsCall) remove() error {
	all := h.flags.Bool("platform", false, "the entry of the platform; takes a key of the platform")
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	remove := c.DeleteKind
	if *all {
		remove = admin.New(c).DeletePlatformKind
	}
	if err := remove(h.ctx, args[0]); err != nil {
		return err
	}
	if *h.asJSON {
		return printJSONLine(h.stdout, map[string]any{"kind": args[0], "deleted": true})
	}
	_, err = fmt.Fprintf(h.stdout, "%s deleted\n", visible(args[0]))
	return err
}
