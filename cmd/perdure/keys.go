package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func keysCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "create":
			return keysCreate(ctx, args[1:], stdout, stderr)
		case "list":
			return keysList(ctx, args[1:], stdout, stderr)
		case "revoke":
			return keysRevoke(ctx, args[1:], stdout, stderr)
		case "signing":
			return signingCommand(ctx, args[1:], stdout, stderr)
		}
	}
	fmt.Fprint(stderr, "Usage:\n\n  perdure keys create NAME --scopes runs:create,runs:read [--tenant T] [--ttl 720h]\n  perdure keys list\n  perdure keys revoke KEY_ID\n  perdure keys signing …\n")
	if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
		return nil
	}
	return errUsage
}

func keysCreate(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("keys create", "Makes a key. Its secret is printed once, and stored nowhere.\n\n  perdure keys create NAME", stderr)
	conn := addConnFlags(f)
	names := make([]string, len(perdure.Scopes))
	for i, s := range perdure.Scopes {
		names[i] = string(s)
	}
	scopes := f.String("scopes", strings.Join(names, ","), "what it allows")
	tenant := f.String("tenant", "", "of another `tenant`, which is made if need be (takes a key of the platform)")
	var in api.CreateKey
	f.TextVar(&in.TTL, "ttl", perdure.Duration(0), "when it expires; 0s: never")
	asJSON := f.Bool("json", false, "print JSON")
	name, err := parseMixed(f, args, 1, 1)
	if err != nil {
		return err
	}
	in.Name, in.Scopes = name[0], strings.Split(*scopes, ",")
	c, err := conn.connect()
	if err != nil {
		return err
	}
	var k *api.NewKey
	if *tenant != "" {
		k, err = c.CreateTenantKey(ctx, perdure.TenantID(*tenant), in)
	} else {
		k, err = c.CreateKey(ctx, in)
	}
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, k)
	}
	fmt.Fprintf(stderr, "Key %s of tenant %s. This is the only time its secret is shown:\n", k.ID, k.Tenant)
	_, err = fmt.Fprintln(stdout, k.Secret)
	return err
}

func keysList(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("keys list", "Lists the keys of the tenant, without their secrets.", stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	c, err := conn.connect()
	if err != nil {
		return err
	}
	list, err := c.Keys(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, list)
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, state, k.CreatedAt.Time().Format("2006-01-02 15:04"), strings.Join(scopes, " "))
	}
	return w.Flush()
}

func keysRevoke(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("keys revoke", "Ends a key at once.\n\n  perdure keys revoke KEY_ID", stderr)
	conn := addConnFlags(f)
	ids, err := parseMixed(f, args, 1, 1)
	if err != nil {
		return err
	}
	c, err := conn.connect()
	if err != nil {
		return err
	}
	k, err := c.RevokeKey(ctx, ids[0])
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s (%s) is revoked\n", k.ID, k.Name)
	return err
}
