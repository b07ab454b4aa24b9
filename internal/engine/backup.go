package engine

import "context"

// Backup copies the whole store to a file that does not exist yet.
func (e *Engine) Backup(ctx context.Context, path string) error {
	_, err := e.store.Backup(ctx, path, nil)
	return err
}
