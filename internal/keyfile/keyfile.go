// Package keyfile reads and writes the file of a key, admin.key. The file is for its owner alone. It knows nothing of stores and
// servers: package embedded and the commands call it.
package keyfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Read reads a key from its file. A file that is open to others than its owner is refused, unless insecure permits it.
func Read(path string, insecure bool) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && !insecure && runtime.GOOS != "windows" { // which has no such modes
		return "", fmt.Errorf("%s is open to others (its mode is %#o): chmod 600 %s, and think about who has read it; --insecure-key-file permits it", path, mode, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<16))
	return strings.TrimSpace(string(b)), err
}

// Write writes a secret so that it is there whole or not at all, for its owner alone.
func Write(path, secret string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(secret + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close()) // the store makes no other
}
