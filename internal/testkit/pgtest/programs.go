package pgtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// ErrMissing says that there is no PostgreSQL on this machine, and what to type.
var ErrMissing = errors.New("PostgreSQL is missing: apt-get install postgresql")

// debian is where Debian keeps the programs of each version, away from the search path.
var debian = "/usr/lib/postgresql"

// Find gives the folder with the programs of PostgreSQL: that of the search path, or else the newest of
// Debian's.
func Find() (string, error) {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	installed, err := filepath.Glob(filepath.Join(debian, "*", "bin"))
	if err != nil {
		return "", err
	}
	slices.SortFunc(installed, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	for _, dir := range append(dirs, installed...) {
		if executable(dir, "initdb") && executable(dir, "postgres") {
			return dir, nil
		}
	}
	return "", ErrMissing
}

// version reads 15 from …/15/bin; what is no number is oldest.
func version(dir string) float64 {
	v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(dir)), 64)
	return v
}

func executable(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// owner is who the processes run as: PostgreSQL refuses to run as root, so root runs it as its own user.
// It is nil for everybody else, who run it as themselves.
func owner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user for it (adduser --system "+
			"postgres): %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
