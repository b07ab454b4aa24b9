package embedded_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// keyFile writes a signing key, with that mode.
func keyFile(t *testing.T, letter string, mode os.FileMode) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed([]byte(strings.Repeat(letter, ed25519.SeedSize))))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), letter+".key")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestMissingSigningKeysRefuseStart(t *testing.T) {
	opt := embedded.Options{Dir: t.TempDir(), Store: storetest.Address(t)}
	key := keyFile(t, "a", 0o600)
	opt.SigningKeys = []string{key}
	s := open(t, opt)
	if status, x := call(t, s, "PUT", "/api/admin/tenants/default", `{"require_signatures":true}`); status != 200 {
		t.Fatal(status, x)
	}
	s.Close()
	opt.SigningKeys = nil
	if _, err := embedded.Open(opt); err == nil || !strings.Contains(err.Error(), "tenant default requires") {
		t.Errorf("Open = %v, want that the tenant requires signatures", err)
	}
	opt.SigningKeys = []string{keyFile(t, "b", 0o600), key}
	s = open(t, opt)
	if status, x := call(t, s, "PUT", "/api/admin/tenants/default", `{"require_signatures":false}`); status != 200 {
		t.Fatal(status, x)
	}
	s.Close()
	opt.SigningKeys = nil
	open(t, opt)
}

func TestInvalidSigningKeysAreRefused(t *testing.T) {
	good := keyFile(t, "a", 0o600)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, files := range [][]string{{"/nowhere"}, {text}, {t.TempDir()}, {keyFile(t, "b", 0o644)},
		{good, keyFile(t, "c", 0o640)}, {good, good}, {""}, {"/dev/zero"}} {
		if err := (embedded.Options{SigningKeys: files}).Validate(); err == nil ||
			!strings.HasPrefix(err.Error(), "signing_keys: ") {
			t.Errorf("%v: %v", files, err)
		}
	}
}

// The configuration can require signatures, too: a change of the store does not switch that off.
func TestSigningRequiredNeedsKeys(t *testing.T) {
	key := keyFile(t, "a", 0o600)
	for _, who := range []string{"default", "*"} {
		if err := (embedded.Options{SigningRequired: []string{who}}).Validate(); err == nil ||
			!strings.HasPrefix(err.Error(), "signing_required: ") {
			t.Errorf("%s without a key: %v", who, err)
		}
		s := open(t, embedded.Options{SigningKeys: []string{key}, SigningRequired: []string{who}})
		if status, x := call(t, s, "GET", "/api/admin/tenants/default", ""); status != 200 ||
			!strings.Contains(fmt.Sprint(x), "require_signatures:true") {
			t.Errorf("%s: %d %v", who, status, x)
		}
		if status, x := call(t, s, "PUT", "/api/admin/tenants/default", `{"require_signatures":false}`); status != 409 {
			t.Errorf("%s is switched off: %d %v", who, status, x)
		}
		s.Close()
	}
	for _, bad := range []string{"", "a\x00b", strings.Repeat("x", 2000)} {
		if err := (embedded.Options{SigningKeys: []string{key},
			SigningRequired: []string{bad}}).Validate(); err == nil ||
			!strings.HasPrefix(err.Error(), "signing_required: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
