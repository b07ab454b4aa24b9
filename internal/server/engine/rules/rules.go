package rules

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Options holds the settings of a server about its tenants.
type Options struct {
	// Signer signs the runs that are accepted. Default: runs are not signed.
	Signer *perdure.Signer
	// SigningRequired names tenants whose runs have to be signed, whatever the store says.
	SigningRequired []perdure.TenantID
	// MaxLiveRuns limits the live runs of a tenant without a limit of its own. Zero: no limit.
	MaxLiveRuns int64
}

var options = kernel.NewPart(func(*kernel.Engine) *Options { return &Options{} })

// Add adds this wing to an engine.
func Add(e *kernel.Engine, opt Options) { *options.Of(e) = opt }

// Signer gives the key that signs accepted runs. Nil: runs are not signed.
func Signer(e *kernel.Engine) *perdure.Signer { return options.Of(e).Signer }

// SigningRequired names the tenants whose runs have to be signed by the configuration.
func SigningRequired(e *kernel.Engine) []perdure.TenantID { return options.Of(e).SigningRequired }
