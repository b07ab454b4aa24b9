package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// workerProgram is the first argument of a process of this test that is a worker's program. The second
// is its release.
const workerProgram = "worker-program"

// runWorkerProgram is a worker's program, as a user writes it.
func runWorkerProgram(release string) int {
	if release == "no worker" {
		fmt.Fprintln(os.Stderr, "no database")
		return 7
	}
	w := worker.New(client.New(os.Getenv("PERDURE_URL"), "prd_none", client.Options{}), worker.Options{Build: release})
	worker.Agent(w, "approval", approval(release))
	err := w.Run(context.Background())
	if release == "serves on" {
		select {}
	}
	fmt.Fprintln(os.Stderr, "the worker has ended:", err)
	return 1 // as log.Fatal(w.Run(ctx)) ends
}

// approval is an agent in several releases.
func approval(release string) func(ctx *agent.Context, order int) (string, error) {
	return func(ctx *agent.Context, order int) (string, error) {
		step, signal := "charge", "paid"
		switch release {
		case "a renamed step":
			step = "charge card"
		case "a renamed signal":
			signal = "payment"
		}
		_, err := agent.Step(ctx, step, func(context.Context) (int, error) {
			if worker.Checking() {
				return 0, errors.New("a check executes a step")
			}
			return order, nil
		})
		if err != nil {
			return "", err
		}
		return agent.Signal[string](ctx, signal, 24*time.Hour)
	}
}

// A release is checked against the runs that live by a program of its own, with a key that may only
// read. The exit code tells a pipeline what came out, and the runs stay as they are.
func TestBuildsAreCheckedAgainstLiveRuns(t *testing.T) {
	settle := checkSettle
	checkSettle = 100 * time.Millisecond
	t.Cleanup(func() { checkSettle = settle })
	c, _ := live(t)
	ctx := t.Context()
	w := worker.New(c, worker.Options{})
	worker.Agent(w, "approval", approval("good"))
	working, stop := context.WithCancel(ctx)
	var worked sync.WaitGroup
	worked.Go(func() {
		if err := w.Run(working); err != nil {
			t.Error(err)
		}
	})
	const many = 3
	var ids []perdure.RunID
	for range many {
		ids = append(ids, submit(t, c, perdure.Submission{Kind: "approval", Class: perdure.Agent,
			Input: json.RawMessage(`7`)}))
	}
	eventually.True(t, "all runs sleep", func() bool {
		list, err := c.List(ctx, client.Filter{Kind: "approval", State: perdure.Suspended})
		return err == nil && len(list.Runs) == many
	})
	stop()
	worked.Wait()
	key, err := admin.New(c).CreateTenantKey(ctx, embedded.DefaultTenant, api.CreateKey{Name: "pipeline",
		Scopes: []string{string(perdure.ScopeRead)}})
	if err != nil {
		t.Fatal(err)
	}
	stored := func() (all string) {
		for _, id := range ids {
			r, err := c.Replay(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			run, err := c.Get(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			all += fmt.Sprintf("%s has %d events\n", client.JSON(r), run.LastSeq)
		}
		return all
	}
	before := stored()
	check := func(code int, release string, flags ...string) (stdout, stderr string) {
		t.Helper()
		args := append(append([]string{"builds", "check", "--key", key.Secret}, flags...), "--", os.Args[0],
			workerProgram, release)
		return mustRun(t, code, args...)
	}
	out, complaint := check(exitOK, "good")
	has(t, out, "3 runs of approval replayed", "this build continues all of them")
	has(t, complaint, "the worker has ended")
	out, _ = check(exitFail, "a renamed step")
	has(t, out, "RUNS  VERDICT  KIND", "3     held     approval  charge card#1", "the step charge#1",
		"3 runs replayed in", "3 would be held")
	out, _ = check(exitFail, "a renamed signal", "--json")
	var report worker.CheckReport
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Held != many || len(report.Causes) != 1 ||
		report.Causes[0].Where != "signal:payment#1" || len(report.Causes[0].Runs) != many ||
		report.Build != "a renamed signal" {
		t.Errorf("report = %s (%v), want three runs held at the signal", out, err)
	}
	out, _ = check(exitOK, "good", "--sample", "2")
	has(t, out, "2 runs of approval replayed")
	out, _ = check(exitOK, "serves on")
	has(t, out, "3 runs of approval replayed")
	_, complaint = check(exitNoCheck, "no worker")
	has(t, complaint, "no database", "the program has made no check (exit status 7)")

	file := filepath.Join(t.TempDir(), "run.json")
	mustRun(t, 0, "journal", string(ids[0]), "--export", file)
	t.Setenv("PERDURE_URL", "http://127.0.0.1:1") // files need no server
	out, _ = check(exitOK, "good", "--file", file)
	has(t, out, "1 runs of approval replayed")
	out, _ = check(exitFail, "a renamed step", "--file", file)
	has(t, out, "1     held     approval")
	_, complaint = check(exitNoCheck, "good", "--file", file+".gone")
	has(t, complaint, "no such file")
	if after := stored(); after != before {
		t.Errorf("the checks have changed the runs:\n%s\nwant\n%s", after, before)
	}
	mustRun(t, exitUsage, "builds", "check")
	mustRun(t, exitUsage, "builds", "check", "--sample", "-1", "--", "true")
	_, complaint = mustRun(t, exitNoCheck, "builds", "check", "--file", file, "--", "/no/such/program")
	has(t, complaint, "/no/such/program")
}
