package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
)

const secretUsage = `Usage:

  perdure secret rotate [--data DIR | --store postgres://…] [--seal-keys file:PATH]

Gives the store a new root secret, from which callback tokens and the secrets of new webhooks are
derived. No server may run on the store: with PostgreSQL, stop all nodes first. Existing callback
tokens stay valid for two rotations. Secrets of webhooks stay the same until each is rotated; the
command lists them. See docs/server.md.
`

// secretCommand implements "perdure secret".
func secretCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("secret", "", stderr)
	f.takes = []string{"rotate"}
	f.Usage = func() { fmt.Fprint(stderr, secretUsage) }
	c := settings.AddFlags(f.FlagSet, "data", "store", "doorbell", "seal_keys")
	asJSON := f.Bool("json", false, "print JSON")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if words[0] != "rotate" {
		f.Usage()
		return errUsage
	}
	cfg, err := c.Load(os.Getenv)
	if err != nil {
		return err
	}
	old, err := embedded.RotateSecret(embedded.Options{Dir: cfg.Dir, Store: cfg.Store, SealKeys: cfg.SealKeys})
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, map[string]any{"webhooks_of_older_secrets": append([]string{}, old...)})
	}
	fmt.Fprintln(stdout, "The store has a new root secret. Callback tokens that are out stay valid.")
	if len(old) > 0 {
		fmt.Fprintln(stdout,
			"The secrets of these webhooks follow from an older one, and stay valid. If it may be known, rotate each "+
				"(perdure webhooks rotate ID):")
	}
	for _, w := range old {
		fmt.Fprintln(stdout, "  "+literal(w))
	}
	return nil
}
