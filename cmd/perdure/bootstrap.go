package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/keyfile"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
)

const bootstrapAbout = `Creates another platform key, directly in the store, if the first one is lost. It needs no
server. On SQLite none may run; on PostgreSQL (--store) servers may. The key is written to admin.key in
the data folder if there is no such file, and printed otherwise. With --store it is written only if
--data is given.

  perdure keys bootstrap --data perdure-data
  perdure keys bootstrap --store postgres://…`

// bootstrap creates a platform key without a server.
func (h *keysCall) bootstrap() error {
	database := h.flags.String("store", "", "of the database at this `address`, postgres://…")
	name := h.flags.String("name", "admin", "the key's `name`")
	scopes := h.flags.String("scopes", "", "what it allows (default: everything)")
	var ttl perdure.Duration
	h.flags.TextVar(&ttl, "ttl", perdure.Duration(0), "when it expires; 0s: never")
	if err := parse(h.flags, h.args); err != nil {
		return err
	}
	given, err := perdure.ParseScopes(scopeNames(*scopes, true))
	if err != nil {
		return err
	}
	dir, opt := *h.conn.data, store.Options{URL: *database}
	if *database != "" {
		if err := (embedded.Options{Store: *database}).Validate(); err != nil {
			return err
		}
	} else {
		dir = first(dir, os.Getenv("PERDURE_DATA"), settings.DefaultData)
		opt.Path = filepath.Join(dir, "perdure.db")
		if _, err := os.Stat(opt.Path); err != nil {
			return fmt.Errorf("there is no data in %s: %w", dir, err)
		}
	}
	op := &access.Bootstrap{Tenant: embedded.DefaultTenant, Name: *name, Scopes: given, TTL: ttl, Another: true}
	if err := offline(h.ctx, opt, "perdure keys bootstrap", op); err != nil {
		return err
	}
	if file := filepath.Join(dir, embedded.KeyFile); dir != "" {
		if _, err := os.Lstat(file); errors.Is(err, os.ErrNotExist) {
			if err := keyfile.Write(file, op.Secret); err != nil {
				return fmt.Errorf("key %s is made, and its file could not be written: %w; its secret is %s",
					op.Key.ID, err,
					op.Secret)
			}
			if *h.asJSON {
				return printJSON(h.stdout, struct {
					perdure.Key
					File string `json:"file"`
				}{op.Key, file})
			}
			fmt.Fprintf(h.stdout, "Key %s of the platform is in %s.\n", op.Key.ID, file)
			return nil
		}
	}
	if *h.asJSON {
		return printJSON(h.stdout, &api.NewKey{Key: op.Key, Secret: op.Secret})
	}
	return h.showOnce(&op.Key, op.Secret)
}

// offline executes an operation on a store without a server. The audit log names the command.
func offline(_ context.Context, opt store.Options, name string, op kernel.Op) (err error) {
	s, err := store.Open(opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e, err := engine.Offline(s)
	if err != nil {
		return err
	}
	return e.StepBy(kernel.Actor{Name: name, Platform: true}, s.Now(), op)[0]
}
