package embedded_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/session"
)

// ownScopes are those of a worker inside a server.
var ownScopes = []perdure.Scope{perdure.ScopePoll, perdure.ScopeReport, perdure.ScopeRead}

// longLeases is a policy under which no lease ends during a test, and no grant is repeated.
func longLeases() *perdure.Policy {
	policy := perdure.DefaultPolicy()
	policy.Lease, policy.ActiveReap, policy.BackoffBase = time.Hour, 2*time.Hour, time.Millisecond
	policy.DispatchedRetry, policy.DispatchedTimeout = time.Hour, 2*time.Hour
	return &policy
}

// An ownServer is a server with a client of its key and one of a key for workers inside it.
type ownServer struct {
	t *testing.T
	*embedded.Server
	c, own *client.Client
}

func openOwn(t *testing.T, opt embedded.Options) *ownServer {
	t.Helper()
	srv, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	key, err := srv.OwnKey("own", ownScopes...)
	if err != nil {
		t.Fatal(err)
	}
	return &ownServer{t: t, Server: srv,
		c:   client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()}),
		own: client.New("http://perdure", key, client.Options{Transport: srv.Transport()})}
}

// grant starts a run and leases it to a worker of a client.
func (s *ownServer) grant(c *client.Client, worker string, attempts int, start bool) api.Grant {
	s.t.Helper()
	run, err := s.c.Start(s.t.Context(), perdure.Submission{Kind: "k", MaxAttempts: attempts})
	if err != nil {
		s.t.Fatal(err)
	}
	polled, err := session.Of(c).Poll(s.t.Context(), worker, api.Poll{RunIDs: []perdure.RunID{run.RunID}, Slots: 1,
		Start: start})
	if err != nil || len(polled.Runs) != 1 {
		s.t.Fatalf("polled %+v: %v", polled, err)
	}
	return polled.Runs[0]
}

func (s *ownServer) see(id perdure.RunID) *api.Run {
	s.t.Helper()
	run, err := s.c.Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return run
}

// holds checks that a run is still in its first attempt, with the worker that it was granted to.
func (s *ownServer) holds(g api.Grant, of string) {
	s.t.Helper()
	if got := s.see(g.RunID); got.State != perdure.Running || got.Attempt != 1 || got.Epoch != g.Epoch {
		s.t.Errorf("run of %s is %s, attempt %d, epoch %d; want it running in its first, epoch %d", of, got.State,
			got.Attempt, got.Epoch, g.Epoch)
	}
}

// commit completes a granted run by its epoch, and returns the code of its refusal.
func (s *ownServer) commit(c *client.Client, g api.Grant) perdure.Code {
	s.t.Helper()
	results, err := session.Of(c).Commit(s.t.Context(), "own", perdure.Commit{ID: fmt.Sprint("c", g.Epoch),
		RunID: g.RunID,
		Epoch: g.Epoch, Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete}})
	if err != nil || len(results) != 1 {
		s.t.Fatalf("commit: %+v, %v", results, err)
	}
	if results[0].Error == nil {
		return ""
	}
	return results[0].Error.Code
}

