package jobdir

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
)

const token = "the token of a grant"

// job makes the folder of a job.
func job(t *testing.T) Dir {
	t.Helper()
	d, err := Of(t.TempDir(), "job-1")
	if err == nil {
		err = d.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// sentinel returns a good sentinel of the job.
func (d Dir) sentinel() Sentinel {
	return Sentinel{JobID: d.ID, Status: StatusRunning, LastHeartbeat: Time(time.Unix(1, 0)), WorkspacePath: d.Path,
		AgentEngine: "generic", StartedAt: Time(time.Unix(1, 0)), Counter: 7, Epoch: 3, Tenant: "acme"}
}

// result returns a good result of the job.
func (d Dir) result() Result {
	no := false
	return Result{JobID: d.ID, Tenant: "acme", Output: Offsets{Stdout: 5}, FinishedAt: Time(time.Unix(2, 0)),
		Commit: perdure.Commit{ID: "end-3", RunID: perdure.RunID(d.ID), Epoch: 3,
			Events: []perdure.Emitted{{Type: EventExit, Data: []byte(`{"exit_code": 1}`)}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Error: &perdure.Failure{Code: "exit_status"},
				Retryable: &no}}}
}

func TestSignedFilesAreReadBack(t *testing.T) {
	d := job(t)
	if err := d.WriteSentinel(d.sentinel(), token); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteResult(d.result(), token); err != nil {
		t.Fatal(err)
	}
	s, err := d.ReadSentinel()
	if err != nil || s.Counter != 7 || s.Epoch != 3 || s.Tenant != "acme" || !s.Verify(token) || s.Verify("another") ||
		s.Verify("") {
		t.Errorf("sentinel = %+v, %v; want the one that was written, valid with its token only", s, err)
	}
	r, err := d.ReadResult()
	if err != nil || r.Commit.ID != "end-3" || !r.Verify(token) || r.Verify("another") {
		t.Errorf("result = %+v, %v; want the one that was written, valid with its token only", r, err)
	}
	if s.Counter++; s.Verify(token) {
		t.Error("a changed sentinel is valid")
	}
	if r.Commit.Outcome.Type = perdure.OutcomeComplete; r.Verify(token) {
		t.Error("a changed result is valid")
	}
}

func TestSentinelHasTheNamesOfTheContractAndNoProcessID(t *testing.T) {
	d := job(t)
	if err := d.WriteSentinel(d.sentinel(), token); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(d.file(SentinelFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"jobId", "status", "lastHeartbeat", "workspacePath", "sessionId", "agentEngine",
		"startedAt", "counter", "epoch"} {
		if !bytes.Contains(text, []byte(`"`+name+`":`)) {
			t.Errorf("sentinel %s lacks %s", text, name)
		}
	}
	if !bytes.Contains(text, []byte(`"lastHeartbeat":"1970-01-01T00:00:01.000Z"`)) ||
		strings.Contains(strings.ToLower(string(text)), `"pid`) {
		t.Errorf("sentinel = %s, want its time in milliseconds and no process id", text)
	}
}

func TestFilesThatAreNotWhatTheyClaimAreBad(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "good")
	for _, file := range []string{SentinelFile, ResultFile} {
		for name, spoil := range map[string]func(t *testing.T, d Dir, path string){
			"empty":   func(t *testing.T, d Dir, path string) { write(t, path, nil) },
			"torn":    func(t *testing.T, d Dir, path string) { write(t, path, read(t, path)[:40]) },
			"garbage": func(t *testing.T, d Dir, path string) { write(t, path, []byte("\x00\xff{{{")) },
			"more":    func(t *testing.T, d Dir, path string) { write(t, path, append(read(t, path), '1')) },
			"unknown field": func(t *testing.T, d Dir, path string) {
				write(t, path, bytes.Replace(read(t, path), []byte("{"), []byte(`{"pid":1,`), 1))
			},
			"of another job": func(t *testing.T, d Dir, path string) {
				write(t, path, bytes.Replace(read(t, path), []byte(`"jobId":"job-1"`), []byte(`"jobId":"job-2"`), 1))
			},
			"huge":   func(t *testing.T, d Dir, path string) { ok(t, os.Truncate(path, 1<<30)) },
			"folder": func(t *testing.T, d Dir, path string) { ok(t, os.Remove(path)); ok(t, os.Mkdir(path, 0o700)) },
			"pipe": func(t *testing.T, d Dir, path string) {
				ok(t, os.Remove(path))
				ok(t, unix.Mkfifo(path, 0o600))
			},
			"link": func(t *testing.T, d Dir, path string) {
				write(t, elsewhere, read(t, path))
				ok(t, os.Remove(path))
				ok(t, os.Symlink(elsewhere, path))
			},
			"link to the folder": func(t *testing.T, d Dir, path string) {
				moved := d.Path + "-moved"
				ok(t, os.Rename(d.Path, moved))
				ok(t, os.Symlink(moved, d.Path))
			},
		} {
			t.Run(file+"/"+name, func(t *testing.T) {
				d := job(t)
				ok(t, d.WriteSentinel(d.sentinel(), token))
				ok(t, d.WriteResult(d.result(), token))
				spoil(t, d, d.file(file))
				var err error
				if file == SentinelFile {
					_, err = d.ReadSentinel()
				} else {
					_, err = d.ReadResult()
				}
				var bad *BadFile
				if !errors.As(err, &bad) {
					t.Errorf("reading it gives %v, want a BadFile", err)
				}
			})
		}
	}
}

func TestCopiedWorkspaceIsForeign(t *testing.T) {
	d := job(t)
	ok(t, d.WriteSentinel(d.sentinel(), token))
	to, err := Of(t.TempDir(), d.ID)
	ok(t, err)
	ok(t, os.CopyFS(to.Path, os.DirFS(d.Path)))
	var bad *BadFile
	if _, err := to.ReadSentinel(); !errors.As(err, &bad) || !strings.Contains(bad.Reason, "copied") {
		t.Errorf("sentinel of a copied workspace: %v, want a BadFile that says so", err)
	}
}

func TestReplacingAFileFollowsNoLink(t *testing.T) {
	d := job(t)
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim, []byte("untouched"))
	ok(t, os.Symlink(victim, d.file(SentinelFile+tempSuffix)))
	ok(t, os.Symlink(victim, d.file(SentinelFile)))
	ok(t, d.WriteSentinel(d.sentinel(), token))
	if got := read(t, victim); string(got) != "untouched" {
		t.Errorf("the file that links pointed to has %q", got)
	}
	if _, err := d.ReadSentinel(); err != nil {
		t.Errorf("sentinel after links were replaced: %v", err)
	}
}

func TestLockIsHeldUntilItsLastCopyIsClosed(t *testing.T) {
	d := job(t)
	held := func() bool {
		t.Helper()
		h, err := d.LockHeld("")
		ok(t, err)
		return h
	}
	if held() {
		t.Error("a lock that nobody took is held")
	}
	lock, err := d.Lock()
	ok(t, err)
	if !held() {
		t.Error("a lock is free although it was taken")
	}
	if _, err := d.Lock(); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v, want ErrLocked", err)
	}
	copied, err := unix.Dup(int(lock.Fd()))
	ok(t, err)
	lock.Close()
	if !held() {
		t.Error("the lock is free while a copy of its file is open")
	}
	unix.Close(copied)
	if held() {
		t.Error("the lock is held after all copies were closed")
	}
}

