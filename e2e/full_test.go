package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// ask makes one request and returns the code of the error, or the status of a health check.
func (n *node) ask(method, path string, in any) (status int, word string) {
	n.t.Helper()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			n.t.Fatal(err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, "http://"+n.addr+path, body)
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := n.http.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	var out struct {
		Code   string
		Status any
	}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		n.t.Fatal(err)
	}
	if out.Code == "" {
		out.Code, _ = out.Status.(string)
	}
	return res.StatusCode, out.Code
}

// until repeats a request until it has a certain answer.
func (n *node) until(method, path string, in any, status int, word string) {
	n.t.Helper()
	eventually.True(n.t, fmt.Sprintf("%s %s is answered with %d %s", method, path, status, word), func() bool {
		s, w := n.ask(method, path, in)
		return s == status && (word == "" || w == word)
	})
}

// finish completes runs with results of some size, which has to succeed.
func (n *node) finish(runs []runView) {
	n.t.Helper()
	for _, r := range runs {
		var out struct {
			Results []struct {
				OK    bool            `json:"ok"`
				Error json.RawMessage `json:"error"`
			} `json:"results"`
		}
		status, err := n.call("POST", "/api/v1/workers/w/commit", "", complete(r, strings.Repeat("r", 4000)), &out)
		if err != nil || status != 200 || len(out.Results) != 1 || !out.Results[0].OK {
			n.t.Fatalf("run %s: complete: status %d (error %v), %+v; want 200", r.RunID, status, err, out)
		}
	}
}

