// Package examples has no code of its own, only tests that hold what the docs say against what runs.
package examples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// The pages whose code in Go is taken from files, each of which a test compiles and runs. Behind the language stands which.
var pages = []string{"README.md", "docs/tutorial.md", "docs/agents.md", "docs/testing.md"}

func TestTheCodeInTheDocsIsCodeThatRuns(t *testing.T) {
	for _, page := range pages {
		text := read(t, page)
		if strings.Contains(text, "```go\n") {
			t.Errorf("%s: a block of Go does not say which file it is from", page)
		}
		blocks := regexp.MustCompile("(?ms)^```go (\\S+)\n(.*?)^```$").FindAllStringSubmatch(text, -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no code", page)
		}
		for _, b := range blocks {
			if !within(b[2], read(t, b[1])) {
				t.Errorf("%s: this is not in %s:\n%s", page, b[1], b[2])
			}
		}
	}
}

// within tells whether lines are in a file, as they are or further to the right.
func within(lines, file string) bool {
	for range 6 {
		if strings.Contains("\n"+file, "\n"+lines) {
			return true
		}
		lines = regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(lines, "\t$1")
	}
	return false
}

// Every link between the pages leads to a file that exists and, where it names one, to a heading of it.
func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	for _, page := range allPages(t) {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[0], err)
				continue
			}
			if anchor := m[2]; anchor != "" && filepath.Ext(target) == ".md" && !slices.Contains(headings(t, target), anchor) {
				t.Errorf("%s links to the heading %q of %s, which has no such heading", page, anchor, target)
			}
		}
	}
}

// Every page of docs is in the index, so that a reader can find it.
func TestIndexNamesEveryPage(t *testing.T) {
	for _, folder := range []string{"docs", "docs/decisions"} {
		index := read(t, folder+"/README.md")
		for _, page := range glob(t, folder+"/*.md") {
			name := filepath.Base(page)
			if name != "README.md" && !strings.Contains(index, "]("+name+")") {
				t.Errorf("%s/README.md does not link to %s", folder, name)
			}
		}
	}
}

// allPages are the Markdown files that people read.
func allPages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"}
	for _, folder := range []string{"docs", "docs/decisions", "docs/evidence"} {
		list = append(list, glob(t, folder+"/*.md")...)
	}
	return list
}

func glob(t *testing.T, pattern string) (out []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("..", pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no file matches %s (%v)", pattern, err)
	}
	for _, path := range found {
		out = append(out, strings.TrimPrefix(path, "../"))
	}
	return out
}

// headings are the anchors that GitHub makes of a page's headings: lower case, without punctuation, spaces as dashes.
func headings(t *testing.T, page string) (out []string) {
	t.Helper()
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
		text := strings.ToLower(strings.TrimSpace(linkText.ReplaceAllString(m[1], "$1")))
		out = append(out, strings.ReplaceAll(punctuation.ReplaceAllString(text, ""), " ", "-"))
	}
	return out
}

var (
	link        = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)
	linkText    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	heading     = regexp.MustCompile(`(?m)^#+ (.*)$`)
	punctuation = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

