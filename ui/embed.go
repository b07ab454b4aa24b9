// Package ui is the dashboard: the files that a browser gets, and a handler that serves them.
//
// The files are in static/, as they are served but for their comments: there is no build step.
// static/app.js is where to start reading. It shows one of the views (static/views), which get their
// data over static/api.js and static/live.js. Libraries are unchanged files in static/vendor.
//
// The handler knows nothing of runs: the pages use the HTTP API like any other client. Each file is
// compressed once, and has an ETag. The content security policy allows files of this server alone,
// and one inline script, the import map of index.html, by its hash.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
)

//go:embed static
var static embed.FS

// Prefix is the path below which the files are.
const Prefix = "/ui/"

// A file is a file as it is sent.
type file struct {
	media   string
	etag    string
	plain   []byte
	zipped  []byte
	etagZip string
}

// load reads and compresses all files, by their path below Prefix.
var load = sync.OnceValues(func() (map[string]*file, string) {
	files := make(map[string]*file)
	err := fs.WalkDir(static, "static", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(name, ".md") {
			return err
		}
		b, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		media, ok := medias[path.Ext(name)]
		if !ok {
			return fmt.Errorf("%s: no media type is known for this ending", name)
		}
		if path.Ext(name) == ".js" && !strings.Contains(name, "/vendor/") {
			b = uncommented(b)
		}
		sum := base64.RawURLEncoding.EncodeToString(hash(b)[:12])
		files[strings.TrimPrefix(name, "static/")] = &file{media: media, plain: b, zipped: compress(b),
			etag: `"` + sum + `"`, etagZip: `"` + sum + `-gz"`}
		return nil
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	return files, policy(files["index.html"].plain)
})

// medias are the content types by ending.
var medias = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".json": "application/json",
}

func hash(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

func compress(b []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	_, _ = w.Write(b) // writing to memory does not fail
	_ = w.Close()
	return out.Bytes()
}

// comments are those that have lines of their own: a block that begins with two stars, or lines with two
// slashes. JSDoc is a quarter of the compressed size of the scripts.
var comments = regexp.MustCompile(`(?m)^[ \t]*(?:/\*\*(?:[^*]|\*+[^*/])*\*+/[ \t]*|//[^\n]*)$`)

// uncommented leaves out the comments of a script. The lines keep their numbers.
func uncommented(script []byte) []byte {
	return comments.ReplaceAllFunc(script, func(c []byte) []byte {
		return bytes.Repeat([]byte("\n"), bytes.Count(c, []byte("\n")))
	})
}

var importMap = regexp.MustCompile(`(?s)<script type="importmap">(.*?)</script>`)

// policy is the content security policy of the pages. It allows the import map of the page by its
// hash, since browsers read import maps from inline scripts only.
func policy(page []byte) string {
	script := "script-src 'self'"
	if m := importMap.FindSubmatch(page); m != nil {
		script += " 'sha256-" + base64.StdEncoding.EncodeToString(hash(m[1])) + "'"
	}
	return "default-src 'none'; " + script + "; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Serves tells whether a path is one of the dashboard.
func Serves(p string) bool { return p == "/" || p == "/ui" || strings.HasPrefix(p, Prefix) }

// ServeHTTP answers a GET or HEAD of a file of the dashboard. "/" and "/ui" are redirected to Prefix.
func ServeHTTP(w http.ResponseWriter, r *http.Request) {
	files, csp := load()
	h := w.Header()
	h.Set("Content-Security-Policy", csp)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	name, below := strings.CutPrefix(r.URL.Path, Prefix)
	if !below {
		http.Redirect(w, r, Prefix, http.StatusFound)
		return
	}
	if name == "" {
		name = "index.html"
	}
	f, ok := files[name]
	if !ok {
		http.Error(w, "the dashboard has no such file; it begins at "+Prefix, http.StatusNotFound)
		return
	}
	// The browser asks each time, and gets 304 until the program is another one.
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Type", f.media)
	body, etag := f.plain, f.etag
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		body, etag = f.zipped, f.etagZip
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", etag)
	if strings.Contains(r.Header.Get("If-None-Match"), etag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // an error means that the browser is gone
	}
}
