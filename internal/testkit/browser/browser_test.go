package browser

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
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
		if profile = filepath.Dir(t.TempDir()); len(processes(t, profile)) == 0 {
			t.Error("no process of the browser is found: this test looks at nothing")
		}
	})
	if left := processes(t, profile); len(left) > 0 {
		t.Errorf("of the browser there are left %v", left)
	}
}

func TestAMissingBrowserIsSaidWithTheLineToType(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := find(); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "apt-get install chromium") {
		t.Errorf("%v", err)
	}
}
