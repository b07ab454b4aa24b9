package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const recoveryUsage = `Usage:

  perdure recovery [status]                  what became of processes at the server's start
  perdure recovery heartbeats                live processes and the age of their heartbeats
  perdure recovery stale                     those without a recent sign of life
  perdure recovery sentinels                 heartbeat files, and the files that were set aside
  perdure recovery failed                    processes that were lost
  perdure recovery resume RUN…               wait for live ones once more, make new runs of lost ones
  perdure recovery log                       what recovery did at the server's start
  perdure recovery health RUN                one process

These take a key of the platform. Every one takes --json.
`

// recoveryCommand implements "perdure recovery".
func recoveryCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &recoveryCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("recovery", recoveryUsage, "status", []subcommand{
		{"status", "Shows what became of processes at the server's start.\n\n  perdure recovery status", h.status},
		{"heartbeats", "Lists live processes with the age of their heartbeats.\n\n  perdure recovery heartbeats",
			h.heartbeats},
		{"stale", "Lists live processes without a recent sign of life.\n\n  perdure recovery stale", h.stale},
		{"sentinels", "Lists the heartbeat files of the server's workspace, and the files that were set aside.\n\n" +
			"  perdure recovery sentinels", h.sentinels},
		{"failed", "Lists processes that were lost, newest first.\n\n  perdure recovery failed", h.failed},
		{"resume RUN…", "Has the server wait for live processes once more, and makes new runs of lost ones.\n\n" +
			"  perdure recovery resume RUN…", h.resume},
		{"log", "Shows what recovery did at the server's start.\n\n  perdure recovery log", h.log},
		{"health RUN", "Shows the health of a process.\n\n  perdure recovery health RUN", h.health},
	})
}

type recoveryCall struct{ subcommandCall }

// jobPage reads and prints a page of a list of processes. show prints it and nextOf gives its next cursor.
func jobPage[P any](
	h *recoveryCall, read func(*admin.Client, context.Context, admin.JobFilter) (*P, error),
	nextOf func(*P) string, show func(w io.Writer, p *P),
) error {
	var f admin.JobFilter
	h.flags.IntVar(&f.Limit, "n", 100, "at most so many")
	h.flags.StringVar(&f.Cursor, "cursor", "", "begin behind the last `one` of the page before")
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	if f.Limit < 1 || f.Limit > 1000 {
		fmt.Fprintf(h.stderr, "perdure %s: -n takes 1 to 1000\n", h.flags.Name())
		return errUsage
	}
	p, err := read(admin.New(c), h.ctx, f)
	if err != nil {
		return err
	}
	if next := nextOf(p); next != "" && !*h.asJSON {
		fmt.Fprintf(h.stderr, "There may be more: --cursor %s\n", next)
	}
	return h.print(p, func(w io.Writer) { show(w, p) })
}

func (h *recoveryCall) status() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	s, err := admin.New(c).RecoveryStatus(h.ctx)
	if err != nil {
		return err
	}
	m, err := admin.New(c).RecoveryMetrics(h.ctx)
	if err != nil {
		return err
	}
	return h.print(s, func(w io.Writer) {
		r := &s.Recovery
		if r.State == "none" {
			fmt.Fprintln(w, "This server watches no workspace.")
		} else {
			fmt.Fprintf(w, "recovery\t%s\nstarted\t%s\nfinished\t%s\n", visible(r.State), visible(r.StartedAt),
				visible(cmp.Or(r.FinishedAt, "-")))
			fmt.Fprintf(w, "watched\t%d\nreattached\t%d\nadopted\t%d\ndead\t%d\nset aside\t%d\nlast scan\t%.1f ms\n",
				r.Watched, r.Reattached, r.Adopted, r.Dead, r.SetAside, m.ScanMs)
		}
		fmt.Fprintf(w, "processes\t%d fresh, %d stale, %d dead\n", m.Fresh, m.Stale, m.Dead)
	})
}

func (h *recoveryCall) heartbeats() error {
	next := func(p *api.JobHeartbeats) string { return p.NextCursor }
	return jobPage(h, (*admin.Client).JobHeartbeats, next, func(w io.Writer, p *api.JobHeartbeats) {
		fmt.Fprintln(w, "RUN\tTIER\tHEARTBEAT\tENGINE")
		for _, j := range p.Jobs {
			fmt.Fprintf(w, "%s\t%s\t%s ago\t%s\n", j.JobID, visible(j.Status), time.Duration(j.AgeSeconds)*time.Second,
				visible(j.AgentEngine))
		}
		fmt.Fprintf(w, "%d live: %d fresh, %d stale, %d dead\n", p.Summary.Total, p.Summary.Fresh, p.Summary.Stale,
			p.Summary.Dead)
	})
}

