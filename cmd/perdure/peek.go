package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/cmd/internal/paint"
)

func peek(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("peek RUN",
		"Shows what a run is doing: since when, what happened last, what it waits for, and its children.\n\n"+
			"  perdure peek RUN", stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	a, err := c.Activity(ctx, perdure.RunID(ids[0]))
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, a)
	}
	return printActivity(stdout, a, time.Now())
}

// printActivity prints what a run is doing.
func printActivity(out io.Writer, a *api.Activity, now time.Time) error {
	paint := statusPainter(out)
	fmt.Fprintf(out, "%s  %s  %s%s  for %s, attempt %d of %d\n", a.RunID, visible(a.Kind),
		paint(visible(a.Status)), alive(out, a.Tier, a.SilentMS), millis(a.ElapsedMS), a.Attempt, a.MaxAttempts)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	item := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %s\t"+format+"\n", append([]any{name}, args...)...)
	}
	switch w := a.WaitingFor; {
	case w != nil && w.Reason == perdure.WaitingQueuePaused && a.Paused != nil:
		item("waits", "its queue is paused %s", pauseText(a.Paused))
	case w != nil:
		item("waits", "%s", visible(w.Text))
	case a.Unserved != nil: // a server of the release before
		item("waits", "%s", visible(a.Unserved.Message(a.Kind)))
	}
	if o := a.Operation; o != nil {
		item("doing", "%s, for %s", visible(o.Activity), formatDuration(now.Sub(o.Since.Time())))
	}
	if a.WorkerID != "" {
		item("worker", "%s", visible(a.WorkerID))
	}
	switch {
	case len(a.Progress) > 0:
		item("progress", "%s", visible(string(a.Progress)))
	case a.ProgressSize > 0:
		item("progress", "%d bytes", a.ProgressSize)
	}
	if a.Hold != nil {
		item("on hold", "%s", holdText(a.Hold, now))
	}
	if a.Cancel != nil {
		item("cancel", "%s", cancelProof(a.Cancel))
	}
	if a.Error != nil {
		item("error", "%s: %s", visible(string(a.Error.Code)), visible(a.Error.Message))
	}
	if a.Summary != "" {
		item("result", "%s", visible(a.Summary))
	}
	for _, x := range a.Waits {
		item("waits for", "%s", waitText(&x, now))
	}
	for _, x := range a.Skipped {
		item("skipped", "%s %s: %s", visible(x.Type), visible(x.Name), visible(x.WatchdogError))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if a.Text != "" {
		fmt.Fprintln(out, "\nWrites:")
		for line := range strings.Lines(a.Text) {
			fmt.Fprintf(out, "  │ %s\n", visible(strings.TrimRight(line, "\r\n")))
		}
	}
	if len(a.Recent) > 0 {
		fmt.Fprintln(out, "\nRecently:")
		for _, h := range a.Recent {
			fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("  %s  %-22s %s", h.At.Time().Local().Format("15:04:05"),
				visible(string(h.Type)), visible(h.Text)), " "))
		}
	}
	return printChildren(out, a, paint)
}

// printChildren prints the children of a run.
func printChildren(out io.Writer, a *api.Activity, paint func(string) string) error {
	if len(a.Children) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nChildren (%d of %d):\n", len(a.Children), a.Spawned)
	for _, k := range a.Children {
		doing := visible(first(string(k.Error), k.Summary))
		if k.Operation != nil {
			doing = visible(k.Operation.Activity)
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("  %s  %s  %s%s  %s  %s", k.RunID, visible(k.Kind),
			paint(visible(k.Status)), alive(out, k.Tier, k.SilentMS), millis(k.ElapsedMS), doing), " "))
	}
	return nil
}

// alive describes how long the holder of a run has been silent. It is empty for a run without a
// holder, or with a recent sign of life.
func alive(out io.Writer, tier string, silent *int64) string {
	if tier == "" || silent == nil || (tier == perdure.TierFresh && *silent < 10_000) {
		return ""
	}
	text := fmt.Sprintf("%s, silent for %s", tier, millis(*silent))
	if colour := map[string]string{perdure.TierStale: "33", perdure.TierDead: "31"}[tier]; colour != "" &&
		paint.Colourful(out) {
		text = "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	return " (" + text + ")"
}

// waitText describes an open wait.
func waitText(w *api.OpenWait, now time.Time) string {
	text := visible(string(w.Type))
	if w.Name != "" {
		text += " " + visible(w.Name)
	}
	if w.Children > 0 {
		mode := visible(string(cmp.Or(w.Mode, perdure.ModeAll)))
		text = fmt.Sprintf("%s of %d children, %d have ended", mode, w.Children, w.Ended)
	}
	if w.TimeoutAt != nil {
		text += ", at most " + formatDuration(max(0, w.TimeoutAt.Time().Sub(now))) + " more"
	}
	return text
}

// cancelProof lists the times of a cancel request: requested, delivered, acknowledged, stopped.
func cancelProof(c *perdure.Cancel) string {
	text := "requested " + c.RequestedAt.Time().Local().Format("15:04:05.000")
	for _, step := range []struct {
		name string
		at   perdure.Instant
	}{{"delivered", c.ToldAt}, {"acknowledged", c.AckedAt}, {"stopped", c.StoppedAt}} {
		if step.at == 0 {
			text += " → not " + step.name
			continue
		}
		text += fmt.Sprintf(" → %s +%s", step.name, formatDuration(step.at.Sub(c.RequestedAt)))
	}
	if c.Reason != "" {
		text += " (" + visible(c.Reason) + ")"
	}
	return text
}

func millis(ms int64) string { return formatDuration(time.Duration(ms) * time.Millisecond) }
