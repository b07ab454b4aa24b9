package embedded

import (
	"context"
	"fmt"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
)

// signer reads the keys that sign runs. It refuses a file that others can read.
func (opt Options) signer() (*perdure.Signer, error) {
	if len(opt.SigningKeys) == 0 {
		return nil, nil
	}
	keys := make([][]byte, len(opt.SigningKeys))
	for i, file := range opt.SigningKeys {
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("signing_keys: %w", err)
		}
		if !info.Mode().IsRegular() || info.Size() > 1<<16 {
			return nil, fmt.Errorf("signing_keys: %s is no file with a key", file)
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			return nil, fmt.Errorf("signing_keys: %s can be read by others (its mode is %#o): "+
				"chmod 600 it, and think about who has read it", file, mode)
		}
		if keys[i], err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("signing_keys: %w", err)
		}
		if _, err := perdure.NewSigner(keys[i]); err != nil {
			return nil, fmt.Errorf("signing_keys: %s is no Ed25519 private key in PEM (PKCS #8)", file)
		}
	}
	s, err := perdure.NewSigner(keys...)
	if err != nil {
		return nil, fmt.Errorf("signing_keys: %w", err)
	}
	return s, nil
}

// signedTenants returns the tenants of SigningRequired.
func (opt Options) signedTenants() []perdure.TenantID {
	list := make([]perdure.TenantID, len(opt.SigningRequired))
	for i, t := range opt.SigningRequired {
		list[i] = perdure.TenantID(t)
	}
	return list
}

// checkSigner refuses to start without a signing key if the store has a tenant whose runs have to
// be signed. None of its runs could be accepted or handed over, and nothing would show the reason.
func checkSigner(e *engine.Engine) error {
	if e.Signer() != nil {
		return nil
	}
	t, err := e.Tenants.AnySigned(context.Background())
	if err == nil && t != "" {
		err = fmt.Errorf("signing_keys: tenant %s requires that its runs are signed, and there is no key: "+
			"give the one that signed them, or a new one (perdure keys signing new)", t)
	}
	return err
}
