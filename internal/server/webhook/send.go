package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/perdure/perdure/internal/server/engine/outbox"
)

// Limits of one attempt.
const (
	AttemptTimeout = 15 * time.Second // from resolving the name to the last byte that is read
	maxAnswer      = 64 << 10         // bytes of the answer that are read
	keptAnswer     = 1 << 10          // bytes of the answer that are stored
)

// HTTPOptions of a sender. The zero value is usable.
type HTTPOptions struct {
	Guard   *Guard        // nil means the zero Guard: the public internet only
	Timeout time.Duration // of one attempt; default AttemptTimeout
	Agent   string        // the User-Agent; default "perdure"
}

// HTTP sends messages by POST, signed as Standard Webhooks defines it. It follows no redirects,
// uses no proxy and does not decompress answers.
type HTTP struct {
	guard   *Guard
	timeout time.Duration
	agent   string
	by      map[string]*http.Transport // by scheme, because the guard treats http and https differently
}

// NewHTTP makes a sender.
func NewHTTP(opt HTTPOptions) *HTTP {
	s := &HTTP{guard: opt.Guard, timeout: opt.Timeout, agent: opt.Agent, by: make(map[string]*http.Transport)}
	if s.guard == nil {
		s.guard = &Guard{}
	}
	if s.timeout == 0 {
		s.timeout = AttemptTimeout
	}
	if s.agent == "" {
		s.agent = "perdure"
	}
	for _, scheme := range []string{"https", "http"} {
		dialer := &net.Dialer{Timeout: s.timeout, Resolver: s.guard.Resolver, Control: s.guard.control(scheme)}
		s.by[scheme] = &http.Transport{
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    s.timeout,
			ResponseHeaderTimeout:  s.timeout,
			MaxResponseHeaderBytes: 16 << 10,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           256,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        30 * time.Second,
		}
	}
	return s
}

// Close closes idle connections.
func (s *HTTP) Close() {
	for _, t := range s.by {
		t.CloseIdleConnections()
	}
}

// Send makes one attempt. Any status is a result; the caller decides which is a success.
func (s *HTTP) Send(ctx context.Context, m Message) (r Result) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	// The transport is used without an http.Client, which would follow redirects and keep cookies.
	u, err := s.guard.parse(m.URL)
	if err != nil {
		return Result{Err: "the URL can't be used any more"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(m.Body))
	if err != nil {
		return Result{Err: "the URL can't be used any more"}
	}
	signature, err := Sign(m.Secrets, m.ID, began, m.Body)
	if err != nil {
		return Result{Err: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.agent)
	req.Header.Set("Webhook-Id", m.ID)
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(began.Unix(), 10))
	req.Header.Set("Webhook-Signature", signature)

	resp, err := s.by[u.Scheme].RoundTrip(req)
	if err != nil {
		return Result{Err: s.reason(ctx, err)}
	}
	// The status decides. It counts even if the body does not end, or not in time.
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if n, err := resp.Body.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		cancel() // there is more: close the connection instead of reading to the end
	}
	resp.Body.Close()
	after := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return Result{Status: resp.StatusCode, RetryAfter: after, Response: printable(b)}
}

// reason returns why there was no answer. It does not use the error's text, which contains
// addresses of the internal network.
func (s *HTTP) reason(ctx context.Context, err error) string {
	var (
		name   *net.DNSError
		cert   *tls.CertificateVerificationError
		record tls.RecordHeaderError
		op     *net.OpError
		host   x509.HostnameError
		late   interface{ Timeout() bool }
	)
	switch {
	case errors.Is(err, errDenied):
		return "the address is not public, and its network is not allowed"
	case errors.Is(err, errPort):
		return errPort.Error()
	case errors.Is(err, context.Canceled):
		return "the attempt was given up: the server shuts down"
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return "no answer within " + s.timeout.String()
	case errors.As(err, &name) && name.IsNotFound:
		return "the name does not exist"
	case errors.As(err, &name):
		return "the name could not be looked up"
	case errors.As(err, &host):
		return "the certificate is for another name"
	case errors.As(err, &cert):
		return "the certificate is not trusted"
	case errors.As(err, &record),
		errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // the names of TLS alerts
		return "TLS could not be agreed on"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to the address"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed without an answer"
	case errors.As(err, &late) && late.Timeout():
		return "no answer within " + s.timeout.String()
	}
	return "the answer could not be read"
}

// retryAfter parses the header Retry-After: a number of seconds or a date. It is limited to a day.
func retryAfter(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0
	}
	if strings.Trim(text, "0123456789") == "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n > int64(outbox.MaxRetryAfter/time.Second) {
			return outbox.MaxRetryAfter
		}
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), outbox.MaxRetryAfter)
}

// printable returns the beginning of an answer as valid UTF-8 without control characters, fit to be
// stored and shown.
func printable(b []byte) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b[:min(len(b), keptAnswer)]), ""))
	return strings.TrimSpace(text)
}
