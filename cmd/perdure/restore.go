package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/keyfile"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
)

const restoreAbout = `Fills an empty store from a backup: a data folder, or with --store a PostgreSQL database.
The backup may be of either kind. No server may run on the store. The store then has a new generation:
workers that held runs are fenced, and leased runs are claimable again without a lost attempt. Changes
after the backup are lost. That includes keys: one that was revoked since is valid again. The command
lists the valid keys; --revoke-keys revokes all of them and creates one platform key.

  perdure restore FILE --data new-data
  perdure restore FILE --data new-data --revoke-keys`

func restore(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("restore FILE", restoreAbout, stderr)
	data := f.String("data", "", "`folder` of the data (default: PERDURE_DATA, or perdure-data)")
	database := f.String("store", "", "restore into the database at this `address`, postgres://…")
	revoke := f.Bool("revoke-keys", false,
		"revoke every key of the backup and make one platform key: admin.key in the folder, or printed with --store")
	asJSON := f.Bool("json", false, "print JSON")
	names, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if _, err := os.Stat(names[0]); err != nil {
		return err
	}
	r := &restored{Into: "the database", revoke: *revoke}
	opt := store.Options{URL: *database}
	if *database != "" {
		if err := (embedded.Options{Store: *database}).Validate(); err != nil {
			return err
		}
	} else {
		r.Into = first(*data, os.Getenv("PERDURE_DATA"), settings.DefaultData)
		opt.Path, r.keyFile = filepath.Join(r.Into, "perdure.db"), filepath.Join(r.Into, embedded.KeyFile)
		if _, err := os.Lstat(r.keyFile); err == nil && *revoke {
			return fmt.Errorf("%s is there already, and would not be valid: move it away, a new one is made", r.keyFile)
		}
	}
	if err := r.fill(ctx, names[0], opt, stderr); err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, r)
	}
	r.print(stdout)
	return nil
}

// maxListed bounds the keys and the webhooks that a restore lists.
const maxListed = 1000

// restored is the result of a restore.
type restored struct {
	store.Backup
	Into     string          `json:"into"`
	Keys     []perdure.Key   `json:"valid_keys"` // maxListed at most
	Revoked  int             `json:"keys_revoked"`
	Webhooks []webhookSecret `json:"webhook_secrets"` // at most maxListed
	KeyFile  string          `json:"key_file,omitempty"`
	Secret   string          `json:"secret,omitempty"` // of the new key, where it has no file

	revoke  bool
	keyFile string
}

// A webhookSecret tells which secret a webhook has after a restore.
type webhookSecret struct {
	Tenant  perdure.TenantID  `json:"tenant"`
	ID      perdure.WebhookID `json:"webhook_id"`
	Version int               `json:"secret_version"`
	URL     string            `json:"url"`
}

// fill restores a backup, checks it, and lists the valid credentials. If that fails, it removes the
// files that it created.
func (r *restored) fill(ctx context.Context, from string, opt store.Options, stderr io.Writer) (err error) {
	if _, serr := os.Stat(opt.Path); opt.Path != "" && errors.Is(serr, os.ErrNotExist) {
		defer func() {
			if err != nil {
				for _, more := range []string{"", "-wal", "-shm", ".lock", ".reserve"} {
					os.Remove(opt.Path + more)
				}
			}
		}()
	}
	s, err := store.Open(opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	policy := perdure.DefaultPolicy()
	op := &upkeep.Restoring{Store: s, Policy: &policy, Told: rowProgress(stderr), RevokeKeys: r.revoke,
		Tenant: embedded.DefaultTenant}
	if err := op.Do(ctx, from); err != nil {
		return err
	}
	r.Backup, r.Revoked, r.Secret = op.Backup, op.Revoked, op.Secret
	r.Generation = op.Generation
	if err := s.Audit(ctx, r.checkAndList); err != nil {
		return err
	}
	if r.Secret != "" && r.keyFile != "" {
		r.KeyFile, r.Secret = r.keyFile, ""
		return keyfile.Write(r.keyFile, op.Secret)
	}
	return nil
}

// checkAndList checks the invariants, and lists keys and webhooks.
func (r *restored) checkAndList(v *store.View) error {
	found, err := v.Check(nil)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("what was restored breaks %d invariants, the first: %s: %s", len(found), found[0].Statement,
			found[0].Row)
	}
	if err != nil {
		return err
	}
	if r.Keys, err = v.Keys.Valid(v.Now, maxListed); err != nil {
		return err
	}
	hooks, err := v.Webhooks.All(maxListed)
	for _, w := range hooks {
		r.Webhooks = append(r.Webhooks, webhookSecret{w.Tenant, w.ID, w.SecretVersion, w.URL})
	}
	return err
}

// print prints what was restored, and which credentials are valid.
func (r *restored) print(w io.Writer) {
	fmt.Fprintf(w, "%d runs as of %s are in %s, generation %d.\n", r.Runs, r.At, r.Into, r.Generation)
	switch {
	case r.KeyFile != "":
		fmt.Fprintf(w, "%d keys of the backup are revoked. The one valid key is in %s.\n", r.Revoked, r.KeyFile)
	case r.Secret != "":
		fmt.Fprintf(w,
			"%d keys of the backup are revoked. This is the only time that the secret of the one valid key is shown:\n"+
				"%s\n", r.Revoked, r.Secret)
	default:
		r.printKeys(w)
	}
	if len(r.Webhooks) > 0 {
		fmt.Fprintf(w,
			"\nSecrets of webhooks are as of the backup. One that was rotated since signs with the old secret again.\n"+
				"To rotate one: perdure webhooks rotate WEBHOOK_ID\n\n")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "TENANT\tWEBHOOK\tSECRET VERSION\tURL")
		for _, h := range r.Webhooks {
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", visible(string(h.Tenant)), h.ID, h.Version, visible(h.URL))
		}
		t.Flush()
	}
}

// printKeys lists the keys that are valid again.
func (r *restored) printKeys(w io.Writer) {
	if r.keyFile != "" {
		if _, err := os.Stat(r.keyFile); err != nil {
			fmt.Fprintf(w,
				"There is no %s in the folder: put the old one there, or have another key made: perdure keys "+
					"bootstrap "+
					"--data %s\n", embedded.KeyFile, r.Into)
		}
	}
	fmt.Fprintf(w,
		"\nThese keys and sessions are valid. A backup does not know which of them were revoked after it was made: "+
			"these are valid again.\n"+
			"Revoke what must not be (perdure keys revoke KEY_ID), or restore with --revoke-keys.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TENANT\tKEY\tKIND\tNAME\tCREATED\tSCOPES")
	for _, k := range r.Keys {
		tenant, scopes := string(k.Tenant), make([]string, len(k.Scopes))
		if k.Platform {
			tenant = "(platform)"
		}
		for i, s := range k.Scopes {
			scopes[i] = string(s)
		}
		kind := "key"
		if k.Parent != "" { // a login of the dashboard
			kind = "session of " + k.Parent
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", visible(tenant), k.ID, kind, visible(k.Name),
			k.CreatedAt.Time().Format("2006-01-02 15:04"), strings.Join(scopes, " "))
	}
	t.Flush()
	if len(r.Keys) == maxListed {
		fmt.Fprintf(w, "Only the first %d are listed.\n", maxListed)
	}
}
