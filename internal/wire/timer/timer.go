// Package timer waits. It stands on the standard library alone, so that the SDK and the server share it.
package timer

import (
	"context"
	"time"
)

// Sleep waits. It returns false if the context ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
