package confine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// helperName is the first argument of the helper: no program is called like that by chance.
	helperName = "perdure: confined command"
	// self is the executable of this process, also after the file was replaced.
	self = "/proc/self/exe"
	// probeTimeout limits the probe.
	probeTimeout = 30 * time.Second
)

// A task is what the helper does.
type task struct {
	Namespaces bool   `json:"namespaces,omitempty"`
	UID        int    `json:"uid"`
	GID        int    `json:"gid"`
	Hidden     []path `json:"hidden,omitempty"`
	// Dir is the working directory of the command.
	Dir string `json:"dir,omitempty"`
	// Probe makes the helper look at what it can read, instead of executing a command.
	Probe bool `json:"probe,omitempty"`
}

// New returns a confinement that has been tried out. Its error says what to change.
func New(opt Options) (*Confinement, error) {
	c := &Confinement{apply: apply, home: "/"}
	switch {
	case opt.User != "":
		if err := c.lookUp(opt.User); err != nil {
			return nil, err
		}
	case os.Geteuid() == 0:
		return nil, errors.New(`the server runs as root, and says no user for its commands: say user = "nobody", ` +
			"or another one that can't read the server's files")
	default:
		c.namespaces, c.uid, c.gid = true, os.Geteuid(), os.Getegid()
		if home, err := os.UserHomeDir(); err == nil && home != "/" { // it may have keys of other programs
			opt.Hidden = append(slices.Clone(opt.Hidden), home)
		}
	}
	if err := c.hide(opt.Hidden); err != nil {
		return nil, err
	}
	return c, c.probe()
}

// lookUp finds a user by name or number.
func (c *Confinement) lookUp(name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return fmt.Errorf("user: this machine has no user %q", name)
		}
	}
	if c.uid, err = strconv.Atoi(u.Uid); err == nil {
		c.gid, err = strconv.Atoi(u.Gid)
	}
	switch {
	case err != nil:
		return fmt.Errorf("user: %w", err)
	case c.uid == 0 || c.gid == 0:
		return fmt.Errorf("user: %s is root, or has its group, and can read everything", name)
	case c.uid == os.Geteuid():
		return fmt.Errorf("user: %s is the server's own user, and can read what the server can", name)
	}
	if u.HomeDir != "" {
		c.home = u.HomeDir
	}
	return nil
}

// hide resolves the hidden paths. Those that do not exist are left out.
func (c *Confinement) hide(paths []string) error {
	for _, p := range paths {
		if p == "" {
			continue
		}
		abs, err := filepath.Abs(p)
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			if c.namespaces && errors.Is(err, fs.ErrPermission) {
				continue // what this process can't reach, its command can't either
			}
			return fmt.Errorf("hide %s: %w", p, err)
		}
		var st syscall.Stat_t
		if err := syscall.Stat(abs, &st); err != nil {
			return fmt.Errorf("hide %s: %w", p, err)
		}
		if abs == "/" {
			return fmt.Errorf("hide %s: it is the root of the file system", p)
		}
		c.hidden = append(c.hidden, path{Path: abs, Dev: uint64(st.Dev), Ino: st.Ino,
			Dir: st.Mode&syscall.S_IFMT == syscall.S_IFDIR})
	}
	// A folder comes before what is in it.
	slices.SortFunc(c.hidden, func(a, b path) int { return cmp.Compare(len(a.Path), len(b.Path)) })
	c.hidden = slices.CompactFunc(c.hidden, func(a, b path) bool { return a.Path == b.Path })
	return nil
}

// probe executes the helper in the confinement, and has it say what it can read.
func (c *Confinement) probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = []string{}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := c.apply(c, cmd, true); err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		what := "in namespaces of their own"
		if !c.namespaces {
			what = fmt.Sprintf("as the user with the number %d", c.uid)
		}
		if text := strings.TrimSpace(errs.String()); text != "" {
			err = errors.New(text)
		}
		return fmt.Errorf("%w: executing them %s: %w", ErrUnavailable, what, err)
	}
	var found []string
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		return fmt.Errorf("%w: the probe gave no answer: %w", ErrUnavailable, err)
	}
	if len(found) > 0 {
		return fmt.Errorf("its commands could reach what is the server's: %s", strings.Join(found, ", "))
	}
	return nil
}

// apply makes a command start the helper, which executes it.
func apply(c *Confinement, cmd *exec.Cmd, probe bool) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	program := cmd.Path
	if !probe {
		abs, err := filepath.Abs(program) // the helper changes the folder
		if err != nil {
			return err
		}
		program = abs
	}
	if cmd.Dir != "" && !filepath.IsAbs(cmd.Dir) {
		return fmt.Errorf("the working directory %s is no absolute path", cmd.Dir)
	}
	t, err := json.Marshal(task{Namespaces: c.namespaces, UID: c.uid, GID: c.gid, Hidden: c.hidden,
		Dir: cmp.Or(cmd.Dir, "/"), Probe: probe})
	if err != nil {
		return err
	}
	cmd.Args = append([]string{helperName, string(t), program}, cmd.Args...)
	cmd.Path, cmd.Dir = self, "/"
	env := []string{"HOME=" + c.home}
	for _, e := range cmd.Env {
		if !strings.HasPrefix(e, "HOME=") {
			env = append(env, e)
		}
	}
	cmd.Env = env
	attr := &syscall.SysProcAttr{Setsid: true} // a session without the server's terminal
	if c.namespaces {
		attr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC
		// The helper keeps what it takes to mount, and gives it up before it executes the command.
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: c.uid, HostID: c.uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: c.gid, HostID: c.gid, Size: 1}}
	}
	cmd.SysProcAttr = attr
	return nil
}
