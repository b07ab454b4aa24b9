package embedded

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/store"
)

// sealKeys reads the keys that seal the store's root secret. Its errors have no key.
func (opt Options) sealKeys() ([][]byte, error) {
	var keys [][]byte
	for _, source := range opt.SealKeys {
		text, err := readSource(strings.TrimSpace(source))
		if err != nil {
			return nil, fmt.Errorf("seal_keys: %w", err)
		}
		key, err := hex.DecodeString(text)
		if err != nil {
			key, err = base64.StdEncoding.DecodeString(text)
		}
		if err != nil || len(key) != access.SealKeySize {
			return nil, fmt.Errorf("seal_keys: %s does not hold %d bytes in hexadecimal digits or base64 "+
				"(openssl rand -hex %d makes some)", source, access.SealKeySize, access.SealKeySize)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readSource reads the text that env:NAME or file:PATH names. It refuses a file that others can
// read.
func readSource(source string) (string, error) {
	kind, name, _ := strings.Cut(source, ":")
	switch {
	case kind == "env" && name != "":
		text, ok := os.LookupEnv(name)
		if !ok {
			return "", fmt.Errorf("%s: the variable is not set", source)
		}
		return strings.TrimSpace(text), nil
	case kind == "file" && name != "":
		info, err := os.Stat(name)
		if err != nil {
			return "", fmt.Errorf("%s: %w", source, err)
		}
		if !info.Mode().IsRegular() || info.Size() > 1<<12 {
			return "", fmt.Errorf("%s: is no file with a key", source)
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			return "", fmt.Errorf("%s: can be read by others (its mode is %#o): "+
				"chmod 600 it, and think about who has read it", source, mode)
		}
		b, err := os.ReadFile(name)
		return strings.TrimSpace(string(b)), err
	}
	// The text is not repeated: it may be a key that was written in place of its name.
	return "", errors.New("a key is named as env:NAME or file:PATH; its value has no place in the configuration")
}

// RotateSecret gives a store a new root secret. No server may run on the store. It returns the
// webhooks whose secrets are derived from an older one. These stay valid until each webhook is
// rotated.
func RotateSecret(opt Options) (old []string, err error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	keys, err := opt.sealKeys()
	if err != nil {
		return nil, err
	}
	sopt := store.Options{URL: opt.Store, Logger: opt.Logger}
	if opt.Store == "" {
		sopt.Path = filepath.Join(opt.Dir, "perdure.db")
		if _, err := os.Stat(sopt.Path); err != nil {
			return nil, fmt.Errorf("there is no data in %s: %w", opt.Dir, err)
		}
	}
	st, err := store.Open(sopt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	e, err := engine.New(st, engine.Options{Logger: opt.Logger, SealKeys: keys})
	if err != nil {
		return nil, err
	}
	op := &access.RotateSecret{}
	if err := e.Do(context.Background(), op); err != nil {
		return nil, err
	}
	for _, w := range op.Old {
		old = append(old, w.String())
	}
	return old, nil
}