var fenced = regexp.MustCompile("(?ms)^```.*?^```$")

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The table of errors in docs/agents.md, row by row.
func TestWhatBecomesOfAnAgentThatReturnsAnError(t *testing.T) {
	spawn := func(ctx *agent.Context, timeout time.Duration) *agent.Future[int] {
		return agent.Spawn[int](ctx, "child", timeout > 0, agent.Timeout(timeout))
	}
	rows := []struct {
		row   string // how it begins in the table
		agent func(ctx *agent.Context) error
		state perdure.State
		code  perdure.Code
		tries int
	}{
		{"| a value | `completed` | | |", func(*agent.Context) error { return nil }, perdure.Completed, "", 1},
		{"| any error | `failed`, when no attempt is left | `failed`, or the error's own | yes |", func(*agent.Context) error { return errors.New("no") }, perdure.Failed, "failed", 3},
		{"| `agent.Permanent(err)` | `failed` | `failed`, or the error's own | no |", func(*agent.Context) error { return agent.Permanent(worker.Fail("own", "no")) }, perdure.Failed, "own", 1},
		{"| `ErrTaskTimedOut` | `failed` | `task_timed_out` | no |", func(ctx *agent.Context) error {
			_, err := spawn(ctx, 50*time.Millisecond).Join(ctx)
			if !errors.Is(err, agent.ErrTaskTimedOut{}) {
				return fmt.Errorf("it is %v", err)
			}
			return fmt.Errorf("wrapped: %w", err)
		}, perdure.Failed, agent.CodeTaskTimedOut, 1},
		{"| `ErrTaskFailed` | `failed` | `task_failed` | no |", func(ctx *agent.Context) error {
			_, err := spawn(ctx, 0).Join(ctx)
			return err
		}, perdure.Failed, agent.CodeTaskFailed, 1},
		{"| `ErrAllTasksFailed` | `failed` | `all_tasks_failed` | no |", func(ctx *agent.Context) error {
			_, err := agent.SelectOK(ctx, spawn(ctx, 0), spawn(ctx, 0))
			return err
		}, perdure.Failed, agent.CodeAllTasksFailed, 1},
		{"| `ErrTimeout`, `ErrSignalTimeout` | `timeout` | `wait_timeout` | no |", func(ctx *agent.Context) error {
			_, err := agent.Signal[any](ctx, "never", time.Millisecond)
			return err
		}, perdure.TimedOut, perdure.CodeWaitTimeout, 1},
		{"| `ErrCancelled`, when it was asked to stop | `cancelled` | `cancelled` | no |", func(ctx *agent.Context) error { return agent.Sleep(ctx, time.Hour) }, perdure.Cancelled, perdure.CodeCancelled, 1},
		{"| a panic | `failed`, when no attempt is left | `panic` | yes |", func(*agent.Context) error { panic("no") }, perdure.Failed, "panic", 3},
		{"| a call where it can't be made, such as a wait inside of a step | `failed` | `agent_misuse` | no |", func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "step", func(context.Context) (int, error) { return 1, agent.Sleep(ctx, time.Hour) })
			return err
		}, perdure.Failed, agent.CodeMisuse, 1},
	}
	page := read(t, "docs/agents.md")
	policy := perdure.DefaultPolicy()
	policy.BackoffBase = time.Millisecond
	srv, err := embedded.Open(embedded.Options{Policy: &policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{DrainTimeout: -1})
	worker.Handle(w, "child", func(ctx context.Context, hangs bool) (int, error) {
		if hangs {
			<-ctx.Done()
		}
		return 0, worker.Permanent(errors.New("no"))
	})
	worker.Agent(w, "agent", func(ctx *agent.Context, n int) (int, error) { return n, rows[n].agent(ctx) })
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(working.Wait)
	t.Cleanup(stop)
	for n, r := range rows {
		t.Run(r.row, func(t *testing.T) {
			if !strings.Contains(page, "\n"+r.row+"\n") {
				t.Error("docs/agents.md has no such row")
			}
			run, err := c.Start(ctx, perdure.Submission{Kind: "agent", Class: perdure.Agent, Input: client.JSON(n)})
			if err != nil {
				t.Fatal(err)
			}
			if r.state == perdure.Cancelled {
				cancelOnceSuspended(t, c, run.RunID)
			}
			run, _, err = c.Join(ctx, run.RunID, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			var code perdure.Code
			if run.Error != nil {
				code = run.Error.Code
			}
			if run.State != r.state || code != r.code || run.Attempt != r.tries {
				t.Errorf("%s %v after %d attempts", run.State, run.Error, run.Attempt)
			}
		})
	}
}

func cancelOnceSuspended(t *testing.T, c *client.Client, id perdure.RunID) {
	t.Helper()
	for e, err := range c.Stream(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == perdure.LineSuspended {
			break
		}
	}
	if _, err := c.Cancel(t.Context(), id, "a test", 0); err != nil {
		t.Fatal(err)
	}
}
