package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
)

func signalCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("signal RUN NAME [JSON]", `Sends a signal to a run. It is kept until the run waits for it. If
the run waits for an approval of that name, the signal is the decision: {"decision": "approve"} or
"reject". If the run has had an approval of that name before, it also needs the "action_hash".

  perdure signal RUN NAME [JSON | @file | -]`, stderr)
	conn := addConnFlags(f)
	key := f.String("idempotency-key", "", "send it once per `key`")
	asJSON := f.Bool("json", false, "print JSON")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	text := ""
	if len(words) == 3 {
		text = words[2]
	}
	data, err := readJSON("the data", text)
	if err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	var opts []client.CallOptions
	if *key != "" {
		opts = append(opts, client.IdempotencyKey(*key))
	}
	sent, err := c.Signal(ctx, perdure.RunID(words[0]), words[1], data, opts...)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, sent)
	}
	if sent.ApprovalID != "" {
		fmt.Fprintf(stdout, "%s is decided\n", sent.ApprovalID)
	}
	fmt.Fprintf(stdout, "%s %s\n", sent.RunID, statusPainter(stdout)(visible(sent.Status)))
	if names := sent.WaitingForSignals; len(names) > 0 {
		_, err = fmt.Fprintf(stdout, "it waits for: %s\n", visible(strings.Join(names, ", ")))
	}
	return err
}