// TestRunsOfOwnWorkersGoOnAfterACrash restarts a server whose own worker held runs, beside a worker
// of another process that has the same name. The server knows that its own worker is gone; the
// other may live.
func TestRunsOfOwnWorkersGoOnAfterACrash(t *testing.T) {
	opt := embedded.Options{Dir: t.TempDir(), Store: storetest.Address(t), Policy: longLeases()}
	s := openOwn(t, opt)
	own, once := s.grant(s.own, "own", 3, true), s.grant(s.own, "own", 1, true)
	granted := s.grant(s.own, "own", 3, false)
	other := s.grant(s.c, "own", 3, true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openOwn(t, opt)
	eventually.True(t, "the worker's runs are taken from it", func() bool {
		return s.see(own.RunID).State == perdure.Queued && s.see(once.RunID).State == perdure.Failed &&
			s.see(granted.RunID).State == perdure.Queued
	})
	if got := s.see(own.RunID); got.Attempt != 2 {
		t.Errorf("attempt of the run that was executed = %d, want 2", got.Attempt)
	}
	if got := s.see(granted.RunID); got.Attempt != 1 {
		t.Errorf("attempt of the run that was not begun = %d, want 1", got.Attempt)
	}
	s.holds(other, "the other worker")
	var polled *api.Polled
	eventually.True(t, "the run is granted again", func() bool {
		var err error
		in := api.Poll{RunIDs: []perdure.RunID{own.RunID}, Slots: 1, Start: true}
		polled, err = session.Of(s.own).Poll(t.Context(), "own", in)
		return err == nil && len(polled.Runs) == 1
	})
	if polled.Runs[0].Epoch <= own.Epoch {
		t.Errorf("epoch of the new grant = %d, want more than %d", polled.Runs[0].Epoch, own.Epoch)
	}
	if code := s.commit(s.c, own); code != perdure.CodeStaleEpoch {
		t.Errorf("commit of the server's last life: %q, want %s", code, perdure.CodeStaleEpoch)
	}
	if code := s.commit(s.own, polled.Runs[0]); code != "" {
		t.Errorf("commit under the new epoch is refused: %s", code)
	}
}

// TestNodeTakesBackItsOwnLeasesOnly restarts one of several nodes. Runs that workers of the same
// name hold inside the others stay theirs, also where a data folder was copied or is used by two.
func TestNodeTakesBackItsOwnLeasesOnly(t *testing.T) {
	opt := embedded.Options{Dir: t.TempDir(), Store: pgtest.New(t), Policy: longLeases(), Node: "twin"}
	a := openOwn(t, opt)
	opt.Key = a.Key()
	at := func(dir string) embedded.Options {
		o := opt
		o.Dir = dir
		return o
	}
	held := map[string]api.Grant{"a": a.grant(a.own, "own", 3, true)}
	others := map[string]string{"another folder": t.TempDir(), "the same folder": opt.Dir, "no folder": "",
		"a copy of the folder": filepath.Join(t.TempDir(), "copy")}
	copyFolder(t, opt.Dir, others["a copy of the folder"])
	for name, dir := range others {
		b := openOwn(t, at(dir))
		held[name] = b.grant(b.own, "own", 3, true)
	}
	b := openOwn(t, at(t.TempDir()))
	settled(t, b)
	for name, g := range held {
		b.holds(g, name)
	}

	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a = openOwn(t, opt)
	eventually.True(t, "the node's own run is taken back", func() bool {
		return a.see(held["a"].RunID).State == perdure.Queued
	})
	for name, g := range held {
		if name != "a" {
			b.holds(g, name)
		}
	}
}

// settled waits until a watchdog has noticed a deadline. By then the nodes have usually taken back what
// they take at their start. TestInstanceIsThatOfOneFolder checks the same without any wait.
func settled(t *testing.T, s *ownServer) {
	t.Helper()
	run, err := s.c.Start(t.Context(), perdure.Submission{Kind: "settled", Timeout: perdure.Duration(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a deadline is noticed", func() bool { return s.see(run.RunID).State.Terminal() })
}

// copyFolder copies a folder.
func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWorkersShowTheServersOnceANode lists the workers inside two nodes, one of which is restarted.
func TestWorkersShowTheServersOnceANode(t *testing.T) {
	opt := embedded.Options{Dir: t.TempDir(), Store: pgtest.New(t), Node: "first"}
	poll := func(s *ownServer) {
		t.Helper()
		in := api.Poll{Slots: 1, AllTenants: true, Wait: perdure.Duration(time.Millisecond)}
		if _, err := session.Of(s.own).Poll(t.Context(), "own", in); err != nil {
			t.Fatal(err)
		}
	}
	a := openOwn(t, opt)
	poll(a)
	second := opt
	second.Dir, second.Node, second.Key = t.TempDir(), "second", a.Key()
	b := openOwn(t, second)
	poll(b)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a = openOwn(t, opt)
	poll(a)
	list, err := admin.New(b.c).Workers(t.Context())
	if err != nil || len(list) != 2 || list[0].ID == list[1].ID {
		t.Fatalf("workers %+v: %v; want one inside each node", list, err)
	}
	slices.SortFunc(list, func(a, b perdure.Worker) int { return strings.Compare(a.Polls[0].Node, b.Polls[0].Node) })
	for i, node := range []string{"first", "second"} {
		w := list[i]
		if !strings.HasPrefix(w.ID, "own~") || len(w.Polls) != 1 || w.Polls[0].Node != node || w.Offline {
			t.Errorf("worker %+v, want one inside the node %s that has polled", w, node)
		}
	}
	for _, w := range list {
		_, err := session.Of(a.c).Poll(t.Context(), w.ID, api.Poll{Slots: 1})
		if client.CodeOf(err) != perdure.CodeInvalid {
			t.Errorf("poll of a client as %s: %v, want %s", w.ID, err, perdure.CodeInvalid)
		}
	}
}
