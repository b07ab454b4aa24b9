package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/httpd"
	"github.com/perdure/perdure/internal/server/tlscert"
	"github.com/perdure/perdure/internal/server/webhook"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Options configures a server. The zero value keeps everything in memory.
type Options struct {
	// Dir is the data folder, with perdure.db and admin.key. Empty keeps the data in memory.
	Dir string
	// Store is the URL of a PostgreSQL database that nodes share, postgres://…. Dir then has the
	// key and the node's instance only. Empty means SQLite in Dir.
	Store string
	// StartWait is how long Open waits for a PostgreSQL that can't be used yet: it is away or
	// starting, or is a standby. Zero means that Open returns an error at once.
	StartWait time.Duration
	// Waiting is called about twice a second while Open waits, with the address of PostgreSQL and
	// the reason. Open gives up if it returns false. Nil means that it goes on.
	Waiting func(at string, why error) bool
	// Migrating is called now and then while Open waits for a lock of another session on a table that a
	// migration changes, or for another node that migrates. Open gives up if it returns false. Nil means
	// that it goes on.
	Migrating func(why string) bool
	// Doorbell is the URL by which nodes wake each other, nats://…. Empty means PostgreSQL, if that
	// is the store. "none" means that nodes only poll.
	Doorbell string
	// Policy has the durations and bounds of runs. The default is perdure.DefaultPolicy.
	Policy *perdure.Policy
	// Node is this node's name, unique among the nodes of a store. The default is the host's name,
	// with a suffix on a shared store.
	Node string
	// Hosts are host names that requests may be addressed to, beside IP addresses and localhost.
	Hosts  []string
	Logger *slog.Logger

	// Workspace is the folder of the processes that this server watches: that of the runners on its
	// machine. Empty means that it watches none; heartbeats over HTTP count anyway.
	Workspace string
	// SentinelScan is the pause between two looks at the workspace. The default is 15 s.
	SentinelScan time.Duration
	// ReattachWindow is how long a process that may have outlived the server is waited for after its
	// start. The default is 5 min.
	ReattachWindow time.Duration
	// PresumedDeadAfter is the age of a heartbeat from which on such a process is not waited for, if its
	// lock tells nothing. The default is 30 min.
	PresumedDeadAfter time.Duration
	// WorkspaceRetention is how long the folder of an ended process is kept. The default is 24 h.
	WorkspaceRetention time.Duration

	// Clock replaces the machine's clock in tests, on a store that is not shared. It must never go
	// back. Package agenttest uses it to run a server by the clock of a synctest bubble.
	Clock func() time.Time

	// Origins are origins of pages in browsers that may call the API, such as
	// https://app.example.com.
	Origins []string
	// Doors are protocols of others that the server speaks as well, each under /doors/<name>. See
	// docs/doors.md for the names.
	Doors []string
	// DoorRoot is one of Doors that is served at the root as well.
	DoorRoot string
	// LangGraphOnDisconnect is DisconnectAsAsked if callers of the door langgraph may ask that a run be
	// cancelled when they disconnect. The default is DisconnectContinues.
	LangGraphOnDisconnect string
	// MaxStreams is the limit of open streams. The default, and the maximum, is three quarters of
	// the file descriptors.
	MaxStreams int
	// TenantStreams is the limit of one tenant's streams. The default is three quarters of
	// MaxStreams while several tenants call.
	TenantStreams int
	// TenantLimits are the limits of a tenant that has none of its own. See docs/security.md for the
	// defaults.
	TenantLimits perdure.TenantLimits
	// PublicURL is where clients reach the API, such as https://perdure.example.com. Links in
	// webhooks begin with it. It has to be equal on all nodes.
	PublicURL string
	// WebhookAllow are private networks that webhooks may be sent to, such as 10.1.0.0/16. The
	// default is none.
	WebhookAllow []string
	// WebhookPorts are ports that webhooks may be sent to on other networks. The default is 80,
	// 443, 8080 and 8443.
	WebhookPorts []int

	// Secrets name texts that must not be written, logged or sent: env:NAME or file:PATH, never a
	// value itself. They have to be equal on all nodes. See docs/security.md#keeping-secrets-out.
	Secrets []string

	// Key is a platform key of the store, for a node without a folder on a store that has had its
	// first start. [Server.Key] returns it.
	Key string

	// InsecureKeyFile permits an admin.key that others than its owner can read.
	InsecureKeyFile bool

	// SigningKeys are files with the private keys that sign accepted runs. The first one signs, and
	// all of them verify. See docs/security.md#signed-runs.
	SigningKeys []string

	// SigningRequired are tenants whose runs are handed over only with a valid signature, whatever
	// the store says. "*" means all tenants. It has to be equal on all nodes.
	SigningRequired []string

	// SealKeys name the keys that seal the store's root secret: env:NAME or file:PATH, each 32
	// bytes in hexadecimal digits or base64. The first one seals, and all of them open. They have
	// to be equal on all nodes.
	SealKeys []string

	// TLSCert and TLSKey are PEM files: the certificate with its chain, and its private key. Both
	// or neither are given. [Server.TLSConfig] uses them, and reads them again when they change.
	TLSCert, TLSKey string
}

