package browser

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/eventually"
)

func TestAPageRunsItsScriptAndIsGoneAfterTheTest(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(`<title>hello</title><script>document.title += " world"</script>`))
	}))
	defer srv.Close()
	var profile string
	t.Run("open", func(t *testing.T) {
		p := Open(t, srv.URL)
		if title := Eval[string](p, "document.title"); title != "hello world" {
			t.Errorf("%q", title)
		}
		if png := p.Screenshot(); !bytes.HasPrefix(png, []byte("\x89PNG")) {
			t.Errorf("%.20q", png)
		}
		if profile = filepath.Dir(t.TempDir()); len(browsers(t, profile)) == 0 {
			t.Error("no process of the browser is found: this test looks at nothing")
		}
	})
	eventually.True(t, "the browser is gone", func() bool { return len(browsers(t, profile)) == 0 })
}

// browsers are the processes whose profile lies in a folder.
func browsers(t *testing.T, dir string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "--user-data-dir="+dir+"/") {
			pids = append(pids, path)
		}
	}
	return pids
}

func TestAMissingBrowserIsSaidWithTheLineToType(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := find(); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "apt-get install chromium") {
		t.Errorf("%v", err)
	}
}
