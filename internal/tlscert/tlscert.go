// Package tlscert holds the certificate that a server shows, and reads it again when its files change.
//
// There is no goroutine: a handshake, or whoever asks when the certificate expires, looks at the files, at most once in
// Every. A handshake under way keeps the certificate that it began with. A pair of files that can't be used, say because one
// of the two has been replaced and the other not yet, leaves the certificate in force and is logged once.
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

// Every is the least time between two looks at the files.
const Every = time.Second

// A Pair is a certificate with its chain and its private key, each in a file of PEM.
type Pair struct {
	cert, key string
	log       *slog.Logger
	now       func() time.Time // for tests

	mu     sync.Mutex
	looked time.Time // when the files were last looked at
	seen   [2]mark   // the files that held was read from
	held   *tls.Certificate
	// refused is why the files can't be used now; empty: they can.
	refused string
}

// A mark tells a file from what it was before. A file that is replaced by renaming another has another inode, also when
// size and time are equal.
type mark struct {
	size, modified int64
	info           os.FileInfo
}

func (m mark) same(o mark) bool {
	return m.info != nil && o.info != nil && m.size == o.size && m.modified == o.modified && os.SameFile(m.info, o.info)
}

// Load reads a certificate and its key. It fails where a server could not use them.
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
	p.seen = [2]mark{markOf(cert), markOf(key)} // before they are read: a change meanwhile is seen at the next look
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
		return nil, fmt.Errorf("tls_cert and tls_key: %s and %s are no certificate with its private key, both in PEM: %w", cert, key, err)
	}
	return &c, nil
}

// current is the certificate in force, of files that were looked at within Every.
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
	if err != nil { // tried again at each look: permissions change without a trace in the mark
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

// Expires is when the certificate in force expires.
func (p *Pair) Expires() time.Time { return p.current().Leaf.NotAfter }

// Config is for a listener. Versions and ciphers are Go's defaults: TLS 1.2 and later.
//
// It offers HTTP/1.1 and not HTTP/2: a stream takes its connection over to hold no more memory than it needs, and a
// WebSocket has to. Neither is possible on a connection that carries other requests too.
func (p *Pair) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current(), nil },
	}
}
