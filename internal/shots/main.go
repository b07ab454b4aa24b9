// Command shots makes pictures of the dashboard's views, light, dark and on a phone. It starts a server of its own,
// kills it once, and plays a day of work on it, so that every view has something to show.
//
//	go run ./internal/shots --out /tmp/pictures
//
// With --url and --key it takes pictures of a server that is there, and changes nothing on it.
// It prints what the pages wrote to the console as errors, and fails if there was any.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/chromedp"
)

// A shot is one view: the name of its file, and its address after #. {run}, {failed} and {thread} stand
// for ids of the scripted store.
type shot struct{ name, at string }

var shots = []shot{
	{"run", "/runs/{run}"},
	{"runs", "/runs"},
	{"login", ""},
	{"run-failed", "/runs/{failed}"},
	{"run-log", "/runs/{run}?tab=log"},
	{"run-data", "/runs/{run}?tab=data"},
	{"run-journal", "/runs/{run}?tab=journal"},
	{"run-inbox", "/runs/{run}?tab=inbox"},
	{"chat", "/threads/{thread}"},
	{"threads", "/threads"},
	{"approvals", "/approvals"},
	{"dead-letters", "/dead-letters"},
	{"start", "/start"},
	{"workers", "/workers"},
	{"webhooks", "/webhooks"},
	{"health", "/health"},
	{"watchdog", "/watchdog"},
	{"recovery", "/recovery"},
	{"keys", "/keys"},
}

// A look is a size and a theme.
type look struct {
	name          string
	theme         string
	width, height int64
}

var looks = []look{
	{"light", "light", 1360, 860},
	{"dark", "dark", 1360, 860},
	{"phone", "light", 390, 844},
}

func main() {
	log.SetFlags(0)
	if err := picture(); err != nil {
		log.Fatal("shots: ", err)
	}
}

func picture() error {
	f := &filler{}
	flag.StringVar(&f.url, "url", "", "a server that is there; empty: one of its own")
	flag.StringVar(&f.key, "key", "", "a platform key of that server")
	out := flag.String("out", "/tmp/pictures", "the folder for the pictures")
	only := flag.String("only", "", "names of views, with commas; empty: all")
	wear := flag.String("looks", "light,dark,phone", "which looks")
	full := flag.Bool("full", false, "the whole page instead of what a window shows")
	day := flag.Duration("work", 0, "start and end runs for so long first, for the plots")
	flag.Parse()
	ctx, stop := context.WithTimeout(context.Background(), *day+9*time.Minute)
	defer stop()
	if f.url == "" {
		s, err := build(ctx, f)
		if s != nil {
			defer s.end(f)
		}
		if err != nil {
			return err
		}
		if err := f.work(ctx, *day); err != nil {
			return fmt.Errorf("work: %w", err)
		}
		if err := f.fill(ctx); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
		go f.stayAlive(ctx)
	}
	if err := f.find(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	ctx, end := chromedp.NewExecAllocator(ctx, chromedp.ExecPath("chromium"), chromedp.Headless, chromedp.DisableGPU,
		chromedp.NoSandbox, chromedp.NoFirstRun, chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("hide-scrollbars", true))
	defer end()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		return err
	}
	var mu sync.Mutex
	var troubles []string
	bad := false
	go func() {
		for m, err := range chromedp.Console(ctx) {
			if err != nil {
				return
			}
			if m.IsException() || m.Type == chromedp.ConsoleError && !expected(m.Text) {
				mu.Lock()
				troubles = append(troubles, fmt.Sprintf("%s (%s:%d)", m.Text, m.URL, m.Line+1))
				mu.Unlock()
			}
		}
	}()
	for _, l := range looks {
		if !strings.Contains(*wear, l.name) {
			continue
		}
		for _, s := range shots {
			if *only != "" && !strings.Contains(","+*only+",", ","+s.name+",") {
				continue
			}
			png, err := take(ctx, f, l, s, *full)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, l.name, err)
			}
			name := filepath.Join(*out, s.name+"-"+l.name+".png")
			if err := os.WriteFile(name, png, 0o644); err != nil {
				return err
			}
			mu.Lock()
			for _, t := range troubles {
				log.Printf("%s, %s: %s", s.name, l.name, t)
				bad = true
			}
			troubles = nil
			mu.Unlock()
		}
	}
	if bad {
		return errors.New("a page has reported errors")
	}
	return nil
}

// expected tells whether a message of the console is that of a call which the pages make to find out
// what the server has.
func expected(text string) bool {
	return strings.Contains(text, "Failed to load resource") || strings.Contains(text, "WebSocket connection")
}

// take loads a view and waits until it is quiet.
func take(ctx context.Context, f *filler, l look, s shot, full bool) ([]byte, error) {
	url, key := f.url, f.key
	at := strings.NewReplacer("{run}", f.run, "{failed}", f.failed, "{thread}", f.thread).Replace(s.at)
	prepare := fmt.Sprintf(`localStorage.setItem('perdure.theme', %q)`, l.theme)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(l.width, l.height),
		chromedp.Navigate(url+"/ui/#/none")); err != nil {
		return nil, err
	}
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[any](prepare)); err != nil {
		return nil, err
	}
	if s.name == "login" {
		out := `sessionStorage.clear(); fetch('/api/v1/session', {method: 'DELETE', headers: {'X-Perdure': 'ui'}})` +
			`.catch(() => 0); true`
		if _, err := chromedp.Run(ctx, chromedp.Evaluate[any](out)); err != nil {
			return nil, err
		}
	}
	to := url + "/ui/#" + at
	if s.name != "login" {
		to = url + "/ui/#login=" + key
	}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(to),
		chromedp.Sleep(700*time.Millisecond)); err != nil {
		return nil, err
	}
	if s.name != "login" {
		if _, err := chromedp.Run(ctx, chromedp.Evaluate[any](fmt.Sprintf("location.hash = %q", at))); err != nil {
			return nil, err
		}
	}
	if err := chromedp.Do(ctx, chromedp.Sleep(1800*time.Millisecond)); err != nil {
		return nil, err
	}
	if full {
		return chromedp.Run(ctx, chromedp.FullScreenshot(100))
	}
	return chromedp.Run(ctx, chromedp.CaptureScreenshot())
}
