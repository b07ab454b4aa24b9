package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func late(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("late RUN [adopt|discard N]", `Lists late results of a run: they came too late, were refused, and were
kept. To adopt one completes the run if it is live, and otherwise replaces the run's deliverable.

  perdure late RUN
  perdure late RUN adopt N
  perdure late RUN discard N`, stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	id, n := perdure.RunID(words[0]), 0
	if len(words) > 1 {
		if len(words) == 3 {
			n, err = strconv.Atoi(words[2])
		}
		if (words[1] != "adopt" && words[1] != "discard") || err != nil || n < 1 {
			f.Usage()
			return errUsage
		}
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	if len(words) == 1 {
		list, err := c.LateResults(ctx, id)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(stdout, api.LateResults{LateResults: list})
		}
		return printLate(stdout, list, time.Now())
	}
	decide := c.Adopt
	if words[1] == "discard" {
		decide = c.Discard
	}
	r, err := decide(ctx, id, n)
	if err != nil {
		return err
	}
	return printStatus(stdout, r, *asJSON)
}

func printLate(out io.Writer, list []api.LateResult, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "No late results.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "N\tSTATE\tAGE\tTRY\tEPOCH\tFROM\tBYTES\tRESULT")
	for _, l := range list {
		from := visible(first(string(l.FromRunID), l.WorkerID, "-"))
		text := visible(first(l.Summary, string(l.Result)))
		if len(text) > 60 {
			text = strings.ToValidUTF8(text[:60], "") + "…"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%d\t%s\n", l.N, l.State, formatDuration(now.Sub(l.At.Time())),
			l.Attempt, l.Epoch, from, l.Size, text)
	}
	return w.Flush()
}
