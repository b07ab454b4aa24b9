package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/wire/release"
)

// A finding is the result of one check.
type finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Note string `json:"note"`
}

func doctor(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("doctor",
		"Looks at the data folder, the store, the doorbell and the server, and says what is wrong and what would "+
			"help. Exits with 1 if\nsomething is.\n\n  perdure doctor", stderr)
	conn := addConnFlags(f)
	c := settings.AddFlags(f.FlagSet, "store", "doorbell")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	c.Set("data", *conn.data)
	cfg, err := c.Load(os.Getenv)
	if err != nil {
		return err
	}
	*conn.data = cfg.Dir
	found := append(checkDataFolder(cfg.Dir), checkStoreAndDoorbell(ctx, cfg)...)
	if cfg.Store == "" {
		found = append(found, checkFile(cfg.Dir)...)
	}
	found = append(found, conn.checkTLS(ctx)...)
	found = append(found, checkServer(ctx, conn)...)
	bad := 0
	for _, x := range found {
		if !x.OK {
			bad++
		}
	}
	if *asJSON {
		if err := printJSON(stdout, found); err != nil {
			return err
		}
	} else {
		for _, x := range found {
			mark := "ok  "
			if !x.OK {
				mark = "BAD "
			}
			fmt.Fprintf(stdout, "%s %-16s %s\n", mark, x.Name, literal(x.Note))
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d checks failed", bad, len(found))
	}
	return nil
}

// checkDataFolder checks permissions, free space and the WAL.
func checkDataFolder(dir string) []finding {
	info, err := os.Stat(dir)
	if err != nil {
		return []finding{{"data folder", true, dir + " is not there yet: the first start makes it"}}
	}
	out := []finding{{"data folder", info.IsDir() && info.Mode().Perm()&0o077 == 0,
		fmt.Sprintf("%s, mode %04o (should be closed to others: chmod 700)", dir, info.Mode().Perm())}}
	if key, err := os.Stat(filepath.Join(dir, embedded.KeyFile)); err == nil {
		out = append(out, finding{"admin key", key.Mode().Perm() == 0o600,
			fmt.Sprintf("mode %04o (should be 0600)", key.Mode().Perm())})
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err == nil {
		free := fs.Bavail * uint64(fs.Bsize)
		out = append(out, finding{"disk", free > 1<<30,
			fmt.Sprintf("%.1f GiB free (at least 1 is advisable)", float64(free)/(1<<30))})
	}
	if wal, err := os.Stat(filepath.Join(dir, "perdure.db-wal")); err == nil {
		out = append(out, finding{"WAL", wal.Size() < 256<<20,
			fmt.Sprintf("%.1f MiB (a large one means that a reader has been open for long)",
				float64(wal.Size())/(1<<20))})
	}
	if copies, err := filepath.Glob(filepath.Join(dir, "perdure.db-wal.damaged-*")); err == nil && len(copies) > 0 {
		out = append(out, finding{"damaged WAL", false,
			fmt.Sprintf("%s: a start found acknowledged commits that can't be read any more (restore a backup, "+
				"or move "+
				"the file away if they are not missed)", copies[len(copies)-1])})
	}
	return out
}

// checkStoreAndDoorbell checks what several nodes share.
func checkStoreAndDoorbell(ctx context.Context, cfg *settings.Config) []finding {
	at := finding{"store", true, cfg.Text("store")}
	if cfg.Store != "" {
		what, err := postgresVersion(ctx, cfg.Store)
		if at.OK = err == nil; err != nil {
			what = err.Error()
		}
		at.Note += ": " + what
	}
	found := []finding{at}
	if cfg.Store != "" && at.OK {
		found = append(found, checkServers(ctx, cfg.Store)...)
		found = append(found, checkReleases(cfg.Store), checkStandbys(cfg.Store))
	}
	bell := finding{"doorbell", true, cfg.Text("doorbell")}
	if address := first(cfg.Doorbell, cfg.Store); address != "" && address != "none" {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		took, err := doorbell.Check(ctx, address)
		if bell.OK = err == nil; err != nil {
			bell.Note += ": " + err.Error() + " (nodes look by themselves once a second until it is there)"
		} else {
			bell.Note += fmt.Sprintf(": there and back in %.1f ms", float64(took)/1e6)
		}
	}
	return append(found, bell)
}

// checkReleases says which releases have nodes that are connected to PostgreSQL. An older one is nothing
// wrong: an upgrade is under way.
func checkReleases(address string) finding {
	list, err := store.Connected(address)
	if err != nil {
		return finding{"releases", true, "not known: " + err.Error()}
	}
	var texts []string
	for _, r := range list {
		text := fmt.Sprintf("%s (%d connections)", r.Version, r.Connections)
		if release.Older(r.Version, release.Version) {
			text += ", and what it does not know is refused until its last node is upgraded"
		}
		texts = append(texts, text)
	}
	return finding{"releases", true, first(strings.Join(texts, "; "), "no node is connected")}
}

// checkServers says which of several servers of PostgreSQL is the primary. Of a single one there is nothing
// to say.
func checkServers(ctx context.Context, address string) []finding {
	list, err := store.ServersOf(ctx, address)
	if err != nil {
		return []finding{{"servers", false, err.Error()}}
	}
	if len(list) < 2 {
		return nil
	}
	out := finding{Name: "servers", OK: true}
	var texts []string
	for _, s := range list {
		texts, out.OK = append(texts, s.At+": "+s.Note), out.OK && !s.Old
	}
	out.Note = strings.Join(texts, "; ")
	return []finding{out}
}

// checkStandbys says which standbys PostgreSQL has, and what a failover may lose. That is nothing wrong: it
// is for the operator to decide.
func checkStandbys(address string) finding {
	r, err := store.StandbysOf(address)
	if err != nil {
		return finding{"standbys", true, "not known: " + err.Error()}
	}
	loss := "a failover loses no acknowledged work"
	if why := r.Loss(); why != "" {
		loss = "a failover may lose acknowledged work: " + why
	}
	return finding{"standbys", true, r.String() + " (" + loss + ")"}
}

// connectPostgres connects to a server, and if the address has several, to one that takes writes.
func connectPostgres(ctx context.Context, address string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	if len(cfg.Fallbacks) > 0 && cfg.ValidateConnect == nil {
		writing := cfg.Copy()
		writing.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
		if conn, err := pgconn.ConnectConfig(ctx, writing); err == nil {
			return conn, nil
		}
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

func postgresVersion(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := connectPostgres(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	version := "PostgreSQL " + conn.ParameterStatus("server_version")
	if err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn); errors.Is(err,
		pgconn.ErrReadOnlyConnection) {
		return "", fmt.Errorf("%s: the store takes no writes: it is read-only (a standby, or "+
			"default_transaction_read_only "+
			"is on)", version)
	} else if err != nil {
		return "", err
	}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		got, err := conn.Exec(ctx, "SHOW "+name).ReadAll()
		if err != nil {
			return "", err
		}
		if len(got) == 1 && len(got[0].Rows) == 1 && string(got[0].Rows[0][0]) == "off" {
			return "", fmt.Errorf("%s: %s is off, and no server starts: an acknowledged write would not survive "+
				"a crash", version, name)
		}
	}
	return version, nil
}

// checkFile tells what keeps a server from starting on the data of a folder: a clock that is ahead, or a
// damaged file. While a server has the file open there is nothing to find.
func checkFile(dir string) []finding {
	path := filepath.Join(dir, "perdure.db")
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	s, err := store.Open(store.Options{Path: path, AsIs: true})
	switch {
	case err == nil:
		if err := s.Close(); err != nil {
			return []finding{{"start", false, err.Error()}}
		}
		return []finding{{"start", true, "no server has the data open, and one can start"}}
	case errors.Is(err, sqlite.ErrInUse):
		return []finding{{"start", true, "a server has the data open"}}
	case errors.Is(err, store.ErrOtherSchema):
		return []finding{{"start", true, "a start changes the data: " + err.Error()}}
	}
	return []finding{{"start", false, "no server can start: " + err.Error()}}
}

// certificateReserve is how long before its expiry a certificate should have been replaced.
const certificateReserve = 3 * 24 * time.Hour

// checkTLS checks until when the server's certificate is valid, if it has one. It does not verify
// the certificate, so that it can read an expired one. Later calls verify it.
func (c *connFlags) checkTLS(ctx context.Context) (out []finding) {
	for _, address := range c.addresses() {
		out = append(out, checkCertificate(ctx, address))
	}
	return out
}

func checkCertificate(ctx context.Context, address string) finding {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" {
		return finding{"TLS", true, "off: " + address +
			" is plain HTTP (fine on this machine and behind a proxy with TLS)"}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	port := first(u.Port(), "443")
	conn, err := (&tls.Dialer{Config: &tls.Config{ServerName: u.Hostname(),
		InsecureSkipVerify: true}}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return finding{"TLS", false, "no handshake: " + err.Error()}
	}
	defer conn.Close()
	expires := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].NotAfter
	left := time.Until(expires)
	return finding{"TLS", left > certificateReserve,
		fmt.Sprintf("on: the certificate expires at %s, in %s", expires.UTC().Format(time.RFC3339),
			left.Round(time.Minute))}
}
