package ui

import (
	"crypto/sha256"
	"encoding/base64"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// maxBytes is how much a browser loads in all, compressed.
const maxBytes = 180_000

func get(t *testing.T, method, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	ServeHTTP(w, r)
	return w.Result()
}

func TestDashboardIsSmall(t *testing.T) {
	files, _ := load()
	sum := 0
	for _, f := range files {
		sum += len(f.zipped)
	}
	if sum > maxBytes || len(files) < 10 {
		t.Errorf("%d files have %d bytes compressed, want at most %d", len(files), sum, maxBytes)
	}
	t.Logf("%d files, %d bytes compressed", len(files), sum)
}

// Scripts are sent without the comments that have lines of their own. A line keeps its number, and its code.
func TestScriptsAreSentWithoutComments(t *testing.T) {
	got := string(uncommented([]byte(
		"// a\nf(); // b\n  /**\n   * c\n   */\ng('/** d */');\n/** e */ h();\n/** i */\n")))
	if want := "\nf(); // b\n\n\n\ng('/** d */');\n/** e */ h();\n\n"; got != want {
		t.Errorf("uncommented = %q, want %q", got, want)
	}
	files, _ := load()
	for name, f := range files {
		source, err := static.ReadFile("static/" + name)
		if err != nil || path.Ext(name) != ".js" || strings.HasPrefix(name, "vendor/") {
			continue
		}
		if a, b := strings.Count(string(source), "\n"), strings.Count(string(f.plain), "\n"); a != b {
			t.Errorf("%s is sent with %d lines, want %d as in the source", name, b, a)
		}
		for i, line := range strings.Split(string(source), "\n") {
			sent := strings.Split(string(f.plain), "\n")[i]
			text := strings.TrimSpace(line)
			if sent != line && !strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "/**") &&
				!strings.HasPrefix(text, "*") {
				t.Errorf("%s:%d is sent as %q, want %q", name, i+1, sent, line)
			}
		}
	}
}

func TestPageHasStrictHeaders(t *testing.T) {
	res := get(t, "GET", "/ui/")
	csp := res.Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self' 'sha256-", "style-src 'self';",
		"img-src 'self' data:", "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
		"frame-ancestors 'none'"} {
		if !strings.Contains(csp, part) {
			t.Errorf("Content-Security-Policy = %q, want %q in it", csp, part)
		}
	}
	if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
		t.Errorf("Content-Security-Policy = %q, want nothing unsafe and no other server", csp)
	}
	page, _ := static.ReadFile("static/index.html")
	inline := regexp.MustCompile(`(?s)<script(?:| type="importmap")>(.*?)</script>`).FindAllSubmatch(page, -1)
	if len(inline) != 1 {
		t.Fatalf("index.html has %d inline scripts, want the import map alone", len(inline))
	}
	sum := sha256.Sum256(inline[0][1])
	if want := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(csp, want) {
		t.Errorf("Content-Security-Policy = %q, want the hash of the import map %s", csp, want)
	}
	if got := res.Header.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options = %q", got)
	}
}

func TestFilesAreCompressedAndRevalidated(t *testing.T) {
	res := get(t, "GET", "/ui/style.css", "Accept-Encoding", "gzip, br")
	etag := res.Header.Get("ETag")
	if res.StatusCode != 200 || res.Header.Get("Content-Encoding") != "gzip" || etag == "" {
		t.Fatalf("style.css: %d %v, want 200, gzip and an ETag", res.StatusCode, res.Header)
	}
	if res := get(t, "GET", "/ui/style.css", "Accept-Encoding", "gzip", "If-None-Match", etag); res.StatusCode != 304 {
		t.Errorf("style.css under its ETag: %d, want 304", res.StatusCode)
	}
	if res := get(t, "GET", "/ui/style.css"); res.Header.Get("Content-Encoding") != "" ||
		res.Header.Get("ETag") == etag {
		t.Errorf("style.css without Accept-Encoding: %v, want it plain, under another ETag", res.Header)
	}
}

func TestOtherPaths(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		location     string
	}{
		{"GET", "/", 302, "/ui/"},
		{"GET", "/ui", 302, "/ui/"},
		{"GET", "/ui/nothing.js", 404, ""},
		{"GET", "/ui/vendor/README.md", 404, ""},
		{"GET", "/ui/../embed.go", 404, ""},
		{"HEAD", "/ui/", 200, ""},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.URL.Path = c.path
		w := httptest.NewRecorder()
		ServeHTTP(w, r)
		if w.Code != c.status || w.Header().Get("Location") != c.location {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, w.Code, w.Header().Get("Location"), c.status,
				c.location)
		}
	}
}

// Every import of a module names a file that exists, or a name of the import map.
func TestImportsResolve(t *testing.T) {
	files, _ := load()
	names := make(map[string]bool)
	for _, m := range regexp.MustCompile(`"([^"]+)": "\./([^"]+)"`).FindAllSubmatch(files["index.html"].plain, -1) {
		names[string(m[1])] = true
		if files[string(m[2])] == nil {
			t.Errorf("the import map leads to %s, which does not exist", m[2])
		}
	}
	imports := regexp.MustCompile(`(?m)^(?:(?:import|export) [^'"\n]*from |import )'([^']+)'`)
	for name, f := range files {
		if path.Ext(name) != ".js" || strings.HasPrefix(name, "vendor/") {
			continue
		}
		for _, m := range imports.FindAllSubmatch(f.plain, -1) {
			at := string(m[1])
			if !strings.HasPrefix(at, ".") {
				if !names[at] {
					t.Errorf("%s imports %q, which is not in the import map", name, at)
				}
				continue
			}
			if at = path.Join(path.Dir(name), at); files[at] == nil {
				t.Errorf("%s imports %s, which does not exist", name, at)
			}
		}
	}
}

// Data of an agent are shown as text: no view makes HTML of strings, sets a style attribute or runs text.
func TestNoFileMakesMarkupOfStrings(t *testing.T) {
	bad := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|` +
		`\beval\(|new Function|javascript:`)
	err := fs.WalkDir(static, "static", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.Contains(name, "/vendor/") || !strings.HasSuffix(name, ".js") {
			return err
		}
		b, err := static.ReadFile(name)
		for i, line := range strings.Split(string(b), "\n") {
			if bad.MatchString(line) {
				t.Errorf("%s:%d: %s", name, i+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The rules that the view Watchdog lists are those of the page that is printed from the code.
func TestRulesAreThoseOfTheDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/watchdog.md")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := load()
	var want, got []string
	row := regexp.MustCompile("(?m)^\\| (W\\d+) \\| `([a-z-]+)`(?:<br>`[a-z-]+`)? " +
		`\| (.*) \| (.*) \| (.*) \| [a-z]* \|$`)
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		want = append(want, strings.ReplaceAll(strings.Join(m[1:], " | "), "`", ""))
	}
	rules := strings.ReplaceAll(string(files["rules.js"].plain), "\" +\n      \"", "")
	entry := regexp.MustCompile(`"rule": "(.*)", "name": "(.*)",\s+"when": "(.*)",\s+"then": "(.*)",\s+` +
		`"bound": "(.*)",`)
	for _, m := range entry.FindAllStringSubmatch(rules, -1) {
		got = append(got, strings.Join(m[1:], " | "))
	}
	if len(want) < 20 || len(got) != len(want) {
		t.Fatalf("rules.js has %d rules, want %d as docs/watchdog.md", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("rule %d of rules.js is\n%s, want as in docs/watchdog.md\n%s", i, got[i], want[i])
		}
	}
}