func (h *recoveryCall) stale() error {
	next := func(p *api.StaleJobs) string { return p.NextCursor }
	return jobPage(h, (*admin.Client).StaleJobs, next, func(w io.Writer, p *api.StaleJobs) {
		if len(p.StaleJobs) == 0 {
			fmt.Fprintln(w, "All processes are fresh.")
			return
		}
		fmt.Fprintln(w, "RUN\tHEARTBEAT\tDO\tFOLDER")
		for _, j := range p.StaleJobs {
			fmt.Fprintf(w, "%s\t%.1f min ago\t%s\t%s\n", j.JobID, j.AgeMinutes, visible(j.RecommendedAction),
				visible(cmp.Or(j.WorkspacePath, "-")))
		}
	})
}

func (h *recoveryCall) sentinels() error {
	next := func(p *api.Sentinels) string { return p.NextCursor }
	return jobPage(h, (*admin.Client).Sentinels, next, func(w io.Writer, p *api.Sentinels) {
		fmt.Fprintln(w, "RUN\tTENANT\tTIER\tSTATUS\tCOUNTER\tEPOCH\tLOCK\tENGINE")
		for i := range p.Sentinels {
			s := &p.Sentinels[i]
			lock := "free"
			if s.LockHeld {
				lock = "held"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", s.JobID, visible(string(s.Tenant)), visible(s.Tier),
				visible(s.Status), s.Counter, s.Epoch, lock, visible(s.AgentEngine))
		}
		for _, a := range p.SetAside {
			fmt.Fprintf(w, "set aside: %s: %s\n", visible(a.Path), visible(a.Reason))
		}
	})
}

func (h *recoveryCall) failed() error {
	next := func(p *api.FailedJobs) string { return p.NextCursor }
	return jobPage(h, (*admin.Client).FailedJobs, next, func(w io.Writer, p *api.FailedJobs) {
		if len(p.FailedJobs) == 0 {
			fmt.Fprintln(w, "No process was lost.")
			return
		}
		fmt.Fprintln(w, "RUN\tFAILED\tREASON")
		for _, j := range p.FailedJobs {
			fmt.Fprintf(w, "%s\t%s\t%s\n", j.JobID, visible(j.FailedAt), visible(j.Reason))
		}
	})
}

func (h *recoveryCall) resume() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	ids := make([]perdure.RunID, len(args))
	for i, a := range args {
		ids[i] = perdure.RunID(a)
	}
	done, err := admin.New(c).ResumeJobs(h.ctx, ids)
	if err != nil {
		return err
	}
	refused := 0
	err = h.print(done, func(w io.Writer) {
		for _, x := range done.Results {
			fmt.Fprintf(w, "%s\t%s\t%s\n", x.JobID, visible(x.Action), visible(cmp.Or(string(x.RunID), x.Reason)))
		}
	})
	for _, x := range done.Results {
		if x.Action == api.ResumeRefused {
			refused++
		}
	}
	if err == nil && refused > 0 {
		err = exitError(exitFail)
	}
	return err
}

func (h *recoveryCall) log() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	var all api.StartupLog
	for {
		p, err := admin.New(c).StartupLog(h.ctx, len(all.Lines))
		if err != nil {
			return err
		}
		all.Lines, all.Dropped = append(all.Lines, p.Lines...), p.Dropped
		if p.Next <= 0 || len(p.Lines) == 0 {
			break
		}
	}
	if all.Lines == nil {
		all.Lines = []api.StartupLine{}
	}
	return h.print(all, func(w io.Writer) {
		for _, l := range all.Lines {
			fmt.Fprintf(w, "%s\t%s\t%s\n", visible(l.At), cmp.Or(string(l.JobID), "-"), visible(l.Message))
		}
		if len(all.Lines) == 0 {
			fmt.Fprintln(w, "Nothing: this server watches no workspace.")
		}
		if all.Dropped > 0 {
			fmt.Fprintf(w, "%d more lines were not kept\n", all.Dropped)
		}
	})
}

func (h *recoveryCall) health() error {
	args, c, err := h.begin()
	if err != nil {
		return err
	}
	j, err := admin.New(c).JobHealth(h.ctx, perdure.RunID(args[0]))
	if err != nil {
		return err
	}
	return h.print(j, func(w io.Writer) {
		fmt.Fprintf(w, "run\t%s\nheartbeat\t%s, %s ago\nsentinel\t%v\nfolder\t%v\nsession data\t%v\n", j.JobID,
			visible(j.HeartbeatStatus), time.Duration(j.AgeSeconds)*time.Second, j.SentinelFileExists,
			j.WorkspaceExists,
			j.SessionDataExists)
	})
}
