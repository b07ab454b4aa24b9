package access

import "github.com/perdure/perdure/internal/server/engine/kernel"

// Add adds this wing to an engine. The keys seal the root secret.
func Add(e *kernel.Engine, sealKeys [][]byte) { rootSecret.Of(e).sealKeys = sealKeys }
