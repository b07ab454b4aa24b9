package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
)

// connFlags are the flags that select the server of a command.
type connFlags struct {
	url, key, data, ca, tenant *string
	stderr                     io.Writer
	// ownTenant tells whether the command names the tenant in its own way, instead of the client. Nil: it
	// does not.
	ownTenant func() bool
}

func addConnFlags(f *flagSet) *connFlags {
	f.conn = &connFlags{
		stderr: f.Output(),
		url: f.String("url", "",
			"`address` of the server, or several of a fleet with commas (default: PERDURE_URL, or http://"+
				settings.DefaultListen+")"),
		key: f.String("key", "", "the `key` (default: PERDURE_KEY, or admin.key in the data folder)"),
		ca: f.String("ca", "",
			"`file` of the authorities that the server's TLS certificate may be of (default: PERDURE_CA, or "+
				"those of the "+
				"system)"),
		tenant: f.String("tenant", "",
			"of this `tenant` (default: PERDURE_TENANT, or the key's own; another one takes a key of the platform)"),
		data: f.String("data", "",
			"`folder` of the server's data, where its key is (default: PERDURE_DATA, or perdure-data)"),
	}
	return f.conn
}

// address returns the server's URL, or those of several servers, separated by commas.
func (c *connFlags) address() string {
	return first(*c.url, os.Getenv("PERDURE_URL"), "http://"+settings.DefaultListen)
}

// connect finds the server and a key for it: by flags, by the environment, or in the data folder.
// If no server listens, it prints that at once. With a key it then waits a little, because the
// server may be restarting.
func (c *connFlags) connect(ctx context.Context) (*client.Client, error) {
	missing := c.reach()
	key, err := c.findKey()
	if err != nil {
		return nil, cmp.Or(missing, err)
	}
	ca, err := caFile(*c.ca)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		fmt.Fprintf(c.stderr, "%v\n", missing)
		if err := c.await(ctx, missing); err != nil {
			return nil, err
		}
	}
	opt := client.Options{RootCAs: ca, Tenant: perdure.TenantID(c.tenantName())}
	if c.ownTenant != nil && c.ownTenant() {
		opt.Tenant = ""
	}
	return client.New(c.address(), key, opt), nil
}

// tenantName returns the tenant that the command is about, or "" for the key's own.
func (c *connFlags) tenantName() string { return first(*c.tenant, os.Getenv("PERDURE_TENANT")) }

// useTenant leaves the tenant to the command, and describes its flag.
func (c *connFlags) useTenant(f *flagSet, usage string) {
	f.Lookup("tenant").Usage = usage
	c.ownTenant = func() bool { return true }
}

// withoutTenant returns flags for the same server that name no tenant.
func (c *connFlags) withoutTenant() *connFlags {
	plain := *c
	plain.ownTenant = func() bool { return true }
	return &plain
}

// findKey returns the key of the flags, the environment or the data folder.
func (c *connFlags) findKey() (string, error) {
	if key := first(*c.key, os.Getenv("PERDURE_KEY")); key != "" {
		return key, nil
	}
	path := filepath.Join(first(*c.data, os.Getenv("PERDURE_DATA"), settings.DefaultData), embedded.KeyFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no key: set PERDURE_KEY, or say with --data where the server's %s is "+
			"(not in %s)",
			embedded.KeyFile, path)
	}
	return strings.TrimSpace(string(b)), err
}

// errNoServer means that nothing listens at the server's address.
var errNoServer = errors.New("there is no server")

// serverPatience is how long a command waits for a server that may be restarting.
var serverPatience = 5 * time.Second

// await waits until something listens at the server's address.
func (c *connFlags) await(ctx context.Context, missing error) error {
	for end := time.Now().Add(serverPatience); missing != nil; missing = c.reach() {
		if time.Now().After(end) {
			return fmt.Errorf("%w at %s, for %s", errNoServer, c.address(), serverPatience)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// addresses returns the URL of each server.
func (c *connFlags) addresses() (out []string) {
	for one := range strings.SplitSeq(c.address(), ",") {
		if one = strings.TrimSpace(one); one != "" {
			out = append(out, one)
		}
	}
	return out
}

// reach returns an error that says how to start a server, if every connection is refused. Any other
// problem is left to the client.
func (c *connFlags) reach() error {
	for _, address := range c.addresses() {
		if !refused(address) {
			return nil
		}
	}
	return fmt.Errorf("%w at %s: start one with perdure dev, or say with --url or PERDURE_URL where it is",
		errNoServer, c.address())
}

// refused tells whether nothing listens at an address.
func refused(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return false
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u}); proxy != nil || err != nil {
		return false
	}
	port := u.Port()
	if port == "" {
		if port = "80"; u.Scheme == "https" {
			port = "443"
		}
	}
	tcp, err := net.DialTimeout("tcp", net.JoinHostPort(u.Hostname(), port), time.Second)
	if err == nil {
		tcp.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// caFile reads the certificate authorities that a flag or the environment names. It returns nil for
// those of the system.
func caFile(file string) (*x509.CertPool, error) {
	if file = first(file, os.Getenv("PERDURE_CA")); file == "" {
		return nil, nil
	}
	return client.LoadCA(file)
}

// each calls a function for runs, one after the other, and prints the status of each.
func (c *connFlags) each(ctx context.Context, ids []string, stdout io.Writer, asJSON bool,
	do func(*client.Client, perdure.RunID) (*api.Run, error)) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		r, err := do(conn, perdure.RunID(id))
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		if err := printStatus(stdout, r, asJSON); err != nil {
			return err
		}
	}
	return nil
}

// first returns the first text that is not empty.
func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// parseMixed parses flags and arguments in any order, and checks the number of arguments. A run can be
// given as a job, such as %1.
func parseMixed(f *flagSet, args []string) ([]string, error) {
	var out []string
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, errUsage
		}
		args = f.Args()
		if len(args) == 0 {
			break
		}
		out, args = append(out, args[0]), args[1:]
	}
	if err := f.checkArguments(out); err != nil {
		return nil, err
	}
	return out, f.resolveJobs(out)
}
