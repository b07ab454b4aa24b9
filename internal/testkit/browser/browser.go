// Package browser gives tests a real browser: Debian's Chromium without a window, in processes of its own, with an
// empty profile. Tests that run at once share it, and it dies with the last of them. It is for tests alone.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
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

// A Page is one tab. It shares the browser with other pages, and neither cookies nor storage.
type Page struct {
	t   testing.TB
	ctx context.Context
	// downloads is the folder of what the page has saved.
	downloads string
}

// needless are what a browser with windows starts for each of them, before anybody uses it: a process for the page that
// comes next, and processes that draw the list of suggestions below the address. They take longer than a short test.
var needless = []string{"SpareRendererForSitePerProcess", "PreloadTopChromeWebUI", "WebUIOmniboxPopup",
	"WebUIOmniboxAimPopup", "AimEnabled", "Translate", "OptimizationHints", "MediaRouter"}

// shared is the browser of all pages of this process. To start one costs about as much as a test does with it, so it
// lives while any test has a page.
var shared struct {
	sync.Mutex
	users   int
	kept    bool
	ctx     context.Context
	stop    context.CancelFunc
	profile string
}

// Keep keeps the browser that the first page starts, also while no test has a page. It is for a TestMain whose tests
// open pages one after the other: to start a browser takes as much time as a short test. The browser ends with stop.
func Keep() (stop func()) {
	shared.Lock()
	defer shared.Unlock()
	shared.kept = true
	return func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.stop != nil {
			shared.stop()
			_ = os.RemoveAll(shared.profile)
		}
	}
}

// Open has the browser load a page. It fails the test where there is no browser.
func Open(t testing.TB, url string) *Page {
	t.Helper()
	ctx, err := acquire()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { release(t) })
	ctx, stop := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(stop)
	p := &Page{t: t, ctx: ctx, downloads: t.TempDir()}
	// The first call makes the page, which lives as long as the context of that call: no deadline.
	_, err = chromedp.Run(ctx, chromedp.Navigate("about:blank"))
	if err == nil {
		c := chromedp.FromContext(ctx)
		err = c.Browser.Call(ctx, "Browser.setDownloadBehavior", map[string]any{"behavior": "allow",
			"downloadPath": p.downloads, "browserContextId": c.BrowserContextID}, nil)
	}
	if err == nil {
		err = load(ctx, url)
	}
	if err != nil {
		t.Fatalf("the browser does not open %s: %v", url, err)
	}
	return p
}

// load loads a page, and ends the events of it that chromedp has asked for and nothing here reads: one for each element
// that changes, each style sheet, each request and each line of the log.
func load(ctx context.Context, url string) error {
	_, err := chromedp.Run(ctx, chromedp.Navigate(url))
	for _, domain := range []string{"CSS", "DOM", "Network", "Log"} {
		if err == nil {
			err = chromedp.FromContext(ctx).Target.Call(ctx, domain+".disable", map[string]any{}, nil)
		}
	}
	return err
}

// acquire gives the context of the browser, and starts it for its first user.
func acquire() (context.Context, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.stop != nil {
		shared.users++
		return shared.ctx, nil
	}
	path, err := find()
	if err != nil {
		return nil, err
	}
	profile, err := os.MkdirTemp("", "perdure-browser-")
	if err != nil {
		return nil, err
	}
	flags := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(patience),
		chromedp.Headless, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), // it would look for servers of its maker
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("disable-extensions", true),
		chromedp.Flag("disable-breakpad", true),
		chromedp.Flag("disable-features", strings.Join(needless, ",")),
		// All pages are in front: none is slowed down because of another one.
		chromedp.Flag("disable-backgrounding-occluded-windows", true),
		chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.Flag("js-flags", "--expose-gc"), // gc() makes the memory of two moments comparable
		chromedp.Flag("enable-precise-memory-info", true),
		chromedp.Env("HOME=" + filepath.Join(profile, "home")),
	}
	if os.Geteuid() == 0 {
		flags = append(flags, chromedp.NoSandbox) // its sandbox does not work for root
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), flags...)
	ctx, _ = chromedp.NewContext(ctx)
	// The first call starts the browser, which lives as long as the context of that call: no deadline.
	if _, err := chromedp.Run(ctx, chromedp.Navigate("about:blank")); err != nil {
		stop()
		return nil, fmt.Errorf("starting the browser: %w", err)
	}
	shared.users, shared.ctx, shared.stop, shared.profile = 1, ctx, stop, profile
	return ctx, nil
}

