package killtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// story is an agent in words, as agentcases has them. Nothing in it is executed at the same time as something else.
const story = "say:x a child:one:x try:b signal:paid [left c [deep d ] ] map:two:x,y par:q:x,y (trip f+ h+ ) uuid:id e"

// linesOf returns the lines of files that begin with a word, sorted and without the word.
func linesOf(t *testing.T, word string, files ...string) (out []string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may have done nothing
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, word+" "); ok {
				out = append(out, strings.TrimSpace(rest))
			}
		}
	}
	slices.Sort(out)
	return out
}

// A Starter starts a worker that executes agents in words, by their kinds, and returns the file to which it writes what
// it does. With KILL, such as "before 3", it kills itself before or after its commit of that number. With CHILDREN=none
// it executes no children.
type Starter func(agents map[string]string, env ...string) (worker *exec.Cmd, log string)

// AtEveryCommit kills a worker at each commit of a story: before it is sent, or when its answer is there. The run ends
// as one whose worker lives, and executes only what was not recorded again.
func AtEveryCommit(t *testing.T, w *servertest.Server, endLeases func(), starter Starter) {
	t.Helper()
	words := func(kinds []string, env ...string) (*exec.Cmd, string) {
		agents := make(map[string]string)
		for _, kind := range kinds {
			agents[kind] = story
		}
		return starter(agents, env...)
	}
	start := func(kind string) perdure.RunID {
		thread, err := w.C.CreateThread(w.Ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		id := w.Start(perdure.Submission{Kind: kind, Class: perdure.Agent, ThreadID: thread.ThreadID, MaxAttempts: 20})
		if _, err := w.C.Signal(w.Ctx, id, "paid", client.JSON(7)); err != nil {
			t.Fatal(err)
		}
		return id
	}
	_, helped := words(nil) // the children are executed by a worker that lives
	alive, log := words([]string{"alive"}, "CHILDREN=none")
	first := start("alive")
	want := w.End(first)
	if want.State != perdure.Completed {
		t.Fatalf("run %s is %s (error %+v), want completed", first, want.State, want.Error)
	}
	effects := linesOf(t, string(first), log, helped)
	commits := len(linesOf(t, "commit", log))
	alive.Process.Kill()
	var kills []string
	for n := 1; n <= commits; n++ {
		switch {
		case os.Getenv("PERDURE_TEST_FULL") != "":
			kills = append(kills, fmt.Sprint("before ", n), fmt.Sprint("after ", n))
		case n%2 == 0:
			kills = append(kills, fmt.Sprint("before ", n))
		default:
			kills = append(kills, fmt.Sprint("after ", n))
		}
	}
	kinds, ids, logs := make([]string, len(kills)), make([]perdure.RunID, len(kills)), make([]string, len(kills))
	var all sync.WaitGroup
	atOnce := make(chan struct{}, 4)
	for n, kill := range kills {
		kinds[n] = strings.ReplaceAll(kill, " ", "-")
		atOnce <- struct{}{}
		ids[n] = start(kinds[n])
		var cmd *exec.Cmd
		cmd, logs[n] = words(kinds[n:n+1], "KILL="+kill, "CHILDREN=none")
		all.Go(func() {
			dead, ended := context.WithCancel(w.Ctx)
			go func() { // it lives on if the run has fewer commits this time
				if _, _, err := w.C.Join(dead, ids[n], 10*time.Minute); err == nil {
					cmd.Process.Kill()
				}
			}()
			cmd.Wait()
			ended()
			<-atOnce
		})
	}
	all.Wait()
	killed := 0
	for n := range kills {
		if strings.HasSuffix(kills[n], fmt.Sprint(" ", len(linesOf(t, "commit", logs[n])))) {
			killed++
		}
	}
	// Reports are sent with other commits, or by themselves, so the last ones may not come.
	if killed < len(kills)-2 || killed < 10 {
		t.Errorf("%d workers were killed at their commit, want %d", killed, len(kills))
	}
	const live = "queued,dispatched,running,suspended"
	eventually.True(t, "all children end", func() bool { // their worker lives, and would lose its leases
		page, err := w.C.List(w.Ctx, client.Filter{Class: perdure.Task, Status: live})
		return err == nil && len(page.Runs) == 0
	})
	endLeases()
	_, rest := words(kinds, "CHILDREN=none")
	for n, id := range ids {
		run := w.End(id)
		if run.State != perdure.Completed || string(run.Result) != string(want.Result) {
			t.Errorf("killed %s: run %s is %s with %s (error %+v), want %s", kills[n], id, run.State, run.Result,
				run.Error, want.Result)
		}
		saidOnce(w, run, kills[n])
		got := linesOf(t, string(id), logs[n], rest, helped)
		again := len(got) - len(effects)
		if most := strings.Count(kills[n], "before"); again > most {
			t.Errorf("killed %s: %d effects are there twice, want at most %d: %q", kills[n], again, most, got)
		}
		if once := slices.Compact(got); !slices.Equal(once, effects) {
			t.Errorf("killed %s: the effects were %q, want %q", kills[n], once, effects)
		}
	}
}

// saidOnce checks that the message of the story is on the thread once.
func saidOnce(w *servertest.Server, run *api.Run, kill string) {
	w.T.Helper()
	page, err := w.C.Messages(w.Ctx, run.ThreadID, 0)
	if err != nil || len(page.Messages) != 1 {
		w.T.Errorf("killed %s: the thread has %+v (%v), want one message", kill, page, err)
	}
}
