package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func viewCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("view RUN [NAME]", `Lists the views that a run has published, or prints the latest
value of one of them, as JSON.

  perdure view RUN
  perdure view RUN NAME`, stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON, with the version of the value and when it was published")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	run := perdure.RunID(words[0])
	if len(words) == 2 {
		v, err := c.View(ctx, run, words[1])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(stdout, v)
		}
		_, err = fmt.Fprintln(stdout, visible(string(v.Value)))
		return err
	}
	list, err := c.Views(ctx, run)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, api.Views{Views: append([]api.ViewHead{}, list...)})
	}
	tw := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSIZE\tVERSION\tUPDATED")
	for _, v := range list {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%s\n", visible(v.Name), v.Size, v.Version, formatTime(v.UpdatedAt))
	}
	return tw.Flush()
}