// release ends the browser after its last user.
func release(t testing.TB) {
	shared.Lock()
	defer shared.Unlock()
	if shared.users--; shared.users > 0 || shared.kept {
		return
	}
	shared.stop() // kills it, and waits until it is gone
	shared.stop = nil
	// Those it has started outlive it by a moment, and write into its folder, which is about to be removed.
	eventually.True(t, "the processes of the browser are gone", func() bool {
		return len(processes(t, shared.profile)) == 0
	})
	if err := os.RemoveAll(shared.profile); err != nil {
		t.Errorf("removing the profile of the browser: %v", err)
	}
}

// Tab has the browser of a page load another one beside it.
func (p *Page) Tab(url string) *Page {
	p.t.Helper()
	ctx, stop := chromedp.NewContext(p.ctx)
	p.t.Cleanup(stop)
	if err := load(ctx, url); err != nil {
		p.t.Fatalf("the browser does not open %s in a tab: %v", url, err)
	}
	return &Page{t: p.t, ctx: ctx, downloads: p.downloads}
}

// For is the page for a part of the test: that part fails if the page does not do as it is asked.
func (p *Page) For(t testing.TB) *Page { return &Page{t: t, ctx: p.ctx, downloads: p.downloads} }

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

// Eval evaluates an expression in the page, and decodes its value, or that of the promise that it is.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	return do(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// waiting waits in the page until an expression is true, and looks at it again when the page changes, and at times.
const waiting = `new Promise((done, failed) => {
	const ends = performance.now() + %d;
	let later = 0;
	const look = () => {
		later = 0;
		try {
			const is = Boolean(%s);
			if (!is && performance.now() < ends) return;
			clearInterval(each); changes.disconnect(); done(is);
		} catch (e) { clearInterval(each); changes.disconnect(); failed(e); }
	};
	const changes = new MutationObserver(() => { later ||= setTimeout(look, 40); });
	changes.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
	const each = setInterval(look, 200);
	look();
})`

// Until waits until an expression is true in the page.
func (p *Page) Until(what, expression string) {
	p.t.Helper()
	eventually.True(p.t, what, func() bool { return p.Becomes(expression, 5*time.Second) })
}

// Becomes gives an expression some time to become true in the page, and tells whether it has.
func (p *Page) Becomes(expression string, within time.Duration) bool {
	p.t.Helper()
	return Eval[bool](p, fmt.Sprintf(waiting, within.Milliseconds(), expression))
}

// Downloaded tells whether the browser has saved a file of this name and size.
func (p *Page) Downloaded(name string, size int64) bool {
	f, err := os.Stat(filepath.Join(p.downloads, name))
	return err == nil && f.Size() == size
}

// Screenshot is how the page looks, as a PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	return do(p, chromedp.CaptureScreenshot())
}

// Paper is how the page looks in print, as a PDF.
func (p *Page) Paper() []byte {
	p.t.Helper()
	return do(p, func(ctx context.Context, t *chromedp.Target) ([]byte, error) {
		r, err := cdp.Call(ctx, t, page.PrintToPDF, page.PrintToPDFParams{})
		if err != nil {
			return nil, err
		}
		return r.Data, nil
	})
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
	for err != nil && left(err) && ctx.Err() == nil {
		out, err = chromedp.Run(ctx, a) // the page was just being loaded
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// left tells whether an error says that the page was just being loaded.
func left(err error) bool {
	for _, text := range []string{"target navigated", "context was destroyed", "Promise was collected"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