func TestFullDiskRefusesNewWorkAndLetsRunsEnd(t *testing.T) {
	fs := forgetful(t)
	n := nodeAt(t, filepath.Join(fs.Dir, "data"))
	n.start()
	job := obj{"kind": "job", "input": strings.Repeat("i", 4000)}
	reserve := func() int64 {
		info, err := os.Stat(filepath.Join(n.dir, "perdure.db.reserve"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually.True(t, "something is kept back", func() bool { return reserve() > 0 })
	var ids []string
	for range 300 {
		ids = append(ids, n.submit(job).RunID)
	}
	held := n.poll("w", 100, true, "5s")
	fill := func() { // another program uses all remaining space
		used, err := fs.Used()
		if err != nil {
			t.Fatal(err)
		}
		if err := fs.Full(used); err != nil {
			t.Fatal(err)
		}
	}

	fill()
	n.finish(held[:50]) // these are the first without free space, and use the reserve
	n.until("POST", "/api/v1/runs", job, 507, "storage_full")
	n.until("GET", "/readyz", nil, 200, "full")
	for _, path := range []string{"/api/v1/threads", "/api/v1/groups"} {
		in := obj{}
		if path == "/api/v1/groups" {
			in = obj{"run_ids": ids[:2]}
		}
		if s, code := n.ask("POST", path, in); s != 507 || code != "storage_full" {
			t.Errorf("POST %s on a full disk: status %d %s, want 507 storage_full", path, s, code)
		}
	}
	n.finish(held[50:])
	n.finish(n.poll("w", 100, true, "5s"))
	if s, code := n.ask("POST", "/api/v1/runs/"+ids[299]+"/cancel", obj{}); s != 200 {
		t.Errorf("cancel on a full disk: status %d %s, want 200", s, code)
	}

	// A server that starts on a full disk does the same.
	n.kill(syscall.SIGKILL)
	n.start()
	n.until("GET", "/readyz", nil, 200, "full")
	n.finish(n.poll("w", 20, true, "5s"))
	if s, code := n.ask("POST", "/api/v1/runs", job); s != 507 || code != "storage_full" {
		t.Errorf("submit on a full disk: status %d %s, want 507 storage_full", s, code)
	}

	// With free space everything continues.
	if err := fs.Full(0); err != nil {
		t.Fatal(err)
	}
	n.until("GET", "/readyz", nil, 200, "ready")
	n.until("POST", "/api/v1/runs", job, 201, "")
	if reserve() == 0 {
		t.Error("the reserve was not created again, want one")
	}
	n.kill(syscall.SIGKILL)
	fill()
	n.start() // with a reserve
	n.finish(n.poll("w", 100, true, "5s"))
	states := map[string]int{}
	for _, id := range ids {
		states[n.get(id).State]++
	}
	if states["completed"] != 299 || states["cancelled"] != 1 {
		t.Errorf("states of the runs = %v, want 299 completed and 1 cancelled", states)
	}
	var check struct {
		Violations []any `json:"violations"`
	}
	if n.insist("GET", "/api/admin/invariants", "", nil, &check); len(check.Violations) > 0 {
		t.Error(fmt.Sprint(check.Violations...))
	}
}

// A database that has filled its disk does not shrink when rows are removed, but it has free pages.
func TestRemovedRunsMakeRoomOnFullDisk(t *testing.T) {
	fs := forgetful(t)
	s, err := store.Open(store.Options{Path: filepath.Join(fs.Dir, "data", "perdure.db"), Reserve: 2 << 20,
		Hooks: store.Hooks{WALPages: 64}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	used, err := fs.Used()
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Full(used + 10<<20); err != nil {
		t.Fatal(err)
	}
	var all []perdure.RunID
	submit := func() error {
		input := json.RawMessage(`"` + fmt.Sprint(len(all)) + strings.Repeat("i", 400_000) + `"`)
		op := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Input: input}}
		err := e.Do(t.Context(), op)
		if err == nil {
			all = append(all, op.Run.ID)
		}
		return err
	}
	for err = nil; err == nil && len(all) < 100; {
		err = submit()
	}
	if perdure.CodeOf(err) != perdure.CodeStorageFull || !s.Full() {
		t.Fatalf("submit after %d runs: %v, want storage_full, and a store that is full", len(all), err)
	}
	if _, err := s.Backup(t.Context(), filepath.Join(fs.Dir, "backup"),
		nil); perdure.CodeOf(err) != perdure.CodeStorageFull || strings.Contains(err.Error(), "rollback") {
		t.Errorf("backup on a full disk: %v, want storage_full", err)
	}
	// The log may use the rest of such a small disk in between. Retention tries again, too.
	soon := func(what string, do func() error) {
		t.Helper()
		eventually.True(t, what, func() bool {
			err := do()
			if err != nil && perdure.CodeOf(err) != perdure.CodeStorageFull {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	for _, id := range all {
		soon("run "+string(id)+" is removed", func() error { return s.Do(t.Context(), removal(id)) })
	}
	for range len(all) / 2 {
		soon("there is room", submit)
	}
}

// A removal removes a run from the database, as the retention does.
type removal perdure.RunID

func (removal) Needs() []store.Ref { return nil }

func (r removal) Do(tx *store.Tx) error {
	tx.Stage("DELETE FROM blobs WHERE (tenant,hash) IN (SELECT tenant,hash FROM blob_refs WHERE owner=?)", string(r))
	tx.Stage("DELETE FROM runs WHERE id=?", string(r))
	tx.Stage("DELETE FROM events WHERE run_id=?", string(r))
	return nil
}

// A transaction that is too large for the cache is written before its commit, and finds no free
// space.
func TestTransactionThatFillsDiskIsRolledBack(t *testing.T) {
	fs := forgetful(t)
	s, err := small(filepath.Join(fs.Dir, "data"), 100)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sub := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}}
	if err := e.Do(t.Context(), sub); err != nil {
		t.Fatal(err)
	}
	var ops []kernel.Op
	for i := range 10 {
		data := json.RawMessage(`"` + strings.Repeat(fmt.Sprint(i), 900_000) + `"`)
		ops = append(ops, &life.Signal{Tenant: tenant, RunID: sub.Run.ID, Name: "large", Key: fmt.Sprint(i),
			Data: data})
	}
	used, err := fs.Used()
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Full(used + 4<<20); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, err := range e.Step(s.Now(), ops...) {
		if err != nil {
			refused++
		}
		if err != nil && perdure.CodeOf(err) != perdure.CodeStorageFull {
			t.Errorf("signal on a full disk: %v, want storage_full", err)
		}
	}
	if refused == 0 || s.Err() != nil {
		t.Fatalf("%d signals were refused (store error %v), want some, and a store without an error", refused, s.Err())
	}
	t.Logf("%d of %d were refused", refused, len(ops))
	if err := fs.Full(0); err != nil {
		t.Fatal(err)
	}
	for _, err := range e.Step(s.Now(), ops...) {
		if err != nil {
			t.Errorf("signal with free space: %v, want success", err)
		}
	}
	err = s.View(t.Context(), func(v *store.View) error {
		items, err := v.Inbox.List(tenant, sub.Run.ID)
		if err != nil {
			return err
		}
		if len(items) != len(ops) {
			t.Errorf("%d signals gave %d inbox items, want one each", len(ops), len(items))
		}
		found, err := v.Check(nil)
		if len(found) > 0 {
			t.Errorf("violations of invariants = %+v, want none", found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
