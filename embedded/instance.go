package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/server/store"
)

// instanceFile is the file of a node's instance, in its data folder. A server on SQLite has its
// instance in the store.
const instanceFile = "instance.json"

// An instance is a server over its restarts. Its id is part of the names of the workers inside the
// server, so that the next start recognizes the leases of the last one. A name alone would not do:
// workers of tenants choose theirs.
type instance struct {
	id string
	// returns is set if the id was in use before and no other process can use it now.
	returns bool
	// lock is held while the id is in use. It is nil if the store's lock does that, or the id is
	// new.
	lock *os.File
}

// openInstance finds the instance of a server. On SQLite it is in the store, which one process has
// locked. On a shared store it is in the data folder. A node without a folder is a new instance at
// each start.
func (opt *Options) openInstance(st *store.Store) (instance, error) {
	switch {
	case opt.Store == "" && opt.Dir != "":
		op := &instanceOp{}
		err := st.Do(context.Background(), op)
		return instance{id: op.id, returns: true}, err
	case opt.Store != "" && opt.Dir != "":
		return readInstance(opt.Dir, opt.Logger), nil
	}
	return instance{id: newInstanceID()}, nil
}

// newInstanceID makes an id of letters and digits.
func newInstanceID() string { return strings.ToLower(rand.Text()[:10]) }

func (i *instance) close() {
	if i.lock != nil {
		i.lock.Close()
	}
}

// instanceOp reads or makes the instance of a store with one server.
type instanceOp struct{ id string }

func (*instanceOp) Needs() []store.Ref { return nil }

func (op *instanceOp) Do(tx *store.Tx) (err error) {
	if op.id, err = tx.Meta.Get("instance"); err == nil && op.id == "" {
		op.id = newInstanceID()
		tx.Meta.Claim("instance", op.id)
	}
	return err
}

// instanceRecord is the content of an instance's file. A folder may be copied while its node lives.
// The copy must not take the runs of that node, so the record says where the file is.
type instanceRecord struct {
	Instance string        `json:"instance"`
	At       instancePlace `json:"at"`
}

type instancePlace struct {
	Host    string `json:"host"`
	Machine string `json:"machine"`
	Folder  string `json:"folder"`
	Inode   uint64 `json:"inode"`
}

// readInstance reads the instance of a node from its folder, or makes one. It is a new one if the
// file is that of another place or another node has it open. An error makes a new one, too: the
// node then works without recognizing its former leases.
func readInstance(dir string, log *slog.Logger) instance {
	made := instance{id: newInstanceID()}
	f, err := os.OpenFile(filepath.Join(dir, instanceFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return unkept(made, log, err)
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil { // another node on the same folder
		f.Close()
		return made
	}
	at, err := placeOf(f, dir)
	if err != nil {
		f.Close()
		return unkept(made, log, err)
	}
	made.lock = f
	var rec instanceRecord
	text, err := io.ReadAll(io.LimitReader(f, 16<<10))
	if err == nil && json.Unmarshal(text, &rec) == nil && rec.At == at && len(rec.Instance) == len(made.id) {
		made.id, made.returns = rec.Instance, true
		return made
	}
	if err == nil {
		err = writeInstance(f, instanceRecord{made.id, at})
	}
	if err != nil {
		return unkept(made, log, err)
	}
	return made
}

// unkept logs that an instance is not kept for the next start.
func unkept(i instance, log *slog.Logger, err error) instance {
	if log != nil {
		log.Warn("no instance is kept: after a crash, runs of the server's own workers wait for the end of "+
			"their leases", "error", err)
	}
	return i
}

// writeInstance replaces the content of the file in place. A file that is cut off by a crash is not
// read, and the next start is a new instance.
func writeInstance(f *os.File, rec instanceRecord) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return f.Sync()
}

// placeOf tells where an instance's file is. A copy of it differs in one of these at least.
func placeOf(f *os.File, dir string) (at instancePlace, err error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return at, err
	}
	if at.Folder, err = filepath.Abs(dir); err != nil {
		return at, err
	}
	if real, err := filepath.EvalSymlinks(at.Folder); err == nil {
		at.Folder = real
	}
	if at.Host, err = os.Hostname(); err != nil {
		return at, err
	}
	id, _ := os.ReadFile("/etc/machine-id") // not every system has one
	at.Machine, at.Inode = strings.TrimSpace(string(id)), stat.Ino
	return at, nil
}
