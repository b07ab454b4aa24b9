package typescript

import (
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/killtest"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// A worker is killed with -9 at each commit of a story.
func TestKillAtEveryCommit(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	srv, endLeases := killtest.Listen(t)
	w := world{Server: srv, gate: new(atomic.Pointer[chan struct{}])}
	killtest.AtEveryCommit(t, srv, endLeases, func(agents map[string]string, env ...string) (*exec.Cmd, string) {
		log := filepath.Join(t.TempDir(), "log")
		env = append(env, "LOG="+log, "RELAY="+string(client.JSON(agents)))
		return w.program("dist/test/relay-worker.js", env...), log
	})
}
