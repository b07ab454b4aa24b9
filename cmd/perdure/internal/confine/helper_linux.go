package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// failed is the exit status of a helper that could not execute its command, as that of a shell.
const failed = 126

// Enter is called first by main. In a helper it executes the command and does not return; in any other
// process it does nothing.
func Enter() {
	if len(os.Args) < 3 || os.Args[0] != helperName {
		return
	}
	// Capabilities and no_new_privs belong to a thread. The one that executes the command has to be the
	// one that gave them up.
	runtime.LockOSThread()
	err := help(os.Args[1], os.Args[2], os.Args[3:])
	fmt.Fprintln(os.Stderr, err)
	os.Exit(failed)
}

// help confines this process, and then is the command.
func help(text, program string, args []string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	// Descriptors that the server's own parent left open without the flag would be the command's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	var err error
	if t.Namespaces {
		err = cover(t.Hidden)
	} else {
		err = t.changeUser()
	}
	if err == nil {
		err = dropCapabilities()
	}
	if err != nil {
		return err
	}
	if t.Probe {
		return t.look()
	}
	if err := os.Chdir(t.Dir); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", program, syscall.Exec(program, args, os.Environ()))
}

// cover mounts something empty over the hidden paths, and a /proc that shows this process alone.
// Another process of the same user would show the hidden paths below its /proc/PID/root.
func cover(hidden []path) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, p := range hidden {
		var st unix.Stat_t
		if err := unix.Stat(p.Path, &st); err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
				continue // a folder above it is covered, or it is out of reach
			}
			return fmt.Errorf("cover %s: %w", p.Path, err)
		}
		var err error
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Mount("none", p.Path, "tmpfs", flags|unix.MS_RDONLY, "mode=0555,size=4k")
		} else {
			err = unix.Mount("/dev/null", p.Path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("cover %s: %w", p.Path, err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return fmt.Errorf("mount a /proc of its own: %w", err)
	}
	return nil
}

// changeUser gives up the groups and the user of the server.
func (t *task) changeUser() error {
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("drop the groups: %w", err)
	}
	if err := syscall.Setresgid(t.GID, t.GID, t.GID); err != nil {
		return fmt.Errorf("change the group: %w", err)
	}
	if err := syscall.Setresuid(t.UID, t.UID, t.UID); err != nil {
		return fmt.Errorf("change the user: %w", err)
	}
	if os.Getuid() != t.UID || os.Getgid() != t.GID || syscall.Setuid(0) == nil {
		return errors.New("the user was not changed for good")
	}
	return nil
}

// dropCapabilities gives up all capabilities of this thread.
func dropCapabilities() error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0) // no_new_privs has the same effect
	}
	// Kernels before 4.3 have no ambient set.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// look writes what this process can reach of what is hidden, as a list.
func (t *task) look() error {
	found := []string{}
	for _, p := range t.Hidden {
		var st unix.Stat_t
		if unix.Stat(p.Path, &st) != nil || uint64(st.Dev) != p.Dev || st.Ino != p.Ino {
			continue // it can't be found, or something else is there
		}
		for _, way := range []struct {
			mode uint32
			what string
		}{{unix.R_OK, "read"}, {unix.W_OK, "change"}, {unix.X_OK, "enter"}} {
			if (p.Dir || way.mode != unix.X_OK) && unix.Access(p.Path, way.mode) == nil {
				found = append(found, fmt.Sprintf("they could %s %s", way.what, p.Path))
				break
			}
		}
	}
	if t.Namespaces {
		if name, err := os.Readlink("/proc/self"); err != nil || os.Getpid() != 1 || name != "1" {
			found = append(found, "they could see other processes")
		}
	} else if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", os.Getppid())); err == nil {
		found = append(found, "they could read its environment")
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}
