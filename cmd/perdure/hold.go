package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
)

// releaseCommand implements "perdure release".
func releaseCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("release RUN…",
		"Ends the hold of runs: any worker may take them now. A run is on hold after a defect of its code.\n\n"+
			"  perdure release RUN…", stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	return conn.each(ctx, ids, stdout, *asJSON, func(c *client.Client, id perdure.RunID) (*api.Run, error) {
		return admin.New(c).ReleaseHold(ctx, id)
	})
}

// add implements "perdure dlq add".
func (d *dlqCall) add() error {
	ids, err := parseMixed(d.flags, d.args)
	if err != nil {
		return err
	}
	return d.conn.each(d.ctx, ids, d.stdout, *d.asJSON, func(c *client.Client, id perdure.RunID) (*api.Run, error) {
		return admin.New(c).DeadLetterRun(d.ctx, id)
	})
}

// holdText describes a hold.
func holdText(h *api.Hold, now time.Time) string {
	text := fmt.Sprintf("%s, since %s, defects: %d", visible(string(h.Code)), h.Since.Time().Local().Format("15:04:05"),
		h.Count)
	if h.NextAt != nil {
		text += ", tried again in " + formatDuration(max(0, h.NextAt.Time().Sub(now)))
	} else {
		text += ", being tried now"
	}
	return text + ", ends " + formatTime(h.Until)
}
