package webhook

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

var (
	one = "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	two = "whsec_" + base64.StdEncoding.EncodeToString([]byte("fedcba9876543210fedcba9876543210"))
)

// verify checks a signature with the reference implementation.
func verify(t *testing.T, secret string, h http.Header, body []byte) error {
	t.Helper()
	wh, err := standard.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return wh.Verify(body, h)
}

func signed(t *testing.T, secrets []string, at time.Time, body []byte) http.Header {
	t.Helper()
	s, err := Sign(secrets, "dlv_1", at, body)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	h.Set("webhook-id", "dlv_1")
	h.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	h.Set("webhook-signature", s)
	return h
}

func TestReferenceImplementationVerifiesSignatures(t *testing.T) {
	body := []byte(`{"type":"run:completed","data":{"name":"Ünïcode"}}`)
	h := signed(t, []string{one}, time.Now(), body)
	if err := verify(t, one, h, body); err != nil {
		t.Fatalf("the right secret: %v", err)
	}
	if verify(t, two, h, body) == nil {
		t.Error("another secret verifies the message")
	}
	for i := range body {
		flipped := append([]byte{}, body...)
		flipped[i] ^= 1
		if verify(t, one, h, flipped) == nil {
			t.Fatalf("the message verifies with byte %d changed", i)
		}
	}
	for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		h := h.Clone()
		v := []byte(h.Get(name))
		v[len(v)-2] ^= 1
		h.Set(name, string(v))
		if verify(t, one, h, body) == nil {
			t.Errorf("the message verifies with %s changed", name)
		}
	}
	if verify(t, one, signed(t, []string{one}, time.Now().Add(-time.Hour), body), body) == nil {
		t.Error("a message of an hour ago verifies")
	}
}

func TestBothSecretsSignAfterARotation(t *testing.T) {
	body := []byte(`{}`)
	h := signed(t, []string{two, one}, time.Now(), body)
	for _, s := range []string{one, two} {
		if err := verify(t, s, h, body); err != nil {
			t.Errorf("secret %s: %v", s, err)
		}
	}
}

func TestErrorDoesNotContainTheSecret(t *testing.T) {
	for _, secrets := range [][]string{nil, {""}, {"whsec_"}, {"whsec_not base64"}, {one, "secret!"}} {
		s, err := Sign(secrets, "dlv_1", time.Now(), nil)
		if err == nil || s != "" {
			t.Errorf("Sign with %q = %q, want an error", secrets, s)
		} else if strings.Contains(err.Error(), "base64") || strings.Contains(err.Error(), "secret!") {
			t.Errorf("Sign with %q: the error contains the secret: %v", secrets, err)
		}
	}
}
