package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd"
	"github.com/perdure/perdure/internal/redact"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/tlscert"
	"github.com/perdure/perdure/internal/webhook"
)

// Validate refuses addresses that are none. What it says holds no password.
func (opt Options) Validate() error {
	if opt.Store != "" && !strings.HasPrefix(opt.Store, "postgres://") && !strings.HasPrefix(opt.Store, "postgresql://") {
		return fmt.Errorf("store: %s is not an address such as postgres://user@host:5432/database", doorbell.Mask(opt.Store))
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
	if opt.PublicURL != "" {
		u, err := url.Parse(opt.PublicURL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.User != nil || strings.ContainsAny(opt.PublicURL, "?# ") {
			return fmt.Errorf("public_url: %q is not an address such as https://perdure.example.com", doorbell.Mask(opt.PublicURL))
		}
	}
	if opt.MaxStreams < 0 {
		return fmt.Errorf("max_streams: %d is no number of streams", opt.MaxStreams)
	}
	if opt.TenantStreams < 0 {
		return fmt.Errorf("max_streams_per_tenant: %d is no number of streams", opt.TenantStreams)
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
	for _, t := range opt.demanded() {
		if t == engine.AnyTenant {
			continue
		}
		if err := perdure.CheckName("tenant", string(t)); err != nil {
			return fmt.Errorf("signing_required: %q is no tenant", t)
		}
	}
	if len(opt.SigningRequired) > 0 && len(opt.SigningKeys) == 0 {
		return errors.New("signing_required: there is no key to sign with: give signing_keys too (perdure keys signing new)")
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

// secrets reads what is to be kept out.
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
			return nil, fmt.Errorf("secrets: %s holds a word of the API itself: taking it out would make every answer unreadable; choose another secret", strings.TrimSpace(source))
		}
	}
	return nil, errors.New("secrets: one of them is a word of the API itself")
}

// guard says where webhooks may go.
func (opt Options) guard() *webhook.Guard {
	g := &webhook.Guard{Ports: opt.WebhookPorts}
	for _, n := range opt.WebhookAllow {
		g.Allow = append(g.Allow, netip.MustParsePrefix(n)) // validated
	}
	return g
}

// nodeName is a name that no other node has: who waits where is written down by node. One host may have
// several on a shared store, and containers like to have the same name and process number.
func nodeName(shared bool) string {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	if shared {
		host += "-" + strings.ToLower(rand.Text()[:8])
	}
	return host
}

// openBell makes the bell between this node and the others.
func (opt Options) openBell(st *store.Store) (doorbell.Bell, error) {
	bell := doorbell.Options{URL: opt.Doorbell, Logger: opt.Logger}
	if bell.URL == "" {
		bell.URL = opt.Store
	}
	where := "in the process"
	if bell.URL != "" && bell.URL != "none" {
		where = doorbell.Mask(bell.URL)
		// Twice: made by whoever was first, and then read. Two nodes may start at once.
		op := &spaceOp{}
		for range 2 {
			if err := st.Do(context.Background(), op); err != nil {
				return nil, err
			}
		}
		bell.Space = op.name
	}
	kind := "SQLite in memory"
	if opt.Store != "" {
		kind = doorbell.Mask(opt.Store)
	} else if opt.Dir != "" {
		kind = "SQLite in " + opt.Dir
	}
	if opt.Logger != nil {
		opt.Logger.LogAttrs(context.Background(), slog.LevelInfo, "opened", slog.String("store", kind), slog.String("doorbell", where), slog.String("node", opt.Node))
	}
	return doorbell.Open(bell)
}

// spaceOp finds the name that the nodes on one store have in common, so that others on the same NATS neither
// hear them nor are heard.
type spaceOp struct{ name string }

func (*spaceOp) Needs() []store.Ref { return nil }

func (op *spaceOp) Do(tx *store.Tx) (err error) {
	if op.name, err = tx.Meta.Get("doorbell"); err == nil && op.name == "" {
		tx.Stage("INSERT INTO meta (name,value) VALUES ('doorbell',?) ON CONFLICT (name) DO NOTHING", rand.Text())
	}
	return err
}