// maxNode bounds the name of a node, which is part of records of workers.
const maxNode = 100

// Validate checks all settings. Its errors have no password.
func (opt Options) Validate() error {
	if opt.Store != "" && !strings.HasPrefix(opt.Store, "postgres://") &&
		!strings.HasPrefix(opt.Store, "postgresql://") {
		return fmt.Errorf("store: %s is not an address such as postgres://user@host:5432/database",
			doorbell.Mask(opt.Store))
	}
	if err := (doorbell.Options{URL: opt.Store}).Validate(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if opt.Clock != nil && opt.Store != "" {
		return errors.New("clock: a store that nodes share has a clock of its own")
	}
	if err := (doorbell.Options{URL: opt.Doorbell}).Validate(); err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	for _, o := range opt.Origins {
		u, err := url.Parse(o)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || o != u.Scheme+"://"+u.Host {
			return fmt.Errorf("origins: %q is not an origin such as https://app.example.com", o)
		}
	}
	if err := opt.checkDoors(); err != nil {
		return err
	}
	if opt.PublicURL != "" {
		u, err := url.Parse(opt.PublicURL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.User != nil ||
			strings.ContainsAny(opt.PublicURL, "?# ") {
			return fmt.Errorf("public_url: %q is not an address such as https://perdure.example.com",
				doorbell.Mask(opt.PublicURL))
		}
	}
	if opt.MaxStreams < 0 {
		return fmt.Errorf("max_streams: %d is no number of streams", opt.MaxStreams)
	}
	if opt.TenantStreams < 0 {
		return fmt.Errorf("max_streams_per_tenant: %d is no number of streams", opt.TenantStreams)
	}
	if opt.Node != "" && (perdure.CheckName("node", opt.Node) != nil || len(opt.Node) > maxNode) {
		return fmt.Errorf("node: %q is no name of at most %d bytes", opt.Node, maxNode)
	}
	for _, x := range []struct {
		name string
		d    time.Duration
	}{{"sentinel_scan", opt.SentinelScan}, {"reattach_window", opt.ReattachWindow},
		{"presumed_dead_after", opt.PresumedDeadAfter}, {"workspace_retention", opt.WorkspaceRetention}} {
		if x.d < 0 || x.d > 0 && x.d < time.Millisecond {
			return fmt.Errorf("%s: %s is shorter than 1ms", x.name, x.d)
		}
	}
	if opt.StartWait < 0 {
		return fmt.Errorf("start_wait: %s is shorter than nothing", opt.StartWait)
	}
	if opt.Workspace != "" {
		if info, err := os.Stat(opt.Workspace); err == nil && !info.IsDir() {
			return fmt.Errorf("workspace: %s is no folder", opt.Workspace)
		}
	}
	for _, n := range opt.WebhookAllow {
		if _, err := netip.ParsePrefix(n); err != nil {
			return fmt.Errorf("webhook_allow: %q is not a network such as 10.1.0.0/16", n)
		}
	}
	for _, p := range opt.WebhookPorts {
		if p < 1 || p > 65535 {
			return fmt.Errorf("webhook_ports: %d is no port, 1 to 65535", p)
		}
	}
	if _, err := opt.signer(); err != nil {
		return err
	}
	for _, t := range opt.signedTenants() {
		if t == rules.AnyTenant {
			continue
		}
		if err := perdure.CheckName("tenant", string(t)); err != nil {
			return fmt.Errorf("signing_required: %q is no tenant", t)
		}
	}
	if len(opt.SigningRequired) > 0 && len(opt.SigningKeys) == 0 {
		return errors.New("signing_required: there is no key to sign with: " +
			"give signing_keys too (perdure keys signing new)")
	}
	if _, err := opt.certificate(); err != nil {
		return err
	}
	if _, err := opt.sealKeys(); err != nil {
		return err
	}
	_, err := opt.secrets()
	return err
}

// certificate reads the certificate, if one is given.
func (opt Options) certificate() (*tlscert.Pair, error) {
	if opt.TLSCert == "" && opt.TLSKey == "" {
		return nil, nil
	}
	return tlscert.Load(opt.TLSCert, opt.TLSKey, opt.Logger)
}

// secrets reads the secrets that are redacted. It refuses one that is a word of the API itself.
func (opt Options) secrets() (*redact.Set, error) {
	all, err := redact.Load(opt.Secrets)
	if all == nil || err != nil {
		return nil, err
	}
	words, err := httpd.Vocabulary()
	if err != nil || !all.Within(words) {
		return all, err
	}
	for _, source := range opt.Secrets {
		if one, err := redact.Load([]string{source}); err == nil && one.Within(words) {
			return nil, fmt.Errorf("secrets: %s holds a word of the API itself: taking it out would make every answer "+
				"unreadable; choose another secret", strings.TrimSpace(source))
		}
	}
	return nil, errors.New("secrets: one of them is a word of the API itself")
}

// guard returns the check of addresses that webhooks may be sent to.
func (opt Options) guard() *webhook.Guard {
	g := &webhook.Guard{Ports: opt.WebhookPorts}
	for _, n := range opt.WebhookAllow {
		g.Allow = append(g.Allow, netip.MustParsePrefix(n)) // validated
	}
	return g
}
