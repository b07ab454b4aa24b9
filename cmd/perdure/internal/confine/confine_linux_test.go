package confine_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/cmd/perdure/internal/confine"
)

// The test binary is its own helper, and in asNobody a test that is executed once more by another user.
func TestMain(m *testing.M) {
	confine.Enter()
	os.Exit(m.Run())
}

// secret makes a folder with a secret, as the server's data folder is.
func secret(t *testing.T, dir string) (folder, file string) {
	t.Helper()
	folder = filepath.Join(dir, "data")
	file = filepath.Join(folder, "admin.key")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("prd_secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder, file
}

// execute executes a command line in a confinement.
func execute(t *testing.T, c *confine.Confinement, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "timeout", "20", "sh", "-c", line)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "COLOUR=red"}
	if err := c.Apply(cmd); err != nil {
		t.Fatal(err)
	}
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// attack tries what a hostile command would, and fails the test if something of the secret comes out.
func attack(t *testing.T, c *confine.Confinement, folder, file string) {
	t.Helper()
	t.Setenv("SECRET_OF_THE_TEST", "prd_secret")
	for _, line := range []string{
		"cat " + file, "du --files0-from=" + file, "ls -la " + folder, "cat " + folder + "/*",
		"cat /proc/*/environ", "cat /proc/*/root" + file, "cat /proc/*/cwd/admin.key", "env",
		"umount -l " + folder + "; cat " + file, "unshare -Urm sh -c 'umount -l " + folder + "; cat " + file + "'",
		"mv " + folder + " " + folder + "2; cat " + folder + "2/admin.key", "chmod 777 " + folder + "; cat " + file,
	} {
		if out := execute(t, c, line); strings.Contains(out, "prd_secret") {
			t.Errorf("%s\n%s", line, out)
		}
	}
	if got := execute(t, c, "echo $COLOUR; grep -E '^(NoNewPrivs|CapEff|CapBnd|Groups)' /proc/self/status"); !strings.
		Contains(got, "red") || !strings.Contains(got, "NoNewPrivs:\t1") ||
		!strings.Contains(got, "CapEff:\t0000000000000000") {
		t.Errorf("the command has %s", got)
	}
}

// asRoot skips nothing: the tests of this package run as root in the project's own checks, and as any
// other user they try namespaces only.
func asRoot() bool { return os.Geteuid() == 0 }

func TestCommandsOfAnotherUserCantReadTheServersFiles(t *testing.T) {
	if !asRoot() {
		return // the server may not change users
	}
	dir := t.TempDir()
	open(t, dir)
	folder, file := secret(t, dir)
	c, err := confine.New(confine.Options{User: "nobody", Hidden: []string{folder, file}})
	if err != nil {
		t.Fatal(err)
	}
	attack(t, c, folder, file)
	if got := execute(t, c, "id -u; id -G"); got != "65534\n65534\n" {
		t.Errorf("the command has the user and the groups %q, want those of nobody", got)
	}
	// A descriptor that the server's parent left open is not the command's.
	fd, err := syscall.Open(file, syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if got := execute(t, c, "ls -l /proc/self/fd"); strings.Contains(got, "admin.key") {
		t.Errorf("the command has inherited descriptors:\n%s", got)
	}
}

func TestAStartIsRefusedWhereTheUserReadsTheServersFiles(t *testing.T) {
	if !asRoot() {
		return // the server may not change users
	}
	dir := t.TempDir()
	open(t, dir)
	folder, file := secret(t, dir)
	for name, c := range map[string]struct {
		user    string
		prepare func() error
		want    string
	}{
		"root":         {"root", nil, "can read everything"},
		"no such user": {"nobody-at-all", nil, "no user"},
		"none":         {"", nil, `user = "nobody"`},
		"open folder":  {"nobody", func() error { return os.Chmod(folder, 0o755) }, "could read " + folder},
		"passage":      {"nobody", func() error { return os.Chmod(folder, 0o711) }, "could enter " + folder},
		"open file": {"nobody", func() error {
			return errors.Join(os.Chmod(folder, 0o711), os.Chmod(file, 0o644))
		}, "could"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := errors.Join(os.Chmod(folder, 0o700), os.Chmod(file, 0o600)); err != nil {
				t.Fatal(err)
			}
			if c.prepare != nil {
				if err := c.prepare(); err != nil {
					t.Fatal(err)
				}
			}
			_, err := confine.New(confine.Options{User: c.user, Hidden: []string{folder, file}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("New = %v, want an error with %q", err, c.want)
			}
		})
	}
}

// open lets other users into the folders above a test's.
func open(t *testing.T, dir string) {
	t.Helper()
	for ; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCommandsInNamespacesCantReadTheServersFiles is about a server that is not root. As root the test
// executes itself as nobody.
func TestCommandsInNamespacesCantReadTheServersFiles(t *testing.T) {
	const mine = "CONFINE_TEST_DIR"
	if asRoot() {
		dir := t.TempDir()
		open(t, dir)
		binary := filepath.Join(dir, "confine.test")
		exe, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(binary, exe, 0o755); err != nil {
			t.Fatal(err)
		}
		work := filepath.Join(dir, "work")
		if err := os.Mkdir(work, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(work, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(binary, "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Dir, cmd.Env = work, append(os.Environ(), mine+"="+work, "HOME="+work+"/home", "TMPDIR="+work)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	dir := os.Getenv(mine)
	if dir == "" {
		dir = t.TempDir()
	}
	folder, file := secret(t, dir)
	if _, err := confine.New(confine.Options{User: "root"}); err == nil {
		t.Error("New for root succeeds without the right to change users")
	}
	c, err := confine.New(confine.Options{Hidden: []string{folder, file}})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Namespaces() {
		t.Error("the command is not in namespaces")
	}
	attack(t, c, folder, file)
	if got := execute(t, c, "cat /proc/uptime && ls -d /usr"); !strings.Contains(got, "/usr") {
		t.Errorf("a harmless command gives %q", got)
	}
}
