package python

import (
	"os/exec"
	"path/filepath"
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
	killtest.AtEveryCommit(t, srv, endLeases, func(agents map[string]string, env ...string) (*exec.Cmd, string) {
		w := world{srv, filepath.Join(t.TempDir(), "log")}
		return w.start("tests.relay_worker", append(env, "RELAY="+string(client.JSON(agents)))...), w.log
	})
}
