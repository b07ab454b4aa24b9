package confine

import (
	"errors"
	"os/exec"
)

// Options configure a Confinement.
type Options struct {
	// User is the name or the number of the user that commands are executed as. Empty means namespaces.
	User string
	// Hidden are files and folders that commands can't read or change.
	Hidden []string
}

// ErrUnavailable means that commands can't be confined here. The wrapped error says why.
var ErrUnavailable = errors.New("commands can't be confined on this machine")

// A Confinement changes commands so that they are executed apart from this process.
type Confinement struct {
	uid, gid   int
	namespaces bool
	home       string
	hidden     []path
	apply      func(c *Confinement, cmd *exec.Cmd, probe bool) error
}

// A path is a file or folder, with what identifies it.
type path struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Dir  bool   `json:"dir,omitempty"`
}

// Apply changes a command. It is called once all other fields of the command are set.
func (c *Confinement) Apply(cmd *exec.Cmd) error { return c.apply(c, cmd, false) }

// Namespaces tells whether commands are in namespaces, with the user of this process.
func (c *Confinement) Namespaces() bool { return c.namespaces }
