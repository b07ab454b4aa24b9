package python

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/wire/release"
)

// The wheel is made without network, unpacked into an empty virtual environment, and executes the lines of the README.
func TestWheelAndReadme(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	folder := t.TempDir()
	wheel := filepath.Join(folder, strings.TrimSpace(run(t, "build_wheel.py", folder)))
	checkWheel(t, wheel)
	again := t.TempDir()
	run(t, "build_wheel.py", again)
	one, err := os.ReadFile(wheel)
	if err != nil {
		t.Fatal(err)
	}
	if two, err := os.ReadFile(filepath.Join(again, filepath.Base(wheel))); err != nil || string(one) != string(two) {
		t.Errorf("the wheel has other bytes when it is made again (%v)", err)
	}
	venv := filepath.Join(folder, "venv")
	run(t, "-m", "venv", "--without-pip", venv) // Debian's python3 has no pip of its own
	sites, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages"))
	if err != nil || len(sites) != 1 {
		t.Fatalf("the virtual environment has the folders %q, %v, want one", sites, err)
	}
	run(t, "-m", "zipfile", "-e", wheel, sites[0])
	if exec.Command("python3", "-m", "pip", "--version").Run() == nil {
		run(t, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
			"--target", filepath.Join(folder, "pip"), wheel)
	}
	readme(t, filepath.Join(venv, "bin", "python3"))
}

func checkWheel(t *testing.T, path string) {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	version := strings.Replace(release.Version, "-dev", ".dev0", 1)
	info := "perdure-" + version + ".dist-info/"
	want := map[string]bool{"perdure/py.typed": true, "perdure/agent/context.py": true, "perdure/testing.py": true,
		info + "METADATA": true, info + "RECORD": true, info + "WHEEL": true, info + "licenses/LICENSE": true}
	for _, f := range z.File {
		delete(want, f.Name)
		if f.UncompressedSize64 > 200<<10 {
			t.Errorf("%s has %d bytes, want at most 200 KB", f.Name, f.UncompressedSize64)
		}
		if strings.HasPrefix(f.Name, "tests") || strings.HasSuffix(f.Name, ".pyc") || strings.HasSuffix(f.Name, ".go") {
			t.Errorf("the wheel has %s", f.Name)
		}
	}
	for name := range want {
		t.Errorf("the wheel has no %s", name)
	}
}

// readme executes the two programs of the README.
func readme(t *testing.T, python string) {
	t.Helper()
	w := open(t)
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```python\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("the README has %d programs, want 2", len(blocks))
	}
	start := func(program string) (*exec.Cmd, *output) {
		out := &output{}
		cmd := exec.Command(python, "-c", program)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "PERDURE_URL="+w.URL, "PERDURE_KEY="+w.Key(), "NO_PROXY=*",
			"PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=")
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd, out
	}
	worker, said := start(blocks[0][1])
	caller, got := start(blocks[1][1])
	eventually.True(t, "an approval comes", func() bool {
		list, err := w.C.Approvals(w.Ctx, client.ApprovalFilter{})
		if err != nil {
			t.Fatalf("no approval has come: %v; the worker said:\n%s", err, &said.b)
		}
		if len(list.Approvals) != 1 {
			return false
		}
		a := list.Approvals[0]
		yes := perdure.Decision{Decision: perdure.Approve, ActionHash: a.ActionHash}
		if _, err := w.C.Decide(w.Ctx, a.ID, yes); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if err := caller.Wait(); err != nil || strings.TrimSpace(got.b.String()) != "completed paid" {
		t.Errorf("the program of the README said %q (%v), want completed paid", &got.b, err)
	}
	worker.Process.Signal(os.Interrupt)
	if err := worker.Wait(); err != nil {
		t.Errorf("the worker of the README has ended with %v:\n%s", err, &said.b)
	}
}
