// Package keyfile reads and writes a file with an API key, such as admin.key. Only the file's owner
// may have access to it. Package embedded and the commands use it; it knows nothing of stores and
// servers.
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

// Read reads a key from its file. It refuses a file that others than its owner can access, unless
// insecure is set.
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
	// Windows has no such modes.
	if mode := info.Mode().Perm(); mode&0o077 != 0 && !insecure && runtime.GOOS != "windows" {
		return "", fmt.Errorf("%s is open to others (its mode is %#o): chmod 600 %s, "+
			"and think about who has read it; --insecure-key-file permits it", path, mode, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<16))
	return strings.TrimSpace(string(b)), err
}

// Write writes a secret to a file that only its owner can access. The file is replaced atomically
// and synced, because the secret exists nowhere else.
func Write(path, secret string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // has the mode 0600
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
	return errors.Join(dir.Sync(), dir.Close())
}
