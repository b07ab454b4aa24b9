package perdure_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// privatePEM returns the private key whose seed is 32 times the same byte.
func privatePEM(t testing.TB, seed byte) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func signer(t testing.TB, seeds ...byte) *perdure.Signer {
	t.Helper()
	var keys [][]byte
	for _, s := range seeds {
		keys = append(keys, privatePEM(t, s))
	}
	s, err := perdure.NewSigner(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A vector is the test vector of docs/security.md: a signed run as a grant has it, and the signed
// bytes.
type vector struct {
	PublicKey string `json:"public_key"`
	Canonical string `json:"canonical"`
	Grant     struct {
		Tenant     perdure.TenantID  `json:"tenant"`
		RunID      perdure.RunID     `json:"run_id"`
		Kind       string            `json:"kind"`
		Queue      string            `json:"queue"`
		Input      json.RawMessage   `json:"input"`
		DeadlineAt perdure.Instant   `json:"deadline_at"`
		Signature  perdure.Signature `json:"signature"`
	} `json:"grant"`
}

// The vector is first verified as the page describes, without this package, and then by it.
func TestSignatureMatchesDocumentedVector(t *testing.T) {
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```json vector\n")
	text, _, _ = strings.Cut(text, "```")
	var v vector
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(v.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	value, err := base64.StdEncoding.DecodeString(v.Grant.Signature.Value)
	if err != nil || !ed25519.Verify(raw, []byte(v.Canonical), value) {
		t.Errorf("the vector of docs/security.md#signed-runs does not verify (base64: %v)", err)
	}
	s := signer(t, 7)
	r := &perdure.SignedRun{Tenant: v.Grant.Tenant, RunID: v.Grant.RunID, Kind: v.Grant.Kind, Queue: v.Grant.Queue,
		Input: v.Grant.Input, DeadlineAt: v.Grant.DeadlineAt}
	if got := s.Sign(r); got != v.Grant.Signature {
		t.Errorf("Sign = %+v, want the vector's %+v", got, v.Grant.Signature)
	}
	if err := s.Trust().Verify(r, v.Grant.Signature); err != nil {
		t.Errorf("Verify of the vector: %v", err)
	}
}

func TestFirstKeySignsAndAllKeysVerify(t *testing.T) {
	r := &perdure.SignedRun{Tenant: "acme", RunID: "r", Kind: "job", Queue: "default", Input: []byte(`1`),
		DeadlineAt: 1}
	old := signer(t, 1)
	both := signer(t, 2, 1)
	if s := both.Sign(r); s.KeyID != both.KeyID() || s.KeyID == old.KeyID() || both.Trust().Verify(r, s) != nil ||
		old.Trust().Verify(r, s) == nil {
		t.Errorf("signed by %s, want the first key %s; the old key alone must refuse it", s.KeyID, both.KeyID())
	}
	if err := both.Trust().Verify(r, old.Sign(r)); err != nil {
		t.Errorf("both keys, signed by the old one: %v", err)
	}
	// A file with the PEM blocks of the public halves, and other text between them, verifies too.
	var file []byte
	for _, k := range both.Trust().Keys() {
		file = append(append(file, "# key "+k.ID+"\n"...), k.PEM()...)
	}
	trust, err := perdure.ParseTrust(file)
	if err != nil || trust.Verify(r, old.Sign(r)) != nil || len(trust.Keys()) != 2 ||
		trust.Keys()[0].ID != both.KeyID() {
		t.Errorf("ParseTrust = %v, %v, want both keys, the first one %s", trust, err, both.KeyID())
	}
}

func TestWhitespaceBetweenTokensIsNotSigned(t *testing.T) {
	s := signer(t, 1)
	one := &perdure.SignedRun{RunID: "r", Input: []byte(`{ "a" : "b c" }`)}
	two := &perdure.SignedRun{RunID: "r", Input: []byte(`{"a":"b c"}`)}
	if err := s.Trust().Verify(two, s.Sign(one)); err != nil {
		t.Errorf("the same input with other white space: %v", err)
	}
	two.Input = []byte(`{"a":"bc"}`)
	if s.Trust().Verify(two, s.Sign(one)) == nil {
		t.Error("an input with a changed string verifies")
	}
}

func TestOriginOfRetryIsSigned(t *testing.T) {
	s := signer(t, 1)
	plain := perdure.SignedRun{RunID: "r", Kind: "job", Queue: "default", Input: []byte(`1`), DeadlineAt: 1}
	own, retry, other := plain, plain, plain
	own.OriginRunID, retry.OriginRunID, other.OriginRunID = "r", "first", "second"
	if err := s.Trust().Verify(&own, s.Sign(&plain)); err != nil {
		t.Errorf("a run that is its own origin, signed as before origins were: %v", err)
	}
	for name, changed := range map[string]*perdure.SignedRun{"none": &plain, "own": &own, "another": &other} {
		if s.Trust().Verify(changed, s.Sign(&retry)) == nil {
			t.Errorf("a retry whose origin was changed to %s verifies", name)
		}
	}
}

func TestBadKeysAreRefused(t *testing.T) {
	good := privatePEM(t, 1)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, _ := x509.MarshalPKCS8PrivateKey(other)
	public, _ := x509.MarshalPKIXPublicKey(other.Public())
	foreign := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	foreignPublic := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	mine := signer(t, 1).Trust().Keys()[0]
	for name, keys := range map[string][][]byte{
		"none": nil, "empty": {nil}, "text": {[]byte("secret")}, "of another kind": {foreign}, "cut off": {good[:60]},
		"two in a file":  {append(bytes.Clone(good), privatePEM(t, 2)...)},
		"the same twice": {good, good}, "a public one": {mine.PEM()},
	} {
		if s, err := perdure.NewSigner(keys...); err == nil || s != nil {
			t.Errorf("NewSigner accepts a key that is %s", name)
		}
	}
	for name, set := range map[string][]byte{
		"empty": nil, "text": []byte("key"), "a private one": good, "of another kind": foreignPublic,
		"the same twice": append(mine.PEM(), mine.PEM()...),
		"broken":         pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}),
	} {
		if trust, err := perdure.ParseTrust(set); err == nil || trust != nil {
			t.Errorf("ParseTrust accepts a set that is %s", name)
		}
	}
}

// A run verifies, and no longer verifies after any change to it or to its signature.
func FuzzSignedRun(f *testing.F) {
	f.Add("acme", "01-2", "job", "default", `{"n":1}`, int64(1893456000000001), uint16(3), byte(1))
	f.Add("a", "b", "c", "d", "", int64(0), uint16(200), byte(0x80))
	f.Add("a", "b", "c", "d", "1", int64(9), uint16(0), byte('\n'))
	f.Add("1:a,", "", "2:b", ",", `[ 1, 2 ]`, int64(-1), uint16(70), byte(255))
	s := signer(f, 1, 2)
	known := s.Trust().Keys()
	f.Fuzz(func(t *testing.T, tenant, run, kind, queue, input string, deadline int64, at uint16, xor byte) {
		r := perdure.SignedRun{Tenant: perdure.TenantID(tenant), RunID: perdure.RunID(run), Kind: kind, Queue: queue,
			Input: []byte(input), DeadlineAt: perdure.Instant(deadline)}
		sig := s.Sign(&r)
		if err := s.Trust().Verify(&r, sig); err != nil {
			t.Fatalf("the unchanged run: %v", err)
		}
		if xor == 0 {
			return
		}
		flip := func(text string) string {
			if text == "" {
				return string(rune(xor))
			}
			b := []byte(text)
			b[int(at)%len(b)] ^= xor
			return string(b)
		}
		changes := map[string]func(r *perdure.SignedRun, s *perdure.Signature){
			"tenant":    func(r *perdure.SignedRun, _ *perdure.Signature) { r.Tenant = perdure.TenantID(flip(tenant)) },
			"run":       func(r *perdure.SignedRun, _ *perdure.Signature) { r.RunID = perdure.RunID(flip(run)) },
			"kind":      func(r *perdure.SignedRun, _ *perdure.Signature) { r.Kind = flip(kind) },
			"queue":     func(r *perdure.SignedRun, _ *perdure.Signature) { r.Queue = flip(queue) },
			"deadline":  func(r *perdure.SignedRun, _ *perdure.Signature) { r.DeadlineAt ^= perdure.Instant(xor) },
			"value":     func(_ *perdure.SignedRun, s *perdure.Signature) { s.Value = flip(s.Value) },
			"more":      func(_ *perdure.SignedRun, s *perdure.Signature) { s.Value += string(rune(xor)) },
			"key":       func(_ *perdure.SignedRun, s *perdure.Signature) { s.KeyID = flip(s.KeyID) },
			"other key": func(_ *perdure.SignedRun, s *perdure.Signature) { s.KeyID = known[1].ID },
			"nothing":   func(_ *perdure.SignedRun, s *perdure.Signature) { *s = perdure.Signature{} },
			"to kind":   func(r *perdure.SignedRun, _ *perdure.Signature) { r.Kind, r.Queue = kind+queue, "" },
		}
		if changed := flip(input); compact(changed) != compact(input) {
			changes["input"] = func(r *perdure.SignedRun, _ *perdure.Signature) { r.Input = []byte(changed) }
		}
		if queue == "" {
			delete(changes, "to kind")
		}
		for what, change := range changes {
			x, y := r, sig
			change(&x, &y)
			if err := s.Trust().Verify(&x, y); perdure.CodeOf(err) != perdure.CodeSignatureInvalid {
				t.Errorf("changed %s: Verify = %v, want %s", what, err, perdure.CodeSignatureInvalid)
			}
		}
	})
}

func compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return text
	}
	return b.String()
}
