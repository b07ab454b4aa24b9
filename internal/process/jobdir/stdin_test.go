package jobdir

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStagedInputBecomesThatOfARun(t *testing.T) {
	workspace := t.TempDir()
	s, err := StageStdin(workspace, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MoveTo("run-1"); err != nil {
		t.Fatal(err)
	}
	d, err := Of(workspace, "run-1")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := d.ReadStdin(5); err != nil || string(b) != "hello" {
		t.Errorf("input of the run = %q (error %v), want hello", b, err)
	}
	if d.HasData() {
		t.Error("the input counts as something that the command has left")
	}
	if err := d.Clear(); err != nil || !d.Has(StdinFile) {
		t.Errorf("the input is gone before the command starts (error %v)", err)
	}
	if _, err := d.ReadStdin(6); err == nil {
		t.Error("input of another size is read")
	}
	if err := os.Remove(d.file(StdinFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", d.file(StdinFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadStdin(5); err == nil {
		t.Error("a link is read as input")
	}
	if _, err := StageStdin(workspace, bytes.Repeat([]byte{'x'}, MaxStdin+1)); err == nil {
		t.Error("more than 16 MiB are staged")
	}
	if s, err = StageStdin(workspace, []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.Remove()
	if entries, err := os.ReadDir(filepath.Join(workspace, "jobs")); err != nil || len(entries) != 1 {
		t.Errorf("the workspace has %d folders (error %v), want that of the run only", len(entries), err)
	}
}

// A command that looks whether a server is there does not keep the server from its workspace.
func TestWatchedWorkspace(t *testing.T) {
	workspace := filepath.Join(t.TempDir(), "w")
	if Watched(workspace) {
		t.Error("a workspace that does not exist is watched")
	}
	f, err := Own(workspace)
	if err != nil {
		t.Fatal(err)
	}
	if !Watched(workspace) {
		t.Error("a workspace whose server lives is not watched")
	}
	if _, err := Own(workspace); err != ErrLocked {
		t.Errorf("a second server gets %v, want %v", err, ErrLocked)
	}
	f.Close()
	if Watched(workspace) {
		t.Error("a workspace whose server is gone is watched")
	}
	look, err := os.Open(filepath.Join(workspace, serverLock))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(look.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	go look.Close()
	if f, err = Own(workspace); err != nil {
		t.Fatalf("a server that comes while somebody looks gets %v, want the workspace", err)
	}
	f.Close()
}
