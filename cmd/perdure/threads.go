package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

func threadsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("threads",
		"Lists conversations, the one in which something happened last first.\n\n  perdure threads -n 200", stderr)
	conn := addConnFlags(f)
	var filter client.ThreadFilter
	f.IntVar(&filter.Limit, "n", 50, "at most so many, up to 200")
	f.StringVar(&filter.Cursor, "cursor", "", "go on behind the page that ended with this `cursor`")
	all := f.Bool("all", false, "also threads of workers, which a run has created for its children")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if filter.Limit < 1 || filter.Limit > 200 {
		fmt.Fprintln(stderr, "perdure threads: -n takes 1 to 200")
		return errUsage
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	filter.WithoutChildren = !*all
	page, err := c.Threads(ctx, filter)
	for err == nil && len(page.Threads) == 0 && page.NextCursor != "" { // there were only threads of workers
		filter.Cursor = page.NextCursor
		page, err = c.Threads(ctx, filter)
	}
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, page)
	}
	return printThreads(page, stdout, stderr)
}

// printThreads prints threads as a table.
func printThreads(page *api.Threads, stdout, stderr io.Writer) error {
	if len(page.Threads) == 0 {
		fmt.Fprintln(stdout, "No threads.")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "THREAD\tACTIVE\tRUN\tTITLE\tLAST MESSAGE")
	for i := range page.Threads {
		th := &page.Threads[i]
		run, last := "", ""
		if th.LiveRun != nil {
			run = string(th.LiveRun.RunID) + " " + string(th.LiveRun.State)
		}
		if th.LastMessage != nil {
			last = string(th.LastMessage.Role) + ": " + shorter(th.LastMessage.Text, 60)
		}
		if th.ParentRunID != "" {
			last = "(of a worker) " + last
		}
		fmt.Fprintf(w, "%s\t%s ago\t%s\t%s\t%s\n", th.ThreadID, ago(th.UpdatedAt), orDash(run),
			orDash(shorter(th.Title, 40)), orDash(last))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if page.NextCursor != "" {
		fmt.Fprintf(stderr, "There are more: perdure threads --cursor %s\n", page.NextCursor)
	}
	return nil
}

// shorter cuts a text to a number of characters.
func shorter(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}
