package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/browser"
)

const tenant perdure.TenantID = "acme"

// kills returns how often the process is killed. A campaign sets more.
func kills() int {
	n := 15 // "make test-long" has 50
	if s := os.Getenv("PERDURE_KILLS"); s != "" {
		fmt.Sscan(s, &n)
	}
	return n
}

// waiting is how many tests run at once for each processor.
const waiting = 2

func TestMain(m *testing.M) {
	if file := os.Getenv(mcpVar); file != "" {
		if err := mcpServer(file); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if spec := os.Getenv(toolsVar); spec != "" {
		if err := toolWorker(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(shellVar); dir != "" {
		out, err := bench(dir).execute(context.Background(), os.Args[1])
		if err != nil {
			os.Exit(1)
		}
		fmt.Println(out)
		os.Exit(0)
	}
	if dir := os.Getenv("PERDURE_KILL_CHILD"); dir != "" {
		if err := victim(dir, os.Getenv("PERDURE_KILL_ROUND")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv("PERDURE_FROZEN"); addr != "" {
		if err := frozen(addr, os.Getenv("PERDURE_FROZEN_KEY")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv("PERDURE_CHECKER"); url != "" {
		if err := diskChecker(url, os.Getenv("PERDURE_CHECKER_KEY")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv("PERDURE_AGENTS"); url != "" {
		if err := agents(url, os.Getenv("PERDURE_AGENTS_KEY"), os.Getenv("PERDURE_AGENTS_LEDGER")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if urls := os.Getenv(turnsVar); urls != "" {
		if err := turns(urls, os.Getenv(turnsVar+"_KEY")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if spec := os.Getenv(releaseVar); spec != "" {
		if err := runRelease(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if spec := os.Getenv(attackVar); spec != "" {
		if err := attackFrom(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		// Tests that may run beside others mostly wait: for leases, restarts and polls.
		if err := f.Value.Set(strconv.Itoa(waiting * runtime.GOMAXPROCS(0))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	stop := browser.Keep()
	code := m.Run()
	stop()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// victim works until it is killed, and prints what was acknowledged.
func victim(dir, round string) error {
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db")})
	if err != nil {
		return err
	}
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	go watchdog.New(e, nil).Run(ctx)
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Fprintf(os.Stdout, format+"\n", args...)
	}
	errs := make(chan error, 1)
	for i := range 24 {
		go func() {
			for n := 0; ; n++ {
				if err := oneLife(ctx, e, fmt.Sprintf("%s-%d-%d", round, i, n), say); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return <-errs
}

// oneLife submits a run, signals it, and leases and finishes any run.
func oneLife(ctx context.Context, e *engine.Engine, key string, say func(string, ...any)) error {
	sub := &life.Submit{Tenant: tenant, Key: key,
		Submission: perdure.Submission{Kind: "job", Input: json.RawMessage(`"` + key + `"`)}}
	say("try %s", key)
	if err := e.Do(ctx, sub); err != nil {
		return err
	}
	say("submitted %s %s", key, sub.Run.ID)
	// Another goroutine may have taken and ended the run already.
	if err := e.Do(ctx, &life.Signal{Tenant: tenant, RunID: sub.Run.ID, Name: "hello", Key: key}); err == nil {
		say("signalled %s %s", key, sub.Run.ID)
	} else if perdure.CodeOf(err) != perdure.CodeRunEnded {
		return err
	}
	poll := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1, Start: true}
	if err := e.Do(ctx, poll); err != nil {
		return err
	}
	for _, g := range poll.Grants {
		result := fmt.Sprintf(`"%s of %d"`, g.Run.ID, g.Run.Epoch)
		done := &life.Commit{Tenant: tenant, Worker: "w",
			Commit: perdure.Commit{ID: "end", RunID: g.Run.ID, Epoch: g.Run.Epoch,
				Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(result)}}}
		if err := e.Do(ctx, done); err != nil {
			return err
		}
		if done.Refused == nil {
			say("completed %s %s", g.Run.ID, result)
		}
	}
	return nil
}

func TestKillDuringGroupCommitsLosesNothing(t *testing.T) {
	dir := t.TempDir()
	tried := map[string]bool{}
	submitted, signalled, completed := map[string]string{}, map[string]string{}, map[string]string{}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for round := range kills() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "PERDURE_KILL_CHILD="+dir, fmt.Sprintf("PERDURE_KILL_ROUND=%d", round))
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(pipe)
		// The number of acknowledgements before the kill is random, so that it does not depend on
		// the machine.
		left := 1 + rng.IntN(160)
		for lines.Scan() {
			f := strings.SplitN(lines.Text(), " ", 3)
			switch {
			case f[0] == "try":
				tried[f[1]] = true
			case len(f) < 3: // cut off by the kill
			case f[0] == "submitted":
				submitted[f[1]] = f[2]
			case f[0] == "signalled":
				signalled[f[1]] = f[2]
			case f[0] == "completed":
				completed[f[1]] = f[2]
			}
			if f[0] == "try" {
				continue
			}
			if left--; left == 0 {
				time.AfterFunc(time.Duration(rng.IntN(20_000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: the victim ended by itself: %v, want it to run until it is killed", round, err)
		}
	}
	t.Logf("%d kills; acknowledged: %d submits, %d signals, %d results", kills(), len(submitted), len(signalled),
		len(completed))
	if len(submitted) < 20*kills() || len(completed) < 5*kills() {
		t.Fatal("too few operations were acknowledged for the test to mean anything")
	}

	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for key, id := range submitted {
		again := &life.Submit{Tenant: tenant, Key: key,
			Submission: perdure.Submission{Kind: "job", Input: json.RawMessage(`"` + key + `"`)}}
		if err := e.Do(ctx, again); err != nil || again.Created || string(again.Run.ID) != id {
			t.Errorf("key %s was acknowledged as run %s, and a second submit returns %s (error %v); want the same", key,
				id, again.Run.ID, err)
		}
	}
	for id, result := range completed {
		d, err := e.Runs.Get(ctx, tenant, perdure.RunID(id))
		if err != nil || d.State != perdure.Completed || string(d.ResultText) != result {
			t.Errorf("run %s was acknowledged with result %s, and is %s with %s (error %v); want completed with it", id,
				result, d.State, d.ResultText, err)
		}
	}
	err = s.View(ctx, func(v *store.View) error {
		for key, id := range signalled {
			items, err := v.Inbox.List(tenant, perdure.RunID(id))
			if err != nil {
				return err
			}
			if len(items) != 1 {
				t.Errorf("the signal of key %s was acknowledged, and its run has %d inbox items; want 1", key,
					len(items))
			}
		}
		seen := 0
		if err := v.Rows("SELECT input, count(*) FROM runs GROUP BY input", nil, func(scan func(...any) error) error {
			var input string
			var n int
			if err := scan(&input, &n); err != nil {
				return err
			}
			seen++
			if key := strings.Trim(input, `"`); n != 1 || !tried[key] {
				t.Errorf("input %s has %d runs (submitted: %v), want 1, and only if it was submitted", input, n,
					tried[key])
			}
			return nil
		}); err != nil {
			return err
		}
		if seen < len(submitted) {
			t.Errorf("the store has %d runs, want at least the %d that were acknowledged", seen, len(submitted))
		}
		found, err := v.Check(nil)
		for _, x := range found {
			t.Errorf("invariant %s (%s) is violated by %s", x.ID, x.Statement, x.Row)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
