package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/keyfile"
)

// checkKeyFile refuses a key file that others can read, before anything is opened.
func (opt Options) checkKeyFile() error {
	if opt.Dir == "" {
		return nil
	}
	if _, err := keyfile.Read(filepath.Join(opt.Dir, KeyFile), opt.InsecureKeyFile); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// A firstKey is the key that the first start of a store has made. PostgreSQL may go away while it is
// stored, so that the outcome is unknown. The next try of the start then asks whether it is there.
type firstKey struct{ secret string }

// findKey returns the platform key of this node: the one of Options, the one in the folder, or a
// new one if this is the first start of the store. It is empty if there is none.
func (s *Server) findKey(opt Options, made *firstKey) (string, error) {
	if opt.Key != "" {
		return opt.Key, s.checkKey(opt.Key, "Options.Key")
	}
	path := filepath.Join(opt.Dir, KeyFile)
	if opt.Dir != "" {
		key, err := keyfile.Read(path, opt.InsecureKeyFile)
		if err == nil {
			return key, s.checkKey(key, path)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	if err := s.makeFirstKey(made); err != nil {
		return "", err
	}
	if made.secret == "" {
		log := s.log
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		log.Warn("no platform key here: the store has had its first start", "missing", path,
			"help", "copy "+KeyFile+" from the folder of the first start, or have another key made: perdure keys "+
				"bootstrap")
		return "", nil
	}
	if opt.Dir == "" {
		return made.secret, nil
	}
	return made.secret, keyfile.Write(path, made.secret)
}

// makeFirstKey makes the first key of the store, unless the store has had one.
func (s *Server) makeFirstKey(made *firstKey) error {
	if made.secret != "" {
		_, err := s.engine.Keys.Authenticate(context.Background(), made.secret)
		if err == nil || perdure.CodeOf(err) != perdure.CodeNotFound {
			return err
		}
	}
	first := &access.Bootstrap{Tenant: DefaultTenant, Name: "admin"}
	by := kernel.Actor{Name: "first start", Platform: true}
	err := s.engine.Do(kernel.WithActor(context.Background(), by), first)
	made.secret = first.Secret // also after an error: it may be stored
	return err
}

// checkKey refuses a key that is not valid in this store.
func (s *Server) checkKey(key, from string) error {
	_, err := s.engine.Keys.Authenticate(context.Background(), key)
	if err != nil && perdure.CodeOf(err) == perdure.CodeNotFound {
		return fmt.Errorf("the key in %s is not valid (revoked, or of other data). If this is the right store, "+
			"move it away and have another one made: perdure keys bootstrap", from)
	}
	return err // an unavailable store
}
