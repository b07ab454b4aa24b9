package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/embedded"
)

// A store whose root secret is sealed can be opened only with the key, by the server and offline.
func TestSealedStoreNeedsItsKey(t *testing.T) {
	dir := t.TempDir()
	data, key, other := filepath.Join(dir, "data"), filepath.Join(dir, "seal.key"), filepath.Join(dir, "other.key")
	for file, text := range map[string]string{key: strings.Repeat("ab", 32) + "\n", other: strings.Repeat("cd", 32)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(keys ...string) error {
		t.Helper()
		srv, err := embedded.Open(embedded.Options{Dir: data, SealKeys: keys})
		if err == nil {
			err = srv.Close()
		}
		return err
	}
	if err := open("file:" + key); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(data, "perdure.db*")) // the pattern is well-formed
	sealed := false
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sealed = sealed || bytes.Contains(b, []byte("secretsealed:v1:")) || bytes.Contains(b, []byte("sealed:v1:"))
	}
	if !sealed {
		t.Errorf("no file of %v has a sealed root secret", files)
	}
	for name, keys := range map[string][]string{"give that key": nil,
		"none of the seal_keys is that one": {"file:" + other}, "is not set": {"env:PERDURE_TEST_NO_SUCH_KEY"},
		"does not hold 32 bytes":            {"file:" + filepath.Join(data, embedded.KeyFile)},
		"has no place in the configuration": {strings.Repeat("ab", 32)}} {
		if err := open(keys...); err == nil || !strings.Contains(err.Error(), name) ||
			strings.Contains(err.Error(), strings.Repeat("ab", 32)) {
			t.Errorf("start with the keys %v: %v; want %q", keys, err, name)
		}
	}
	t.Setenv("PERDURE_DATA", data)
	_, stderr := mustRun(t, 1, "secret", "rotate")
	has(t, stderr, "give that key")
	stdout, _ := mustRun(t, 0, "secret", "rotate", "--seal-keys", "file:"+key)
	has(t, stdout, "new root secret")
	t.Setenv("PERDURE_TEST_SEAL", strings.Repeat("cd", 32))
	if err := open("env:PERDURE_TEST_SEAL", "file:"+key); err != nil {
		t.Errorf("start with a new key before the old one: %v", err)
	}
	if err := open("file:" + other); err != nil {
		t.Errorf("start with the new key alone: %v", err)
	}
	mustRun(t, 2, "secret")
}
