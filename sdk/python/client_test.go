package python

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// Every method of the client is called against a server, which refuses fields that it does not know.
func TestEveryCallOfTheClient(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer hook.Close()
	p := perdure.DefaultPolicy()
	w := servertest.Listen(t, embedded.Options{Policy: &p, WebhookAllow: []string{"127.0.0.0/8"}})
	cmd := exec.CommandContext(t.Context(), "python3", "-m", "tests.live_client")
	cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "NO_PROXY=*",
		"PYTHONDONTWRITEBYTECODE=1", "HOOK="+hook.URL)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "every call\n") {
		t.Errorf("the calls have ended with %v:\n%s", err, out)
	}
}
