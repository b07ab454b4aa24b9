package reads

import (
	"context"

	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Backup copies the whole store to a file that does not exist yet.
func Backup(ctx context.Context, e *kernel.Engine, path string) error {
	_, err := e.Store().Backup(ctx, path, nil)
	return err
}
