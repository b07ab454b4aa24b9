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
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/store"
)

// ask makes one request and reads the code of what refuses it, or the status that a health check tells.
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

// until asks until the answer is the one that is waited for.
func (n *node) until(method, path string, in any, status int, word string) {
	n.t.Helper()
	eventually.True(n.t, fmt.Sprintf("%s %s is answered with %d %s", method, path, status, word), func() bool {
		s, w := n.ask(method, path, in)
		return s == status && (word == "" || w == word)
	})
}

// finish ends runs with a result of some size, and looks whether that was taken.
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
			n.t.Fatalf("%s can't end: %d, %v, %+v", r.RunID, status, err, out)
		}
	}
}

func TestAFullDiskRefusesNewWorkAndLetsRunsEnd(t *testing.T) {
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
	fill := func() { // somebody else takes all that is left
		used, err := fs.Used()
		if err != nil {
			t.Fatal(err)
		}
		if err := fs.Full(used); err != nil {
			t.Fatal(err)
		}
	}

	fill()
	n.finish(held[:50]) // they are the first to find no room, and are not told
	n.until("POST", "/api/v1/runs", job, 507, "storage_full")
	n.until("GET", "/readyz", nil, 200, "full")
	for _, path := range []string{"/api/v1/threads", "/api/v1/groups"} {
		in := obj{}
		if path == "/api/v1/groups" {
			in = obj{"run_ids": ids[:2]}
		}
		if s, code := n.ask("POST", path, in); s != 507 || code != "storage_full" {
			t.Errorf("POST %s: %d %s", path, s, code)
		}
	}
	n.finish(held[50:])
	n.finish(n.poll("w", 100, true, "5s"))
	if s, code := n.ask("POST", "/api/v1/runs/"+ids[299]+"/cancel", obj{}); s != 200 {
		t.Errorf("cancel: %d %s", s, code)
	}

	// A server that is started on a full disk can do the same.
	n.kill(syscall.SIGKILL)
	n.start()
	n.until("GET", "/readyz", nil, 200, "full")
	n.finish(n.poll("w", 20, true, "5s"))
	if s, code := n.ask("POST", "/api/v1/runs", job); s != 507 || code != "storage_full" {
		t.Errorf("a new run: %d %s", s, code)
	}

	// When there is room again, everything goes on.
	if err := fs.Full(0); err != nil {
		t.Fatal(err)
	}
	n.until("GET", "/readyz", nil, 200, "ready")
	n.until("POST", "/api/v1/runs", job, 201, "")
	if reserve() == 0 {
		t.Error("nothing is kept back any more")
	}
	n.kill(syscall.SIGKILL)
	fill()
	n.start() // with what is kept back
	n.finish(n.poll("w", 100, true, "5s"))
	states := map[string]int{}
	for _, id := range ids {
		states[n.get(id).State]++
	}
	if states["completed"] != 299 || states["cancelled"] != 1 {
		t.Errorf("%v", states)
	}
	var check struct {
		Violations []any `json:"violations"`
	}
	if n.insist("GET", "/api/admin/invariants", "", nil, &check); len(check.Violations) > 0 {
		t.Error(fmt.Sprint(check.Violations...))
	}
}

// A database that has filled its disk does not get smaller when what is in it is removed, but has room inside.
func TestADiskThatRunsHaveFilledHasRoomWhenTheyAreRemoved(t *testing.T) {
	fs := forgetful(t)
	s, err := store.Open(store.Options{Path: filepath.Join(fs.Dir, "data", "perdure.db"), Reserve: 2 << 20, Hooks: store.Hooks{WALPages: 64}})
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
		op := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Input: input}}
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
		t.Fatalf("%v, after %d runs", err, len(all))
	}
	if _, err := s.Backup(t.Context(), filepath.Join(fs.Dir, "backup"), nil); perdure.CodeOf(err) != perdure.CodeStorageFull || strings.Contains(err.Error(), "rollback") {
		t.Errorf("a backup on a full disk: %v", err)
	}
	for _, id := range all {
		if err := s.Do(t.Context(), removal(id)); err != nil {
			t.Fatal(err)
		}
	}
	for range len(all) / 2 {
		eventually.True(t, "there is room", func() bool { // between two looks the log may take what is left of so small a disk
			err := submit()
			if err != nil && perdure.CodeOf(err) != perdure.CodeStorageFull {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}

// A removal takes a run out of the database, as if it had been kept long enough.
type removal perdure.RunID

func (removal) Needs() []store.Ref { return nil }

func (r removal) Do(tx *store.Tx) error {
	tx.Stage("DELETE FROM blobs WHERE (tenant,hash) IN (SELECT tenant,hash FROM blob_refs WHERE owner=?)", string(r))
	tx.Stage("DELETE FROM runs WHERE id=?", string(r))
	tx.Stage("DELETE FROM events WHERE run_id=?", string(r))
	return nil
}

// What is too large for the cache is written before its commit, and finds no room there.
func TestATransactionThatFillsTheDiskIsTakenBack(t *testing.T) {
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
	sub := &engine.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}}
	if err := e.Do(t.Context(), sub); err != nil {
		t.Fatal(err)
	}
	var ops []engine.Op
	for i := range 10 {
		data := json.RawMessage(`"` + strings.Repeat(fmt.Sprint(i), 900_000) + `"`)
		ops = append(ops, &engine.Signal{Tenant: tenant, RunID: sub.Run.ID, Name: "large", Key: fmt.Sprint(i), Data: data})
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
			t.Errorf("refused with %v", err)
		}
	}
	if refused == 0 || s.Err() != nil {
		t.Fatalf("%d were refused, and the store is in doubt: %v", refused, s.Err())
	}
	t.Logf("%d of %d were refused", refused, len(ops))
	if err := fs.Full(0); err != nil {
		t.Fatal(err)
	}
	for _, err := range e.Step(s.Now(), ops...) {
		if err != nil {
			t.Errorf("with room: %v", err)
		}
	}
	err = s.View(t.Context(), func(v *store.View) error {
		items, err := v.Items(tenant, sub.Run.ID)
		if err != nil {
			return err
		}
		if len(items) != len(ops) {
			t.Errorf("%d signals became %d", len(ops), len(items))
		}
		found, err := v.Check(nil)
		if len(found) > 0 {
			t.Errorf("%+v", found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
