package tlscert

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/tlstest"
)

// files writes a certificate and its key, and returns their paths and the time of expiry.
func files(t *testing.T) (ca *tlstest.CA, cert, key string, expires time.Time) {
	t.Helper()
	ca, dir := tlstest.New(t), t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	expires = time.Now().Add(time.Hour).Truncate(time.Second)
	ca.Issue(cert, key, expires)
	return ca, cert, key, expires
}

func TestChangedFilesAreReadAgain(t *testing.T) {
	ca, cert, key, expires := files(t)
	var log bytes.Buffer
	p, err := Load(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	p.now = func() time.Time { return now }
	shown := func() int64 {
		c, err := p.Config().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.Int64()
	}
	first := shown()
	second := ca.Issue(cert, key, expires.Add(time.Hour))
	if got := shown(); got != first {
		t.Errorf("certificate %d is shown before the files are checked again, want %d", got, first)
	}
	now = now.Add(Every)
	if got := shown(); got != second || !p.Expires().Equal(expires.Add(time.Hour)) {
		t.Errorf("certificate %d, expires %s, is shown after the files changed; want %d", got, p.Expires(), second)
	}

	if err := os.WriteFile(cert, []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now = now.Add(Every)
		if got := shown(); got != second {
			t.Errorf("certificate %d is shown while the new one is broken, want %d", got, second)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("a broken file is logged %d times, want once:\n%s", n, &log)
	}
	third := ca.Issue(cert, key, expires)
	now = now.Add(Every)
	if got := shown(); got != third {
		t.Errorf("certificate %d is shown after the files were mended, want %d", got, third)
	}
}

func TestUnusableFilesAreRefused(t *testing.T) {
	ca, cert, key, expires := files(t)
	other := filepath.Join(t.TempDir(), "other.pem")
	ca.Issue(other, other+".key", expires)
	for _, x := range []struct{ cert, key, want string }{
		{cert, "", "tls_key: tls_cert is given without its private key"},
		{"", key, "tls_cert: tls_key is given without a certificate"},
		{cert + ".gone", key, "tls_cert: open"},
		{cert, key + ".gone", "tls_key: open"},
		{cert, other + ".key", "are no certificate with its private key"},
		{key, cert, "are no certificate with its private key"},
	} {
		if _, err := Load(x.cert, x.key, nil); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("Load(%q, %q) = %v, want an error with %q", x.cert, x.key, err, x.want)
		}
	}
}
