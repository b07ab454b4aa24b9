package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Options are what may be different about a cluster.
type Options struct {
	// Settings are lines of postgresql.conf that come after, and so instead of, those in settings.
	Settings map[string]string
	// InMemory keeps the data in memory if the machine has enough of it: a sync then costs nothing, and all
	// settings that decide about durability stay as they are. It is for tests that do not depend on the disk, and
	// not for measurements.
	InMemory bool
}

// settings are those of every cluster. What decides about durability is PostgreSQL's default and stands here
// because tests and measurements rely on it.
var settings = map[string]string{
	"fsync":                   "on",
	"synchronous_commit":      "on",
	"full_page_writes":        "on",
	"max_connections":         "1000", // many cores run many tests at once, and a server takes a dozen
	"shared_buffers":          "256MB",
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"log_line_prefix":         "%m [%p] %d ",
}

// settingsInMemory are those of clusters in memory, beside settings. With hundreds of databases a worker of
// autovacuum would start every moment. Tests that need statistics analyze their tables themselves.
var settingsInMemory = map[string]string{"autovacuum_naptime": "1h", "jit": "off"}

// A Cluster is a PostgreSQL server on a port of 127.0.0.1, with its data in a temporary folder. Its methods
// may be called from several goroutines.
type Cluster struct {
	programs string
	owner    *syscall.Credential
	folder   *folder
	password string
	port     int
	source   *Cluster // of a standby: the server that it was copied from

	mu         sync.Mutex
	postmaster *process
}

// A Mode is how a cluster goes down.
type Mode string

const (
	// Smart lets no new connection in, and ends when the last one has ended by itself.
	Smart     Mode = "smart"
	Fast      Mode = "fast"      // transactions are rolled back, everything is written: the orderly way
	Immediate Mode = "immediate" // without a checkpoint; the next start recovers from the log
	Kill      Mode = "kill"      // every process killed with -9
)

// Start makes a new cluster and waits until it answers.
func Start(o Options) (_ *Cluster, err error) {
	c := &Cluster{password: rand.Text()}
	if c.programs, err = Find(); err != nil {
		return nil, err
	}
	if c.owner, err = owner(); err != nil {
		return nil, err
	}
	for _, parent := range []string{memory, os.TempDir()} {
		sweep(parent)
	}
	return c.begin(place(o), func() error { return c.create(o) })
}

// begin fills the data folder of a new cluster and starts its server.
func (c *Cluster) begin(parent string, fill func() error) (_ *Cluster, err error) {
	if c.folder, err = newFolder(parent); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	if c.owner != nil {
		if err := os.Chown(c.folder.path, int(c.owner.Uid), int(c.owner.Gid)); err != nil {
			return nil, err
		}
	}
	if err := fill(); err != nil {
		return nil, fmt.Errorf("creating a cluster: %w", err)
	}
	// Between the choice of a port and its use somebody else may take it.
	for range 3 {
		if c.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = c.launch(); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// freePort finds a port that nobody listens on. It lies below those that outgoing connections get: one of
// these could take the port while the server restarts, or even be connected to itself.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + mrand.IntN(15000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

func (c *Cluster) data() string { return filepath.Join(c.folder.path, "data") }

func (c *Cluster) log() string { return filepath.Join(c.folder.path, "log") }

// create writes the data folder.
func (c *Cluster) create(o Options) error {
	secret := filepath.Join(c.folder.path, "password")
	verifier, err := verifierOf(c.password)
	if err != nil {
		return err
	}
	if err := os.WriteFile(secret, []byte(verifier+"\n"), 0o600); err != nil {
		return err
	}
	if c.owner != nil {
		if err := os.Chown(secret, int(c.owner.Uid), int(c.owner.Gid)); err != nil {
			return err
		}
	}
	// Versions before 15 and builds without ICU are left with an order by bytes.
	icu := []string{"--locale-provider=icu", "--icu-locale=en-US"}
	if err := c.initdb(secret, icu...); err != nil {
		if os.RemoveAll(c.data()) != nil || c.initdb(secret) != nil {
			return err
		}
	}
	conf, err := os.OpenFile(filepath.Join(c.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer conf.Close()
	all := maps.Clone(settings)
	if o.InMemory {
		maps.Copy(all, settingsInMemory)
	}
	maps.Copy(all, o.Settings)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, err := fmt.Fprintf(conf, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''")); err != nil {
			return err
		}
	}
	return conf.Close()
}

func (c *Cluster) initdb(secret string, more ...string) error {
	cmd := c.command("initdb", append([]string{"-D", c.data(), "--username=postgres", "--pwfile=" + secret,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
		"--no-sync", // a folder that a failing machine leaves behind is of no use to anybody
	}, more...)...)
	return finish(cmd)
}

// finish executes a program to its end.
func finish(cmd *exec.Cmd) error {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	<-p.done
	if p.err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), p.err, out.String())
	}
	return nil
}

