package python

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pagetest"
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

// readme executes the two programs of the README, and the commands of its first half hour.
func readme(t *testing.T, python string) {
	t.Helper()
	server, err := program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```python\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("the README has %d programs, want 2", len(blocks))
	}
	dir := t.TempDir()
	for n, name := range []string{"worker.py", "caller.py"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(blocks[n][1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := t.TempDir()
	if err := os.Symlink(server, filepath.Join(bin, "perdure")); err != nil {
		t.Fatal(err)
	}
	pagetest.Run(t, pagetest.Blocks(t, "README.md", 2), dir, "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=",
		"PATH="+filepath.Dir(python)+":"+bin+":"+os.Getenv("PATH"))
}
