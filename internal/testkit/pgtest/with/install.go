package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// noCluster tells Debian's package not to create and start a cluster of its own when it is installed.
const noCluster = "/etc/postgresql-common/createcluster.d/perdure.conf"

// aptTurn is locked by whoever of us installs something; the Makefile does the same.
const aptTurn = "/var/cache/apt/perdure.lock"

// install makes sure that there is a PostgreSQL: root on Debian installs it, anybody else is told how to.
func install() error {
	_, err := pgtest.Find()
	if !errors.Is(err, pgtest.ErrMissing) || os.Geteuid() != 0 {
		return err
	}
	apt, lookErr := exec.LookPath("apt-get")
	if lookErr != nil {
		return err
	}
	// Another clone may be at it. The lock is let go when this process ends.
	turn, lockErr := os.OpenFile(aptTurn, os.O_CREATE|os.O_RDONLY, 0o644)
	if lockErr != nil {
		return lockErr
	}
	defer turn.Close()
	if err := syscall.Flock(int(turn.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("waiting for %s: %w", aptTurn, err)
	}
	if _, err := pgtest.Find(); !errors.Is(err, pgtest.ErrMissing) {
		return err
	}
	fmt.Fprintln(os.Stderr, "with: installing PostgreSQL")
	if err := os.MkdirAll(filepath.Dir(noCluster), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(noCluster, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"update"}, {"install", "-y", "--no-install-recommends", "postgresql"}} {
		cmd := exec.Command(apt, append([]string{"-q", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300"},
			args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", args[0], err)
		}
	}
	_, err = pgtest.Find()
	return err
}