// command is a program of PostgreSQL, run as its owner, without settings of the user's in its environment.
func (c *Cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.programs, name), args...)
	cmd.Dir = c.folder.path
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") })
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner}
	return cmd
}

// launch starts the server and waits until it answers.
func (c *Cluster) launch() error {
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := c.command("postgres", "-D", c.data(), "-p", fmt.Sprint(c.port))
	cmd.Stdout, cmd.Stderr = log, log
	// SIGQUIT is the immediate shutdown, which takes the server's own processes along.
	p, err := start(cmd, syscall.SIGQUIT)
	if err != nil {
		return err
	}
	c.postmaster = p
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.done:
			return fmt.Errorf("postgres has ended: %v\n%s", p.err, c.Log())
		default:
		}
		err := c.answers()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("postgres does not answer: %w\n%s", errors.Join(err, p.stop(syscall.SIGQUIT)), c.Log())
		}
	}
}

func (c *Cluster) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// URL is the address of a database of the cluster, as its superuser.
func (c *Cluster) URL(database string) string { return URL(database, c) }

// Address gives host and port of the cluster.
func (c *Cluster) Address() string { return fmt.Sprintf("127.0.0.1:%d", c.port) }

// URL is the address of a database of several servers, such as a primary and its standbys.
func URL(database string, clusters ...*Cluster) string {
	var hosts []string
	for _, c := range clusters {
		hosts = append(hosts, c.Address())
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", clusters[0].password),
		Host: strings.Join(hosts, ","), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Restart takes the cluster down in the given way and starts it again on the same port.
func (c *Cluster) Restart(m Mode) error {
	if err := c.Halt(m); err != nil {
		return err
	}
	return c.Launch()
}

// Halt takes the cluster down in the given way. Its data stays.
func (c *Cluster) Halt(m Mode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	switch m {
	case Smart:
		err = c.postmaster.stop(syscall.SIGTERM)
	case Fast:
		err = c.postmaster.stop(syscall.SIGINT)
	case Immediate:
		err = c.postmaster.stop(syscall.SIGQUIT)
	case Kill:
		err = c.postmaster.kill()
	default:
		err = fmt.Errorf("unknown mode %q", m)
	}
	if err != nil {
		return fmt.Errorf("halting PostgreSQL (%s): %w", m, err)
	}
	return nil
}

// Launch starts a cluster again that Halt has taken down, on the same port.
func (c *Cluster) Launch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.launch(); err != nil {
		return fmt.Errorf("starting PostgreSQL again: %w", err)
	}
	return nil
}

// Stop ends the cluster and removes its data.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.postmaster != nil {
		err = c.postmaster.stop(syscall.SIGQUIT)
	}
	return errors.Join(err, c.folder.remove())
}

// Log is what the server has written into its log so far.
func (c *Cluster) Log() string {
	text, err := os.ReadFile(c.log())
	if err != nil {
		return err.Error()
	}
	return string(text)
}
