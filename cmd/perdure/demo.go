package main

import (
	"context"
	"io"

	"github.com/perdure/perdure/internal/demo"
)

const demoAbout = `Starts a server and a worker as processes of their own and asks for a run. The caller stops waiting; the run
goes on. The server is killed with SIGKILL and started again: the worker has worked on, and delivers. Then the worker is
killed too: another one takes over when the lease has run out, and finishes from the journal. Everything happens
in a temporary folder that is removed.

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
