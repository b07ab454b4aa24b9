package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const keysUsage = `Usage:

  perdure keys create NAME --scopes runs:create,runs:read [--tenant T | --platform] [--ttl 720h]
  perdure keys list
  perdure keys revoke KEY_ID
  perdure keys bootstrap --data DIR          a platform key, of a store without its server
  perdure keys signing …                     keys that sign runs
`

func keysCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	k := &keysCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return k.dispatch("keys", keysUsage, "", []subcommand{
		{"create NAME",
			"Makes a key. Its secret is printed once, and stored nowhere.\n\n" +
				"  perdure keys create NAME --scopes runs:create,runs:read", k.create},
		{"list", "Lists the keys of the tenant, without their secrets.\n\n  perdure keys list", k.list},
		{"revoke ID", "Ends a key at once.\n\n  perdure keys revoke KEY_ID", k.revoke},
		{"bootstrap", bootstrapAbout, k.bootstrap},
		{"signing", "", func() error { return signingCommand(ctx, k.args, stdout, stderr) }},
	})
}

type keysCall struct{ subcommandCall }

func (h *keysCall) create() error {
	scopes := h.flags.String("scopes", "", "what it allows (default: every scope that a key of its kind can have)")
	platform := h.flags.Bool("platform", false,
		"make a key of the platform, which calls /api/admin/… and /metrics as far as its scopes go (takes one)")
	tenant := h.conn.tenant
	h.flags.Lookup("tenant").Usage = "of another `tenant`, which is made if need be (takes a key of the platform; " +
		"default: PERDURE_TENANT, which is not made, or the key's own)"
	h.conn.ownTenant = func() bool { return *platform || *tenant != "" }
	var in api.CreateKey
	h.flags.TextVar(&in.TTL, "ttl", perdure.Duration(0), "when it expires; 0s: never")
	name, c, err := h.begin()
	if err != nil {
		return err
	}
	if *platform && *tenant != "" {
		fmt.Fprintln(h.stderr,
			"perdure keys create: a key is either of a tenant or of the platform: give --tenant or --platform")
		return errUsage
	}
	in.Name, in.Scopes = name[0], scopeNames(*scopes, *platform)
	var k *api.NewKey
	switch {
	case *platform:
		k, err = admin.New(c).CreatePlatformKey(h.ctx, in)
	case *tenant != "":
		k, err = admin.New(c).CreateTenantKey(h.ctx, perdure.TenantID(*tenant), in)
	default:
		k, err = admin.New(c).CreateKey(h.ctx, in)
	}
	if err != nil {
		return err
	}
	if *h.asJSON {
		return printJSON(h.stdout, k)
	}
	return h.showOnce(&k.Key, k.Secret)
}

// showOnce prints the secret of a new key.
func (h *keysCall) showOnce(k *perdure.Key, secret string) error {
	of := "tenant " + string(k.Tenant)
	if k.Platform {
		of = "the platform"
	}
	fmt.Fprintf(h.stderr, "Key %s of %s. This is the only time its secret is shown:\n", k.ID, of)
	_, err := fmt.Fprintln(h.stdout, secret)
	return err
}

// scopeNames returns the scopes of a list, or all that a key of its kind can have.
func scopeNames(list string, platform bool) (names []string) {
	if list != "" {
		return strings.Split(list, ",")
	}
	all := perdure.TenantScopes
	if platform {
		all = perdure.Scopes
	}
	for _, s := range all {
		names = append(names, string(s))
	}
	return names
}

func (h *keysCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	list, err := admin.New(c).Keys(h.ctx)
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.ID, literal(k.Name), state,
			k.CreatedAt.Time().Format("2006-01-02 15:04"), literal(strings.Join(scopes, " ")))
	}
}

func (h *keysCall) revoke() error {
	ids, c, err := h.begin()
	if err != nil {
		return err
	}
	k, err := admin.New(c).RevokeKey(h.ctx, ids[0])
	if err != nil {
		return err
	}
	return h.print(k, func(w io.Writer) { fmt.Fprintf(w, "%s (%s) is revoked\n", k.ID, literal(k.Name)) })
}
