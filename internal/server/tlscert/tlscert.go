// Package tlscert holds the certificate of a server, and reads it again when its files change.
//
// It has no goroutine: a handshake, or a call of Expires, checks the files, at most once in Every.
// A handshake keeps the certificate that it began with. If the files cannot be used, the old
// certificate stays in use and the error is logged once. That happens, for example, while only one
// of them has been replaced.
package tlscert

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Every is the least time between two checks of the files.
const Every = time.Second

// A Pair is a certificate with its chain, and its private key, each in a PEM file.
type Pair struct {
	cert, key string
	log       *slog.Logger
	now       func() time.Time // for tests

	mu     sync.Mutex
	looked time.Time // when the files were last checked
	seen   [2]mark   // the files that held was read from
	held   *tls.Certificate
	// refused is the error of the current files. It is empty if they can be used.
	refused string
}

// A mark identifies a version of a file. A file that was replaced by a rename has another inode,
// even if size and time are equal.
type mark struct {
	size, modified int64
	info           os.FileInfo
}

func (m mark) same(o mark) bool {
	return m.info != nil && o.info != nil && m.size == o.size && m.modified == o.modified && os.SameFile(m.info, o.info)
}

// Load reads a certificate and its key. It returns an error if a server could not use them.
func Load(cert, key string, log *slog.Logger) (*Pair, error) {
	switch {
	case cert == "":
		return nil, errors.New("tls_cert: tls_key is given without a certificate: give both")
	case key == "":
		return nil, errors.New("tls_key: tls_cert is given without its private key: give both")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Pair{cert: cert, key: key, log: log, now: time.Now}
	p.looked = p.now()
	p.seen = [2]mark{markOf(cert), markOf(key)} // before reading, so that a change meanwhile is noticed
	var err error
	p.held, err = read(cert, key)
	return p, err
}

func markOf(path string) mark {
	info, err := os.Stat(path)
	if err != nil {
		return mark{}
	}
	return mark{info.Size(), info.ModTime().UnixNano(), info}
}

// read reads both files and checks that they belong together.
func read(cert, key string) (*tls.Certificate, error) {
	chain, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("tls_cert: %w", err)
	}
	private, err := os.ReadFile(key)
	if err != nil {
		return nil, fmt.Errorf("tls_key: %w", err)
	}
	c, err := tls.X509KeyPair(chain, private)
	if err != nil {
		return nil, fmt.Errorf("tls_cert and tls_key: %s and %s are no certificate with its private key, both "+
			"in PEM: %w",
			cert, key, err)
	}
	return &c, nil
}

// current returns the certificate in use. It first checks the files, if the last check is older
// than Every.
func (p *Pair) current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if now.Sub(p.looked) < Every {
		return p.held
	}
	p.looked = now
	seen := [2]mark{markOf(p.cert), markOf(p.key)}
	if p.refused == "" && seen[0].same(p.seen[0]) && seen[1].same(p.seen[1]) {
		return p.held
	}
	c, err := read(p.cert, p.key)
	if err != nil { // retried at each check: changed permissions do not change the mark
		if p.refused != err.Error() {
			p.log.Error("new TLS certificate refused, the old one stays in force", "error", err)
		}
		p.refused = err.Error()
		return p.held
	}
	p.held, p.seen, p.refused = c, seen, ""
	p.log.Info("new TLS certificate", "expires", c.Leaf.NotAfter.UTC().Format(time.RFC3339))
	return p.held
}

// Expires returns when the certificate in use expires.
func (p *Pair) Expires() time.Time { return p.current().Leaf.NotAfter }

// Config returns the configuration of a listener: TLS 1.2 and later, with Go's default ciphers.
//
// It offers HTTP/1.1 but not HTTP/2. WebSockets and, to save memory, event streams take over their
// connection, which is not possible if it carries other requests too.
func (p *Pair) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current(), nil },
	}
}