// TestReplacedLockIsNotFree puts another lock file where the runner's was. Its own is still locked.
func TestReplacedLockIsNotFree(t *testing.T) {
	d := job(t)
	lock, err := d.Lock()
	ok(t, err)
	id, err := LockID(lock)
	ok(t, err)
	look := func(id string) (bool, bool) {
		t.Helper()
		held, err := d.LockHeld(id)
		var bad *BadFile
		if err != nil && !errors.As(err, &bad) {
			t.Fatal(err)
		}
		return held, bad != nil
	}
	if held, bad := look(id); !held || bad {
		t.Errorf("the runner's lock: held %v, bad %v; want it held", held, bad)
	}
	ok(t, os.Remove(d.file(LockFile)))
	if held, bad := look(id); !held || !bad {
		t.Errorf("a lock that was removed: held %v, bad %v; want unknown", held, bad)
	}
	write(t, d.file(LockFile), nil)
	if held, bad := look(id); !held || !bad {
		t.Errorf("another lock in its place: held %v, bad %v; want unknown", held, bad)
	}
	if held, bad := look(""); held || bad {
		t.Errorf("another lock, and no id: held %v, bad %v; want it free", held, bad)
	}
	lock.Close()
	again, err := d.Lock()
	ok(t, err)
	id, err = LockID(again)
	ok(t, err)
	again.Close()
	if held, bad := look(id); held || bad {
		t.Errorf("a lock that was closed: held %v, bad %v; want it free", held, bad)
	}
}

func TestOnlyTheCommandsFilesAreData(t *testing.T) {
	d := job(t)
	ok(t, d.WriteSentinel(d.sentinel(), token))
	ok(t, d.WriteResult(d.result(), token))
	for _, stream := range []string{Stdout, Stderr} {
		f, err := d.OpenOutput(stream)
		ok(t, err)
		f.Close()
	}
	if d.HasData() {
		t.Error("a folder with our own files only has data")
	}
	write(t, d.file("notes.txt"), nil)
	if !d.HasData() {
		t.Error("a folder with a file of the command has no data")
	}
}

