package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

const (
	storeSQLite   = "sqlite"
	storePostgres = "postgres"
)

func isPostgres(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

// storeName returns the name of a store, without the secrets of its URL.
func storeName(s string) string {
	if isPostgres(s) {
		return storePostgres
	}
	return s
}

// A place is where the data of a scenario is: a new folder and, on PostgreSQL, a new database.
type place struct {
	store string // name of the store
	dir   string
	url   string // of the database, or empty for SQLite in the folder
	admin string // URL of the server on which the database was created
	key   string // platform key, which the first server on this place created

	program     string   // file of the program that serves it
	doorbell    string   // of its servers, or empty for the store's own
	profiles    string   // prefix of its servers' profiles, or empty for none
	flags       []string // further flags of its servers
	workerSlots int      // slots of the SDK's worker; zero means taskSlots
	leased      bool     // its runs are leased by a worker that sends no sign of life
}

// newPlace creates a place.
func (b *Bench) newPlace(ctx context.Context, st string) (*place, error) {
	dir, err := os.MkdirTemp(b.Dir, "perdure-bench-")
	if err != nil {
		return nil, err
	}
	p := &place{store: storeName(st), dir: dir, program: b.Program, profiles: b.Profiles}
	if !isPostgres(st) {
		return p, nil
	}
	u, err := url.Parse(st)
	if err != nil {
		return nil, errors.Join(err, p.remove(ctx))
	}
	name := "perdure_bench_" + strings.ToLower(rand.Text())
	if err := execPostgres(ctx, st, "CREATE DATABASE "+name); err != nil {
		return nil, errors.Join(err, p.remove(ctx))
	}
	u.Path = "/" + name
	p.url, p.admin = u.String(), st
	return p, nil
}

// template returns the argument of newPlace for another place like this one.
func (p *place) template() string {
	if p.url != "" {
		return p.admin
	}
	return p.store
}

// remove deletes the data.
func (p *place) remove(ctx context.Context) error {
	var err error
	if p.url != "" {
		u, _ := url.Parse(p.url)
		err = execPostgres(ctx, p.admin, "DROP DATABASE IF EXISTS "+strings.TrimPrefix(u.Path, "/")+" WITH (FORCE)")
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

func execPostgres(ctx context.Context, url, query string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, query)
	return err
}

// open opens the store in this process.
func (p *place) open() (*store.Store, error) {
	if p.url != "" {
		return store.Open(store.Options{URL: p.url})
	}
	return store.Open(store.Options{Path: filepath.Join(p.dir, "perdure.db")})
}

// serveFlags returns the flags of a server on this place. Two servers on one database have a folder
// each.
func (p *place) serveFlags(node string) []string {
	out := []string{"--listen", "127.0.0.1:0", "--data", p.data(node), "--log-level", "error"}
	for _, name := range p.disabledAlerts() {
		out = append(out, "--policy", name+"="+never.String())
	}
	return append(out, p.flags...)
}

// disabledAlerts returns the settings of the policy that are set to never, so that the watchdog
// does not write in the middle of a measurement.
func (p *place) disabledAlerts() []string {
	if p.leased {
		return []string{"queued_alert", "lease", "dispatched_retry", "dispatched_retry_max", "dispatched_timeout",
			"active_reap", "silent", "no_progress", "worker_offline"}
	}
	return []string{"queued_alert"}
}

// policy returns the policy of an engine in this process.
func (p *place) policy() perdure.Policy {
	policy := perdure.DefaultPolicy()
	for _, s := range policy.Settings() {
		if slices.Contains(p.disabledAlerts(), s.Name) {
			*s.Value.(*time.Duration) = never
		}
	}
	return policy
}

// serveEnv returns a server's environment, without the settings of other servers. The URL of the
// database is in it and not in a flag, because it may contain a password.
func (p *place) serveEnv() (env []string) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "PERDURE_") {
			env = append(env, name+"=")
		}
	}
	return append(env, "PERDURE_STORE="+p.url, "PERDURE_DOORBELL="+p.doorbell)
}

// data returns a server's folder. On SQLite it has the file.
func (p *place) data(node string) string {
	if p.url == "" {
		return p.dir
	}
	return filepath.Join(p.dir, node)
}

// settings returns the settings of the database that affect durability and speed.
func (p *place) settings(ctx context.Context) (map[string]string, error) {
	if p.url != "" {
		return postgresSettings(ctx, p.url)
	}
	s, err := p.open()
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	err = s.View(ctx, func(v *store.View) error {
		for name, query := range map[string]string{"version": "SELECT sqlite_version()",
			"journal_mode": "PRAGMA journal_mode", "synchronous": "PRAGMA synchronous",
			"wal_autocheckpoint": "PRAGMA wal_autocheckpoint", "page_size": "PRAGMA page_size",
			"cache_size": "PRAGMA cache_size"} {
			if err := v.Rows(query, nil, func(scan func(...any) error) error {
				var text string
				err := scan(&text)
				out[name] = text
				return err
			}); err != nil {
				return fmt.Errorf("%s: %w", query, err)
			}
		}
		return nil
	})
	if level, ok := map[string]string{"0": "OFF", "1": "NORMAL", "2": "FULL", "3": "EXTRA"}[out["synchronous"]]; ok {
		out["synchronous"] = level
	}
	return out, errors.Join(err, s.Close())
}

func postgresSettings(ctx context.Context, url string) (map[string]string, error) {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	out := make(map[string]string)
	for _, name := range []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level",
		"wal_sync_method", "shared_buffers",
		"max_wal_size", "max_connections", "commit_delay", "autovacuum"} {
		var text string
		if err := c.QueryRow(ctx, "SHOW "+name).Scan(&text); err != nil {
			return nil, fmt.Errorf("show %s: %w", name, err)
		}
		if name == "server_version" {
			name = "version"
		}
		out[name] = text
	}
	return out, nil
}
