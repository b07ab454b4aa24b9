package engine

import (
	"io"
	"log/slog"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Facade is the kernel with all wings, and a reader for each noun: e.Runs.Get, e.Threads.Page.
type Engine struct {
	*kernel.Engine
	reads.Reads
	Keys     access.Keys
	Webhooks outbox.Webhooks
}

// Options configure an engine. The zero value is usable.
type Options struct {
	// Policy holds the timeouts and limits to decide by. Default: perdure.DefaultPolicy.
	Policy *perdure.Policy
	// Bell rings when something changed. Default: it is silent, and waiters poll.
	Bell   doorbell.Ringer
	Logger *slog.Logger
	// Entropy is the source of ids and secrets. Default: the system's.
	Entropy io.Reader
	// Roll gives a random number from 0 to 1, for the jitter of backoffs.
	Roll func() float64
	// Instance tells this server from others, and is kept over its restarts. Node is its name, for
	// people.
	Instance, Node string
	// Counter is told of changes once they are durable. Default: none.
	Counter kernel.Observer
	// Secrets are the texts that are redacted before anything is stored.
	Secrets *redact.Set
	// Signer signs the runs that are accepted. Default: runs are not signed.
	Signer *perdure.Signer

	// SealKeys encrypt the store's root secret: the first one seals, all of them open. Each has
	// SealKeySize bytes. Default: the secret is not sealed.
	SealKeys [][]byte
	// MaxLiveRuns limits the live runs of a tenant that has no limit of its own. Default: no limit.
	MaxLiveRuns int64

	// SigningRequired names tenants whose runs have to be signed, in addition to those that the
	// store names. AnyTenant stands for all.
	SigningRequired []perdure.TenantID

	// Alone says that no other node uses the store, so that nothing has to wait for their caches. It
	// is for tests of one node.
	Alone bool
}

// New makes an engine over a store.
func New(s *store.Store, opt Options) (*Engine, error) {
	e, err := assemble(s, opt)
	if err != nil {
		return nil, err
	}
	if err := access.OpenRootSecret(e.Engine); err != nil {
		return nil, err
	}
	return e, nil
}

// Offline makes an engine for a command that works on a store without a server: for keys and the
// audit log. It does not know the root secret, so it can't make or check callback tokens and
// webhook secrets.
func Offline(s *store.Store) (*Engine, error) { return assemble(s, Options{}) }

// assemble makes the kernel and adds the wings to it.
func assemble(s *store.Store, opt Options) (*Engine, error) {
	e, err := kernel.New(s, kernel.Options{Policy: opt.Policy, Bell: opt.Bell, Logger: opt.Logger, Entropy: opt.Entropy,
		Roll: opt.Roll, Instance: opt.Instance, Node: opt.Node, Counter: opt.Counter, Secrets: opt.Secrets,
		Alone: opt.Alone})
	if err != nil {
		return nil, err
	}
	// In this order their hooks are called.
	access.Add(e, opt.SealKeys)
	outbox.Add(e)
	rules.Add(e, rules.Options{Signer: opt.Signer, SigningRequired: opt.SigningRequired, MaxLiveRuns: opt.MaxLiveRuns})
	life.Add(e) // its lines follow those of the change: after outbox
	life.AddKeys(e)
	dispatch.Add(e)
	reads.Add(e)
	return &Engine{e, reads.New(e), access.KeysOf(e), outbox.WebhooksOf(e)}, nil
}