func TestJobIDsStayInTheirWorkspace(t *testing.T) {
	for _, id := range []string{"", ".", "..", "../x", "a/b", "a\x00b", "-rf", strings.Repeat("a", 129), "é"} {
		if d, err := Of(t.TempDir(), id); err == nil {
			t.Errorf("id %q is accepted as %s", id, d.Path)
		}
	}
}

func TestJobsAreListedWithTheirJunkAndNoMoreThanTheLimit(t *testing.T) {
	workspace := t.TempDir()
	list := func(limit int) (good, bad int, more bool) {
		more, err := Jobs(workspace, limit, func(_ Dir, ok bool) {
			if ok {
				good++
			} else {
				bad++
			}
		})
		ok(t, err)
		return good, bad, more
	}
	if good, bad, more := list(10); good+bad != 0 || more {
		t.Errorf("a workspace that is not there has %d and %d jobs", good, bad)
	}
	for _, id := range []string{"a", "b", "c"} {
		d, err := Of(workspace, id)
		ok(t, err)
		ok(t, d.Create())
	}
	write(t, filepath.Join(workspace, "jobs", "a file"), nil)
	ok(t, os.Symlink("a", filepath.Join(workspace, "jobs", "link")))
	if good, bad, more := list(10); good != 3 || bad != 2 || more {
		t.Errorf("listed %d jobs and %d others (more: %v), want 3 and 2", good, bad, more)
	}
	if good, bad, more := list(2); good+bad != 2 || !more {
		t.Errorf("listed %d entries (more: %v), want 2 and more", good+bad, more)
	}
}

func TestSettingAsideKeepsWhatIsThere(t *testing.T) {
	workspace := t.TempDir()
	d, err := Of(workspace, "j")
	ok(t, err)
	ok(t, d.Create())
	for want := range 3 {
		write(t, d.file(SentinelFile), []byte{byte('0' + want)})
		to, err := SetAside(workspace, d.file(SentinelFile))
		ok(t, err)
		if got := read(t, to); string(got) != string(byte('0'+want)) {
			t.Errorf("%s has %q, want %d", to, got, want)
		}
		if _, err := os.Lstat(d.file(SentinelFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file is still in its place: %v", err)
		}
	}
}

func FuzzSentinelNeedsItsMAC(f *testing.F) {
	f.Add([]byte(`{"jobId":"job-1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := job(t)
		write(t, d.file(SentinelFile), b)
		write(t, d.file(ResultFile), b)
		if s, err := d.ReadSentinel(); err == nil && s.Verify(token) {
			t.Errorf("sentinel %q is valid without its token", b)
		}
		if r, err := d.ReadResult(); err == nil && r.Verify(token) {
			t.Errorf("result %q is valid without its token", b)
		}
	})
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	ok(t, os.WriteFile(path, b, 0o600))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	ok(t, err)
	return b
}

// TestNothingOutsideTheWorkspaceIsMovedOrRemoved puts links where folders of the workspace should be.
func TestNothingOutsideTheWorkspaceIsMovedOrRemoved(t *testing.T) {
	outside := t.TempDir()
	workspace := t.TempDir()
	ok(t, os.MkdirAll(filepath.Join(outside, "job-1"), 0o700))
	write(t, filepath.Join(outside, "job-1", SentinelFile), []byte("mine"))
	ok(t, os.Symlink(outside, filepath.Join(workspace, "jobs")))
	if err := Check(workspace); err == nil {
		t.Error("a link in place of the folder of jobs is accepted")
	}
	if err := Discard(workspace, "job-1"); err == nil {
		t.Error("a folder behind a link was discarded")
	}
	if _, err := SetAside(workspace, filepath.Join(workspace, "jobs", "job-1", SentinelFile)); err == nil {
		t.Error("a file behind a link was set aside")
	}
	ok(t, os.RemoveAll(filepath.Join(workspace, "removed")))
	ok(t, os.Symlink(outside, filepath.Join(workspace, "removed")))
	ok(t, Empty(workspace))
	if got := read(t, filepath.Join(outside, "job-1", SentinelFile)); string(got) != "mine" {
		t.Errorf("the file outside has %q", got)
	}
}

func TestDiscardedFoldersAreDeleted(t *testing.T) {
	d := job(t)
	workspace := filepath.Dir(filepath.Dir(d.Path))
	ok(t, os.MkdirAll(d.file("a/b"), 0o700))
	write(t, d.file("a/b/c"), []byte("x"))
	ok(t, Discard(workspace, d.ID))
	if d.Has("a") {
		t.Error("a discarded folder is still there")
	}
	ok(t, d.Create())
	ok(t, Discard(workspace, d.ID))
	ok(t, Empty(workspace))
	if _, err := os.Lstat(filepath.Join(workspace, "removed")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was discarded is still there: %v", err)
	}
}
