package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const signingUsage = `Usage:

  perdure keys signing new FILE              make a key that signs runs
  perdure keys signing public FILE…          print the public halves, for workers
  perdure keys signing list                  what the server signs with
  perdure keys signing require TENANT on|off

How it goes together is in docs/security.md#signed-runs.
`

// signingCommand implements "perdure keys signing".
func signingCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	k := &signingCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return k.dispatch("keys signing", signingUsage, "", []subcommand{
		{"new", "", func() error { return signingNew(k.args, stderr) }},
		{"public", "", func() error { return signingPublic(k.args, stdout, stderr) }},
		{"list",
			"Lists the public halves of the keys that the server signs runs with, and did.\n\n" +
				"  perdure keys signing list", k.list},
		{"require TENANT on|off",
			"Says whether a tenant's runs are handed over only with a valid signature. It takes a key of the " +
				"platform.\n\n  perdure keys signing require TENANT on|off", k.require},
	})
}

type signingCall struct{ subcommandCall }

// signingNew creates a signing key.
func signingNew(args []string, stderr io.Writer) error {
	f := flags("keys signing new FILE",
		"Makes a key that signs runs: an Ed25519 private key in PEM, in a file that its owner alone can read.\n\n"+
			"  perdure keys signing new FILE", stderr)
	file, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	s, err := perdure.NewSigner(text)
	if err != nil {
		return err
	}
	// An existing key is not overwritten: runs are signed with it.
	out, err := os.OpenFile(file[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "Key %s is in %s. Give it to every server: perdure serve --signing-keys %s\n", s.KeyID(),
		file[0], file[0])
	return nil
}

// signingPublic prints public keys.
func signingPublic(args []string, stdout, stderr io.Writer) error {
	f := flags("keys signing public FILE…",
		"Prints the public halves of keys that sign runs, as workers take them.\n\n"+
			"  perdure keys signing public FILE…", stderr)
	files, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	var keys [][]byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := perdure.NewSigner(b); err != nil {
			return fmt.Errorf("%s is no Ed25519 private key in PEM (PKCS #8)", file)
		}
		keys = append(keys, b)
	}
	s, err := perdure.NewSigner(keys...)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for _, k := range s.Trust().Keys() {
		fmt.Fprintf(&out, "# key %s\n%s", k.ID, k.PEM())
	}
	_, err = stdout.Write(out.Bytes())
	return err
}

func (h *signingCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	keys, err := c.SigningKeys(h.ctx)
	if err != nil {
		return err
	}
	return h.print(keys, func(w io.Writer) {
		if len(keys) == 0 {
			fmt.Fprintln(w, "The server has no keys: runs are not signed.")
			return
		}
		fmt.Fprintln(w, "KEY\tUSE")
		for _, k := range keys {
			use := "verifies"
			if k.Signs {
				use = "signs and verifies"
			}
			fmt.Fprintf(w, "%s\t%s\n", k.KeyID, use)
		}
	})
}

func (h *signingCall) require() error {
	names, err := parseMixed(h.flags, h.args)
	if err != nil {
		return err
	}
	yes := names[1] == "on"
	if !yes && names[1] != "off" {
		h.flags.Usage()
		return errUsage
	}
	c, err := h.conn.connect(h.ctx)
	if err != nil {
		return err
	}
	t, err := admin.New(c).ChangeTenant(h.ctx, perdure.TenantID(names[0]), api.ChangeTenant{RequireSignatures: &yes})
	if err != nil {
		return err
	}
	return h.print(t, func(w io.Writer) {
		text := "need no signature"
		if t.RequireSignatures {
			text = "are handed over only with a valid signature"
		}
		fmt.Fprintf(w, "Runs of tenant %s %s.\n", t.Tenant, text)
	})
}
