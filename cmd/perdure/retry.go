package main

import (
	"context"
	"fmt"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/cmd/internal/paint"
)

// fromUsage is the help of the flag --from, which retry and dlq redrive have.
const fromUsage = "begin with this much of the journal: journal, start, or the steps before the one with this `key`; " +
	"by default an agent begins with its journal, before the step whose error it ended with, and others at the start"

// retryCommand implements "perdure retry".
func retryCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("retry RUN…", "Makes new runs with the inputs of ended ones. An agent goes on where it stood: "+
		"what its steps have done is not done again.\n\n  perdure retry RUN…\n  perdure retry RUN --from start\n"+
		"  perdure retry RUN --from 'charge#1'", stderr)
	conn := addConnFlags(f)
	from := f.String("from", "", fromUsage)
	asJSON := f.Bool("json", false, "print JSON")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		f.Usage()
		return errUsage
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	in := api.RetryMany{Retry: api.Retry{From: *from}}
	for _, id := range ids {
		in.RunIDs = append(in.RunIDs, perdure.RunID(id))
	}
	done, err := c.RetryMany(ctx, in)
	if err != nil {
		return err
	}
	if *asJSON {
		err = printJSON(stdout, done)
	} else {
		red := paint.Painter{On: paint.Colourful(stdout)}
		for i := range done.Results {
			x := &done.Results[i]
			text := "is run " + string(x.RetriedBy)
			if x.Error != nil {
				text = red.In(paint.Red, literal(string(x.Error.Code)+": "+x.Error.Detail))
			}
			fmt.Fprintf(stdout, "%s %s\n", x.RunID, text)
		}
	}
	if err == nil && done.Done < len(done.Results) {
		err = exitError(exitFail)
	}
	return err
}
