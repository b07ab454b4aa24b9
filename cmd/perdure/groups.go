package main

import (
	"context"
	"fmt"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

const groupsUsage = `Usage:

  perdure groups                               groups of runs, newest first
  perdure groups list [--state open|ended|satisfied|timed_out] [--limit N] [--cursor C]
  perdure groups show ID                       a group, and which of its runs have ended

Every one takes --json. See docs/waiting.md#many-at-once.
`

// groupsCommand implements "perdure groups".
func groupsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &groupsCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("groups", groupsUsage, "list", []subcommand{
		{"list", "Lists groups, newest first.\n\n  perdure groups list --state open", h.list},
		{"show ID", "Shows a group and its runs.", h.show},
	})
}

// A groupsCall is one call of "perdure groups".
type groupsCall struct{ subcommandCall }

func (h *groupsCall) list() error {
	var f client.GroupFilter
	state := h.flags.String("state", "", "only groups of this `state`: open, ended, satisfied or timed_out")
	h.flags.IntVar(&f.Limit, "limit", 50, "at most so many, up to 1000")
	h.flags.StringVar(&f.Cursor, "cursor", "", "go on behind the page that ended with this `cursor`")
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	f.State = perdure.GatheringState(*state)
	page, err := c.Groups(h.ctx, f)
	if err != nil {
		return err
	}
	err = h.print(page, func(w io.Writer) {
		if len(page.Groups) == 0 {
			fmt.Fprintln(w, "No groups.")
			return
		}
		fmt.Fprintln(w, "GROUP\tSTATE\tMODE\tENDED\tUNSUCCESSFUL\tAGE\tDEADLINE")
		for i := range page.Groups {
			g := &page.Groups[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%d\t%s\t%s\n", g.GroupID, g.State, g.Mode, g.Ended, g.Total,
				g.Ended-g.Completed, ago(g.CreatedAt), localTime(g.DeadlineAt))
		}
	})
	if err == nil && !*h.asJSON && page.NextCursor != "" {
		fmt.Fprintf(h.stderr, "There may be more: --cursor %s\n", page.NextCursor)
	}
	return err
}

func (h *groupsCall) show() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	g, err := c.Group(h.ctx, perdure.GroupID(args[0]))
	if err != nil {
		return err
	}
	return h.print(g, func(w io.Writer) {
		fmt.Fprintf(w, "group\t%s\nstate\t%s\nmode\t%s\n", g.GroupID, g.State, g.Mode)
		if g.OnLosers != "" {
			fmt.Fprintf(w, "losers\t%s\n", g.OnLosers)
		}
		decided := ""
		if g.State != perdure.GatheringOpen {
			decided = " when it was decided"
		}
		fmt.Fprintf(w, "ended\t%d of %d%s, %d completed\n", g.Ended, g.Total, decided, g.Completed)
		fmt.Fprintf(w, "made\t%s ago\n", ago(g.CreatedAt))
		if g.DeadlineAt != nil {
			fmt.Fprintf(w, "deadline\t%s\n", localTime(g.DeadlineAt))
		}
		printGroupRuns(w, g)
	})
}

// printGroupRuns prints the runs of a group: those that have ended in the order of their ends, then the others.
func printGroupRuns(w io.Writer, g *api.Group) {
	ended := make(map[perdure.RunID]bool, len(g.EndedRuns))
	fmt.Fprintln(w, "\nRUN\tSTATE\tENDED")
	for _, r := range g.EndedRuns {
		ended[r.RunID] = true
		fmt.Fprintf(w, "%s\t%s\t%s ago\n", r.RunID, r.State, ago(r.FinishedAt))
	}
	for _, id := range g.RunIDs {
		if !ended[id] {
			fmt.Fprintf(w, "%s\t%s\t-\n", id, "not ended")
		}
	}
}
