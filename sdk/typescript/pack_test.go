package typescript

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
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

// execute runs a program in a folder and returns what it says.
func execute(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// The package is made and installed without network, into an empty folder, and executes the lines of the README.
func TestPackageAndReadme(t *testing.T) {
	stage.Long(t)
	t.Parallel()
	folder := t.TempDir()
	execute(t, ".", "npm", "pack", "--silent", "--offline", "--pack-destination", folder)
	file := filepath.Join(folder, "perdure-"+release.Version+".tgz")
	checkPackage(t, file)
	empty := filepath.Join(folder, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(empty, "package.json"), `{"type":"module","private":true}`)
	execute(t, empty, "npm", "install", "--offline", "--no-audit", "--no-fund", "--engine-strict=false", file)
	readme(t, empty)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func checkPackage(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"package/package.json": true, "package/README.md": true, "package/LICENSE": true,
		"package/dist/src/index.js": true, "package/dist/src/index.d.ts": true, "package/dist/src/beats.js": true,
		"package/dist/src/kit.js": true}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		delete(want, h.Name)
		if h.Size > 200<<10 {
			t.Errorf("%s has %d bytes, want at most 200 KB", h.Name, h.Size)
		}
		if strings.Contains(h.Name, "test") || strings.HasSuffix(h.Name, ".go") {
			t.Errorf("the package has %s", h.Name)
		}
		if h.Name == "package/package.json" {
			checkManifest(t, r)
		}
	}
	for name := range want {
		t.Errorf("the package has no %s", name)
	}
}

func checkManifest(t *testing.T, r io.Reader) {
	t.Helper()
	var m struct {
		Version, License string
		Engines          map[string]string
		Dependencies     map[string]string
	}
	if err := json.NewDecoder(r).Decode(&m); err != nil {
		t.Fatal(err)
	}
	if m.Version != release.Version || m.License != "Apache-2.0" || m.Engines["node"] != ">=20" ||
		len(m.Dependencies) > 0 {
		t.Errorf("package.json has %+v, want the version %s, Apache-2.0, Node.js from 20 and no dependencies", m,
			release.Version)
	}
	text, err := os.ReadFile("src/version.ts")
	if err != nil || !strings.Contains(string(text), `version = "`+release.Version+`"`) {
		t.Errorf("src/version.ts has another version than %s (%v)", release.Version, err)
	}
}

// readme executes the two programs of the README, and the commands of its first half hour. Its npx is the compiler that
// is installed here, because there is no network.
func readme(t *testing.T, folder string) {
	t.Helper()
	server, err := program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```ts\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("the README has %d programs, want 2", len(blocks))
	}
	write(t, filepath.Join(folder, "worker.ts"), blocks[0][1])
	write(t, filepath.Join(folder, "caller.ts"), blocks[1][1])
	modules, err := filepath.Abs("node_modules")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	engine := node(t, runtimes[0])
	for name, target := range map[string]string{"perdure": server, "node": engine} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	npx := "#!/bin/sh\nshift\nexec node " + filepath.Join(modules, "typescript", "bin", "tsc") +
		" --strict --types node --typeRoots " + filepath.Join(modules, "@types") + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(bin, "npx"), []byte(npx), 0o755); err != nil {
		t.Fatal(err)
	}
	pagetest.Run(t, pagetest.Blocks(t, "README.md", 2), folder, "PATH="+bin+":"+os.Getenv("PATH"))
}
