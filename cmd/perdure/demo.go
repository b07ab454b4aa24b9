package main

import (
	"context"
	"io"

	"github.com/perdure/perdure/cmd/perdure/internal/demo"
)

const demoAbout = `Shows what Perdure is for. A server and an agent are started as processes. You ask the agent to
check disk space, and stop waiting after three seconds: the agent goes on. While its worker looks at the
disk, the server is killed with SIGKILL. It is started again, and the answer is in the conversation.
Everything is in a temporary folder that is removed.

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
