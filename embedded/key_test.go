package embedded_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// platformKeys counts the platform keys of a server's store.
func platformKeys(t *testing.T, s *embedded.Server) (n int) {
	t.Helper()
	_, list := call(t, s, "GET", "/api/v1/keys", "")
	for _, k := range list["keys"].([]any) {
		if k.(map[string]any)["platform"] == true {
			n++
		}
	}
	return n
}

func TestLaterStartsOfAStoreMakeNoKey(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	opt := embedded.Options{Dir: dir, Store: storetest.Address(t)}
	s := open(t, opt)
	key := s.Key()
	s.Close()
	file := filepath.Join(dir, embedded.KeyFile)
	if opt.Store != "" {
		opt.Dir = t.TempDir() // another folder of the same store
	} else if err := os.Remove(file); err != nil { // a folder whose key is lost
		t.Fatal(err)
	}
	opt.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s = open(t, opt)
	if s.Key() != "" {
		t.Errorf("a later start of the store has the key %.17s…, want none", s.Key())
	}
	if _, err := os.Stat(filepath.Join(opt.Dir, embedded.KeyFile)); err == nil {
		t.Errorf("a later start of the store writes %s", embedded.KeyFile)
	}
	if said := log.String(); strings.Count(said, "no platform key here") != 1 ||
		!strings.Contains(said, "perdure keys bootstrap") || strings.Contains(said, key) {
		t.Errorf("the log says %s", said)
	}
	s.Close()
	opt.Key = key
	if s = open(t, opt); s.Key() != key || platformKeys(t, s) != 1 {
		t.Errorf("the store has %d platform keys, want 1", platformKeys(t, s))
	}
}

func TestTwoFirstStartsAtOnceMakeOneKey(t *testing.T) {
	const nodes = 3
	opt := embedded.Options{Store: pgtest.New(t)}
	servers := make([]*embedded.Server, nodes)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			var err error
			if servers[i], err = embedded.Open(opt); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	made := 0
	for _, s := range servers {
		if s == nil {
			continue
		}
		defer s.Close()
		if s.Key() != "" {
			if made++; platformKeys(t, s) != 1 {
				t.Errorf("the store has %d platform keys, want 1", platformKeys(t, s))
			}
		}
	}
	if made != 1 {
		t.Errorf("%d nodes have made a key, want 1", made)
	}
}

func TestReadableKeyFileRefusesStart(t *testing.T) {
	dir := t.TempDir()
	opt := embedded.Options{Dir: dir, Store: storetest.Address(t)}
	open(t, opt).Close()
	file := filepath.Join(dir, embedded.KeyFile)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o601} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := embedded.Open(opt); err == nil || !strings.Contains(err.Error(), "chmod 600 "+file) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	opt.InsecureKeyFile = true
	open(t, opt).Close()
	opt.InsecureKeyFile = false
	if err := os.Chmod(file, 0o400); err != nil {
		t.Fatal(err)
	}
	open(t, opt).Close()
}
