// Package browser gives tests a real browser: Debian's Chromium without a window, in processes of its own, with an
// empty profile. It dies with the test. It is for tests alone.
package browser

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// errMissing says that there is no Chromium on this machine, and what to type.
var errMissing = errors.New("there is no Chromium here: apt-get install chromium")

// find gives the path of the program.
func find() (string, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return "", errMissing
	}
	return path, nil
}

// patience is how long one thing that a page is asked for may take, on a machine with other things to do.
const patience = 2 * time.Minute

// A Page is one tab of a browser of its own.
type Page struct {
	t   testing.TB
	ctx context.Context
	// home is the home folder of the browser, which has its downloads.
	home string
}

// Open starts a browser and has it load a page. It fails the test where there is no browser.
func Open(t testing.TB, url string) *Page {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatal(err)
	}
	profile := t.TempDir()
	home := filepath.Join(profile, "home")
	flags := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(patience),
		chromedp.Headless, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), // it would look for servers of its maker
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("disable-extensions", true),
		chromedp.Flag("js-flags", "--expose-gc"), // gc() makes the memory of two moments comparable
		chromedp.Flag("enable-precise-memory-info", true),
		chromedp.Env("HOME=" + home),
	}
	if os.Geteuid() == 0 {
		flags = append(flags, chromedp.NoSandbox) // its sandbox does not work for root
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(func() {
		stop() // kills it, and waits until it is gone
		// Those it has started outlive it by a moment, and write into its folder, which is about to be removed.
		eventually.True(t, "the processes of the browser are gone", func() bool {
			return len(processes(t, profile)) == 0
		})
	})
	ctx, _ = chromedp.NewContext(ctx)
	p := &Page{t: t, ctx: ctx, home: home}
	// The first call starts the browser, which lives as long as the context of that call: no deadline.
	if _, err := chromedp.Run(ctx, chromedp.Navigate(url)); err != nil {
		t.Fatalf("the browser does not open %s: %v", url, err)
	}
	return p
}

// Tab has the browser of a page load another one beside it.
func (p *Page) Tab(url string) *Page {
	p.t.Helper()
	ctx, stop := chromedp.NewContext(p.ctx)
	p.t.Cleanup(stop)
	if _, err := chromedp.Run(ctx, chromedp.Navigate(url)); err != nil {
		p.t.Fatalf("the browser does not open %s in a tab: %v", url, err)
	}
	return &Page{t: p.t, ctx: ctx, home: p.home}
}

// For is the page for a part of the test: that part fails if the page does not do as it is asked.
func (p *Page) For(t testing.TB) *Page { return &Page{t: t, ctx: p.ctx, home: p.home} }

// processes are those of browsers whose profile is in a folder.
func processes(t testing.TB, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "--user-data-dir="+dir) {
			found = append(found, path)
		}
	}
	return found
}

// Eval evaluates an expression in the page, and decodes its value.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	return do(p, chromedp.Evaluate[T](expression))
}

// Downloaded tells whether the browser has saved a file of this name and size.
func (p *Page) Downloaded(name string, size int64) bool {
	f, err := os.Stat(filepath.Join(p.home, "Downloads", name))
	return err == nil && f.Size() == size
}

// Screenshot is how the page looks, as a PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	return do(p, chromedp.CaptureScreenshot())
}

// Resize gives the page another size, in pixels.
func (p *Page) Resize(width, height int64) {
	p.t.Helper()
	do(p, chromedp.EmulateViewport(width, height))
}

// Press presses keys, one after the other, on the element with the focus. "\x1b" is Escape, "\t" Tab, "\r" Enter.
func (p *Page) Press(keys string) {
	p.t.Helper()
	do(p, chromedp.KeyEvent(keys))
}

func do[T any](p *Page, a chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, a)
	for err != nil && strings.Contains(err.Error(), "target navigated") && ctx.Err() == nil {
		out, err = chromedp.Run(ctx, a) // the page was just being loaded
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}
