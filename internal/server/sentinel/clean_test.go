package sentinel

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// exists tells whether the job's folder is there.
func (p *proc) exists() bool {
	_, err := os.Lstat(p.dir.Path)
	return err == nil
}

// end ends a process with a result that the server adopts.
func (p *proc) end() {
	p.w.t.Helper()
	p.finish("x", "")
	p.die()
	p.w.scan()
	p.wants(perdure.Completed)
}

func TestFoldersOfEndedRunsGoAfterTheirTime(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	ended, live, held := w.start(), w.start(), w.start()
	ended.end()
	held.finish("x", "")
	w.scan()
	w.scan() // adopted, although something holds the lock
	held.wants(perdure.Completed)
	w.skipped.Add(int64(23 * time.Hour))
	live.write()
	for range 6 {
		w.scan()
	}
	if !ended.exists() {
		t.Fatal("the folder of a run that ended 23 hours ago is gone")
	}
	w.skipped.Add(int64(2 * time.Hour))
	w.scan()
	if ended.exists() {
		t.Error("the folder of a run that ended 25 hours ago is still there")
	}
	if !live.exists() || !held.exists() {
		t.Errorf("folders of a live run and of a held lock: %v, %v; want both kept", live.exists(), held.exists())
	}
	held.die()
	w.skipped.Add(int64(2 * time.Hour))
	w.scan()
	if held.exists() {
		t.Error("the folder is still there after its lock was free")
	}
	w.ok(jobdir.Empty(w.workspace))
}

func TestFolderOfADeletedRunGoes(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := newWorld(t, at)
		p := w.start()
		p.end()
		w.scan()
		w.ok(w.e.Do(t.Context(), &upkeep.DeleteRun{Tenant: "acme", RunID: p.run.ID}))
		for range checkEvery + 2 {
			w.scan()
		}
		if p.exists() {
			t.Error("the folder of a deleted run is still there")
		}
	})
}

// TestFoldersWithoutARunStayForAWhile: they may be of another server, or of a store that was restored.
func TestFoldersWithoutARunStayForAWhile(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	path := filepath.Join(w.workspace, "jobs", "00000000-0000-7000-8000-000000000000")
	locked := filepath.Join(w.workspace, "jobs", "00000000-0000-7000-8000-000000000001")
	for _, p := range []string{path, locked} {
		w.ok(os.MkdirAll(filepath.Join(p, "a", "b"), 0o700))
	}
	d, err := jobdir.Of(w.workspace, filepath.Base(locked))
	w.ok(err)
	lock, err := d.Lock()
	w.ok(err)
	defer lock.Close()
	scan := func() {
		for range 3 {
			w.scan()
			w.skipped.Add(int64(time.Minute))
		}
	}
	scan()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("a young folder without a run is gone: %v", err)
	}
	w.skipped.Add(int64(25 * time.Hour))
	scan()
	if _, err := os.Lstat(path); err == nil {
		t.Error("an old folder without a run is still there")
	}
	if _, err := os.Lstat(locked); err != nil {
		t.Errorf("a folder whose lock is held is gone: %v", err)
	}
}

// TestCleaningFollowsNoLink puts a link to a folder outside where a job's folder was.
func TestCleaningFollowsNoLink(t *testing.T) {
	w := newWorld(t, store.Options{Memory: storetest.Memory(t)})
	outside := t.TempDir()
	w.ok(os.WriteFile(filepath.Join(outside, "mine"), nil, 0o600))
	p := w.start()
	w.ok(os.Symlink(outside, filepath.Join(p.dir.Path, "link")))
	p.end()
	w.scan()
	w.skipped.Add(int64(25 * time.Hour))
	w.scan()
	w.ok(jobdir.Empty(w.workspace))
	if p.exists() {
		t.Error("the folder is still there")
	}
	if _, err := os.Lstat(filepath.Join(outside, "mine")); err != nil {
		t.Errorf("a file behind a link of the folder was removed: %v", err)
	}
}
