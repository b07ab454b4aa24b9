// Package tlstest makes certificates for tests: an authority that nobody else trusts, and what it signs.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A CA is an authority, whose certificate is in a file.
type CA struct {
	File string

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

// New makes an authority.
func New(t testing.TB) *CA {
	t.Helper()
	c := &CA{t: t, File: filepath.Join(t.TempDir(), "ca.pem")}
	var der []byte
	c.key, der = c.make(&x509.Certificate{Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	c.cert = cert
	write(t, c.File, "CERTIFICATE", der)
	return c
}

// make signs a certificate of a fresh key; the first one signs itself.
func (c *CA) make(of *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	c.n++
	of.SerialNumber, of.NotBefore = big.NewInt(c.n), time.Now().Add(-time.Hour)
	by, with := c.cert, c.key
	if by == nil {
		by, with = of, key
	}
	der, err := x509.CreateCertificate(rand.Reader, of, by, &key.PublicKey, with)
	if err != nil {
		c.t.Fatal(err)
	}
	return key, der
}

// Issue writes a certificate of this machine and its key into two files, in the place of those that are there. It gives
// the certificate's serial number.
func (c *CA) Issue(cert, key string, expires time.Time) int64 {
	c.t.Helper()
	private, der := c.make(&x509.Certificate{Subject: pkix.Name{CommonName: "localhost"}, NotAfter: expires,
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	b, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	write(c.t, key, "PRIVATE KEY", b)
	write(c.t, cert, "CERTIFICATE", der)
	return c.n
}

func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	fresh := path + ".new"
	if err := os.WriteFile(fresh, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		t.Fatal(err)
	}
}

// Pool trusts the authority, and no other.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	return pool
}
