package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
)

const mockModelAbout = `Serves a model that answers by a script, for tests and for trying things out without a key.
It speaks
the chat-completions API, with streams and tool calls, and fails on demand. Without a script it repeats
what it is told. GET /requests shows what it was asked; DELETE /requests forgets that.
docs/testing.md#the-scripted-model describes the script.

  perdure mock-model --script model.toml
  curl -s http://127.0.0.1:7374/requests`

// defaultMockListen is next to the port of the server.
const defaultMockListen = "127.0.0.1:7374"

func mockModel(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("mock-model", mockModelAbout, stderr)
	file := f.String("script", "", "`file` of the script: JSON if its name ends with .json, and TOML otherwise")
	listen := f.String("listen", defaultMockListen, "`address` to listen on; port 0 means any")
	insecure := f.Bool("insecure", false,
		"allow an address that other machines reach, where anybody may read the requests")
	if err := parse(f, args); err != nil {
		return err
	}
	script := mockmodel.Echo()
	if *file != "" {
		var err error
		if script, err = mockmodel.Load(*file); err != nil {
			return err
		}
	}
	h, err := mockmodel.New(script)
	if err != nil {
		return err
	}
	if where := (&settings.Config{Listen: *listen}); !where.Loopback() && !*insecure {
		return fmt.Errorf("listen: %s is reachable from other machines, and anybody there could read the requests. "+
			"Listen on 127.0.0.1, or set --insecure", *listen)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	hs := server(h, slog.New(slog.NewTextHandler(stderr, nil)))
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	fmt.Fprintf(stdout, "http://%s/v1\n", l.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return hs.Close() // answers may take for ever
	}
}
