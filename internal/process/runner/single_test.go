package runner

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// Two pools, and the server does not hear the one that has the run: the other one gets it. The command is
// executed once.
func TestSingleAttemptOfTwoPoolsIsExecutedOnce(t *testing.T) {
	w := newWorld(t, func(o *embedded.Options) {
		p := perdure.DefaultPolicy()
		p.DispatchedRetry, p.WatchdogInterval = 200*time.Millisecond, 20*time.Millisecond
		o.Policy = &p
	})
	target, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	arrived, late := make(chan struct{}), make(chan struct{})
	var once sync.Once
	forward := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if verb := path.Base(r.URL.Path); verb == "heartbeat" || verb == "commit" {
			once.Do(func() { close(arrived) })
			<-late
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(proxy.Close)
	t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-late:
		default:
			close(late)
		}
	}))
	dir := t.TempDir()
	began, gate := filepath.Join(dir, "began"), filepath.Join(dir, "gate")
	s := w.submit(sh(`echo x >> ` + began + `; while [ ! -e ` + gate + ` ]; do sleep 0.02; done`))
	slow := w.pool(1, func(p *Pool) {
		p.Job.Server.URL, p.Job.Workspace = proxy.URL, filepath.Join(dir, "slow")
	})
	<-arrived // the slow pool has the run
	w.pool(1, nil)
	eventually.True(t, "the other pool is heard", func() bool {
		r := s.run()
		return r.Epoch > 1 && r.Activity != ""
	})
	close(late)
	eventually.True(t, "the slow pool has lost the run", func() bool {
		jobs, _ := filepath.Glob(filepath.Join(dir, "slow", "jobs", "*"))
		b, _ := os.ReadFile(began)
		return len(jobs) == 0 && len(b) > 0
	})
	slow()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ended(perdure.Completed, "")
	b, err := os.ReadFile(began)
	if n := strings.Count(string(b), "x"); n != 1 || err != nil {
		t.Errorf("the command was executed %d times (error %v), want once", n, err)
	}
}
