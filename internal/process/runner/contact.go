package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/timer"
)

// A contact says what the answers of the server tell about it: when the last one came, and for how long
// the key has been refused. It is shared by all goroutines.
type contact struct {
	mu       sync.Mutex
	answered time.Time
	denied   time.Time
}

// maxDenial is how long a key may be refused before calls fail. The server that has the workspace then
// takes over the result.
const maxDenial = 10 * time.Minute

// note takes in the answer of a call. It returns true if the key is refused, and has been for long.
func (c *contact) note(err error) (denied bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	code := client.CodeOf(err)
	if err == nil || code != "" {
		c.answered = time.Now()
	}
	switch code {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost:
		if c.denied.IsZero() {
			c.denied = time.Now()
		}
		return time.Since(c.denied) > maxDenial
	}
	if err == nil {
		c.denied = time.Time{}
	}
	return false
}

// last returns when the last answer came, and not before an instant.
func (c *contact) last(from time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered.After(from) {
		return c.answered
	}
	return from
}

// DefaultGiveUpAfter is how long a runner whose command has ended waits for a server that takes the end.
const DefaultGiveUpAfter = 7 * 24 * time.Hour

// errGaveUp means that no server has answered for as long as a runner waits.
var errGaveUp = errors.New("no server has answered")

// patient returns a context that ends when no server has answered for so long, from now on. It is for
// calls that nobody's command waits for: before a command has started, and after it has ended.
func (l *link) patient(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	from := time.Now()
	go func() {
		for {
			left := bound - time.Since(l.contact.last(from))
			if left <= 0 {
				end(fmt.Errorf("%w for %s", errGaveUp, bound))
				return
			}
			if !timer.Sleep(ctx, left) {
				return
			}
		}
	}()
	return ctx, func() { end(nil) }
}

// leaves says where the end and the output of a command are that no server has taken.
func (e *execution) leaves() string {
	return fmt.Sprintf("how it ended is in %s/%s, and its output in stdout.log and stderr.log beside it; a server "+
		"that is started with this workspace takes over both, unless the run's deadline has passed (perdure serve "+
		"--workspace %s), and then: perdure logs %s", e.dir.Path, jobdir.ResultFile, e.job.Workspace, e.grant.RunID)
}
