package embedded_test

import (
	"path/filepath"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/session"
)

// TestStartAdoptsResults has a process end while no server is there. Its result is taken by the time
// that the next one answers.
func TestStartAdoptsResults(t *testing.T) {
	opt := embedded.Options{Dir: t.TempDir(), Store: storetest.Address(t)}
	opt.Workspace = filepath.Join(opt.Dir, "workspace")
	srv, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	run, err := c.Start(t.Context(), perdure.Submission{Kind: "exec", Class: perdure.Process})
	if err != nil {
		t.Fatal(err)
	}
	polled, err := session.Of(c).Poll(t.Context(), "runner", api.Poll{RunIDs: []perdure.RunID{run.RunID}, Slots: 1,
		Start: true})
	if err != nil || len(polled.Runs) != 1 {
		t.Fatalf("polled %+v: %v", polled, err)
	}
	g := polled.Runs[0]
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}

	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := jobdir.Of(opt.Workspace, string(g.RunID))
	ok(err)
	ok(d.Create())
	lock, err := d.Lock()
	ok(err)
	id, err := jobdir.LockID(lock)
	ok(err)
	out, err := d.OpenOutput(jobdir.Stdout)
	ok(err)
	_, err = out.WriteString("bye\n")
	ok(err)
	out.Close()
	ok(d.WriteSentinel(jobdir.Sentinel{JobID: d.ID, Status: jobdir.StatusRunning, WorkspacePath: d.Path, Counter: 1,
		Epoch: g.Epoch, Tenant: g.Tenant, Lock: id}, g.ResultToken))
	ok(d.WriteResult(jobdir.Result{JobID: d.ID, Tenant: g.Tenant, Output: jobdir.Offsets{Stdout: 4},
		Commit: perdure.Commit{ID: "end-1", RunID: g.RunID, Epoch: g.Epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: []byte(`{"exit_code":0}`)}}},
		g.ResultToken))
	lock.Close()

	if srv, err = embedded.Open(opt); err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	c = client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	got, err := c.Get(t.Context(), run.RunID)
	if err != nil || got.State != perdure.Completed {
		t.Fatalf("run = %+v, %v; want it completed by the start", got, err)
	}
	status, err := admin.New(c).RecoveryStatus(t.Context())
	if err != nil || status.Recovery.Adopted != 1 || status.Recovery.State != "finished" {
		t.Errorf("recovery = %+v, %v; want one result adopted", status, err)
	}
}
