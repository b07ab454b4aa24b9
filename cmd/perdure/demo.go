package main

import (
	"context"
	"io"

	"github.com/perdure/perdure/internal/demo"
)

const demoAbout = `Starts a server and a worker as processes and submits a run. The caller stops waiting, and
the run goes on. The server is killed with SIGKILL and started again: the worker has gone on, and
commits its result. Then the worker is killed too: another one gets the run when the lease has expired,
and finishes it from the journal. Everything is in a temporary folder that is removed.

  perdure demo`

func demoCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("demo", demoAbout, stderr)
	asJSON := f.Bool("json", false, "print what happened as JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if !*asJSON {
		return demo.Run(ctx, stdout, nil)
	}
	return demo.Run(ctx, stdout, func(v any) error { return printJSON(stdout, v) })
}
