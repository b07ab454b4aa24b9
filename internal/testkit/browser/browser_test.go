package browser

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
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
			t.Errorf("title = %q, want hello world", title)
		}
		if png := p.Screenshot(); !bytes.HasPrefix(png, []byte("\x89PNG")) {
			t.Errorf("the screenshot begins with %.20q, want a PNG", png)
		}
		if profile = shared.profile; len(processes(t, profile)) == 0 {
			t.Error("no process of the browser is found: this test looks at nothing")
		}
		sharesTheBrowserAlone(t, p, srv.URL)
	})
	if left := processes(t, profile); len(left) > 0 {
		t.Errorf("of the browser there are left %v", left)
	}
}

// sharesTheBrowserAlone opens another page: it has neither the cookies nor the storage of the first, and both draw.
func sharesTheBrowserAlone(t *testing.T, p *Page, url string) {
	before := shared.ctx
	Eval[bool](p, "document.cookie = 'a=1', localStorage.setItem('a', 1), true")
	other := Open(t, url)
	if shared.ctx != before {
		t.Error("a second page has another browser")
	}
	if got := Eval[string](other, "document.cookie + (localStorage.getItem('a') ?? '')"); got != "" {
		t.Errorf("a page has %q of another one, want nothing", got)
	}
	for _, p := range []*Page{p, other} {
		Eval[bool](p, "requestAnimationFrame(() => { window.drawn = true }), true")
		eventually.True(t, "the page draws", func() bool {
			return Eval[bool](p, "window.drawn === true && document.visibilityState === 'visible'")
		})
	}
}

func TestAMissingBrowserIsSaidWithTheLineToType(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := find(); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "apt-get install chromium") {
		t.Errorf("%v", err)
	}
}
