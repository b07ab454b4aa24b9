package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

const keysUsage = `Usage:

  perdure keys create NAME --scopes runs:create,runs:read [--tenant T] [--ttl 720h]
  perdure keys list
  perdure keys revoke KEY_ID
  perdure keys signing …                     keys that sign runs
`

func keysCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	k := &keysCall{wordCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return k.say("keys", keysUsage, "", []word{
		{"create", "Makes a key. Its secret is printed once, and stored nowhere.\n\n  perdure keys create NAME --scopes runs:create,runs:read", k.create},
		{"list", "Lists the keys of the tenant, without their secrets.\n\n  perdure keys list", k.list},
		{"revoke", "Ends a key at once.\n\n  perdure keys revoke KEY_ID", k.revoke},
		{"signing", "", func() error { return signingCommand(ctx, k.args, stdout, stderr) }},
	})
}

type keysCall struct{ wordCall }

func (h *keysCall) create() error {
	names := make([]string, len(perdure.Scopes))
	for i, s := range perdure.Scopes {
		names[i] = string(s)
	}
	scopes := h.flags.String("scopes", strings.Join(names, ","), "what it allows")
	tenant := h.flags.String("tenant", "", "of another `tenant`, which is made if need be (takes a key of the platform)")
	var in api.CreateKey
	h.flags.TextVar(&in.TTL, "ttl", perdure.Duration(0), "when it expires; 0s: never")
	name, c, err := h.begin(1)
	if err != nil {
		return err
	}
	in.Name, in.Scopes = name[0], strings.Split(*scopes, ",")
	var k *api.NewKey
	if *tenant != "" {
		k, err = c.CreateTenantKey(h.ctx, perdure.TenantID(*tenant), in)
	} else {
		k, err = c.CreateKey(h.ctx, in)
	}
	if err != nil {
		return err
	}
	if *h.asJSON {
		return printJSON(h.stdout, k)
	}
	fmt.Fprintf(h.stderr, "Key %s of tenant %s. This is the only time its secret is shown:\n", k.ID, k.Tenant)
	_, err = fmt.Fprintln(h.stdout, k.Secret)
	return err
}

func (h *keysCall) list() error {
	_, c, err := h.begin(0)
	if err != nil {
		return err
	}
	list, err := c.Keys(h.ctx)
	if err != nil {
		return err
	}
	return h.print(list, func(w io.Writer) { printKeys(w, list) })
}

func printKeys(w io.Writer, list []perdure.Key) {
	fmt.Fprintln(w, "KEY\tNAME\tSTATE\tCREATED\tSCOPES")
	for _, k := range list {
		state := "valid"
		switch {
		case k.RevokedAt != 0:
			state = "revoked"
		case k.ExpiresAt != 0:
			state = "until " + k.ExpiresAt.Time().Format("2006-01-02 15:04")
		}
		if k.Platform {
			state += ", platform"
		}
		var scopes []string
		for _, s := range k.Scopes {
			scopes = append(scopes, string(s))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.ID, literal(k.Name), state, k.CreatedAt.Time().Format("2006-01-02 15:04"), literal(strings.Join(scopes, " ")))
	}
}

func (h *keysCall) revoke() error {
	ids, c, err := h.begin(1)
	if err != nil {
		return err
	}
	k, err := c.RevokeKey(h.ctx, ids[0])
	if err != nil {
		return err
	}
	return h.print(k, func(w io.Writer) { fmt.Fprintf(w, "%s (%s) is revoked\n", k.ID, literal(k.Name)) })
}
