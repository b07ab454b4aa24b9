// Package examples contains tests only. They compare the documentation with code that is executed.
package examples

import (
	"context"
	"encoding/json"
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

// The pages whose Go code comes from files that tests execute. The file is named after the
// language.
var pages = []string{"README.md", "docs/tutorial.md", "docs/agents.md", "docs/testing.md", "docs/futures.md",
	"docs/supervisor.md", "examples/README.md"}

func TestGoCodeInDocsIsFromFiles(t *testing.T) {
	for _, page := range pages {
		text := read(t, page)
		if strings.Contains(text, "```go\n") {
			t.Errorf("%s: a block of Go code names no file, want one", page)
		}
		blocks := regexp.MustCompile("(?ms)^```go (\\S+)\n(.*?)^```$").FindAllStringSubmatch(text, -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no block of Go code, want some", page)
		}
		for _, b := range blocks {
			if !within(b[2], read(t, b[1])) {
				t.Errorf("%s: these lines are not in %s:\n%s", page, b[1], b[2])
			}
		}
	}
}

// within tells whether lines are in a file, perhaps with more indentation.
func within(lines, file string) bool {
	for range 6 {
		if strings.Contains("\n"+file, "\n"+lines) {
			return true
		}
		lines = regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(lines, "\t$1")
	}
	return false
}

// Every link between pages leads to an existing file and heading.
func TestLinksInDocsAreValid(t *testing.T) {
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
			if anchor := m[2]; anchor != "" && filepath.Ext(target) == ".md" &&
				!slices.Contains(headings(t, target), anchor) {
				t.Errorf("%s links to the heading %q of %s, which has no such heading", page, anchor, target)
			}
		}
	}
}

// The index links to every page of the docs.
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

// allPages returns the Markdown files of the documentation.
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

// headings returns the anchors that GitHub makes of a page's headings: lower case, without
// punctuation, with dashes for spaces.
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
func TestErrorsOfAgentsAreAsDocumented(t *testing.T) {
	spawn := func(ctx *agent.Context, timeout time.Duration) *agent.Future[int] {
		return agent.Spawn[int](ctx, "child", timeout > 0, agent.Timeout(timeout))
	}
	rows := []struct {
		row   string // beginning of the row in the table
		agent func(ctx *agent.Context) error
		state perdure.State
		code  perdure.Code
		tries int
	}{
		{"| a value | `completed` | | |", func(*agent.Context) error { return nil }, perdure.Completed, "", 1},
		{"| any error | `failed`, when no attempt is left | `failed`, or the error's own | yes |",
			func(*agent.Context) error { return errors.New("no") }, perdure.Failed, "failed", 3},
		{"| `perdure.Permanent(err)` | `failed` | `failed`, or the error's own | no |", func(*agent.Context) error {
			return perdure.Permanent(worker.Fail("own", "no"))
		}, perdure.Failed, "own", 1},
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
		{"| `ErrCancelled`, when it was asked to stop | `cancelled` | `cancelled` | no |",
			func(ctx *agent.Context) error {
				return agent.Sleep(ctx, time.Hour)
			}, perdure.Cancelled, perdure.CodeCancelled, 1},
		{"| a panic in a step's function | `failed`, when no attempt is left | `panic` | yes |",
			func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "step", func(context.Context) (int, error) { panic("no") })
				return err
			}, perdure.Failed, "panic", 3},
		{"| the error of a step whose last try took longer than its `Timeout` | `failed`, when no attempt is left | " +
			"`step_timeout` | yes |", func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "step", func(ctx context.Context) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			}, agent.Timeout(time.Millisecond))
			return err
		}, perdure.Failed, agent.CodeStepTimeout, 3},
		{"| a panic in the agent's own code | [on hold](#a-defect-of-the-code-holds-the-run) | `panic` | yes, no " +
			"attempt is spent |",
			func(*agent.Context) error { panic("no") }, held, "panic", 0},
		{"| a call where it can't be made, such as a wait inside of a step | [on " +
			"hold](#a-defect-of-the-code-holds-the-run) | `agent_misuse` | yes, no attempt is spent |",
			func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "step", func(context.Context) (int, error) {
					//perdurevet:ignore agentcontext the misuse is what is tested
					return 1, agent.Sleep(ctx, time.Hour)
				})
				return err
			}, held, agent.CodeMisuse, 0},
	}
	page := read(t, "docs/agents.md")
	policy := perdure.DefaultPolicy()
	policy.BackoffBase, policy.HoldTimeout = time.Millisecond, 100*time.Millisecond
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
		return 0, perdure.Permanent(errors.New("no"))
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
				t.Error("docs/agents.md has no row for this error, want one")
			}
			run, err := c.Start(ctx, perdure.Submission{Kind: "agent", Class: perdure.Agent, Input: client.JSON(n)})
			if err != nil {
				t.Fatal(err)
			}
			if r.state == perdure.Cancelled {
				cancelOnceSuspended(t, c, run.RunID)
			}
			if r.state == held {
				if code := heldWith(t, c, run.RunID); code != r.code {
					t.Errorf("agent is held with %s, want %s", code, r.code)
				}
				return
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
				t.Errorf("agent ended as %s with %v after %d attempts, want %s with %s after %d",
					run.State, run.Error, run.Attempt, r.state, r.code, r.tries)
			}
		})
	}
}

// held is the state of a row whose run is held. It is no state of a run.
const held perdure.State = "held"

// heldWith returns the code with which a run is held, or has failed on a server that holds none.
func heldWith(t *testing.T, c *client.Client, id perdure.RunID) perdure.Code {
	t.Helper()
	for e, err := range c.Stream(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		var why perdure.Failure
		if e.Type == "run:held" && json.Unmarshal(e.Data, &why) == nil {
			return why.Code
		}
	}
	run, err := c.Get(t.Context(), id)
	if err != nil || run.Error == nil {
		t.Fatalf("run %s ended without an error (%v), want it held", id, err)
	}
	return run.Error.Code
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
