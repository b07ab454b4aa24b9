package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// Options of a client. The zero value is usable.
type Options struct {
	// Transport carries the requests; default: connections of this client's own.
	Transport http.RoundTripper
	// RootCAs are the authorities that the certificate of an https server may be of, say of LoadCA; default: those of the
	// system, or of SSL_CERT_FILE. A Transport of the caller's has its own.
	RootCAs *x509.CertPool
	// Retries is how often a call is sent again before its error is returned; default 8, which is about
	// twenty seconds; negative: never.
	Retries int
	// Timeout bounds one sending of a call that the server answers at once; default 30 s. A call that waits
	// gets that much longer than it waits.
	Timeout time.Duration
	// Logger gets a line, at level debug, for each time a call is sent again.
	Logger *slog.Logger
}

// Client is a connection to a server, for use by any number of goroutines.
type Client struct {
	base string
	key  string
	opt  Options
	http *http.Client
	log  *slog.Logger
}

// New makes a client of the server at baseURL, such as "http://127.0.0.1:7373", with a key of one's tenant. It
// does not connect: the first call does. A client has connections of its own, which it keeps for a while: a program makes one
// and keeps it, and one that makes many closes each.
func New(baseURL, key string, opt Options) *Client {
	if opt.Retries == 0 {
		opt.Retries = 8
	}
	if opt.Timeout <= 0 {
		opt.Timeout = 30 * time.Second
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Transport == nil {
		// Not http.DefaultTransport: a program's other clients must not wait behind this one's long polls,
		// and two idle connections are too few for a worker.
		opt.Transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			TLSClientConfig:       &tls.Config{RootCAs: opt.RootCAs},
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
		}
	}
	return &Client{
		base: strings.TrimRight(baseURL, "/"), key: key, opt: opt, log: opt.Logger,
		// A redirect is not followed: the key belongs to the server that was named, and to no other.
		http: &http.Client{Transport: opt.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// LoadCA reads certificates of authorities, in PEM, for Options.RootCAs: they are trusted instead of the system's.
func LoadCA(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", file)
	}
	return pool, nil
}

// Close closes the connections that are idle. A client that is no longer used needs no other end.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// A CallOption changes one call.
type CallOption func(*request)

// IdempotencyKey has a call count once, however often and by whomever it is made under this key: an order
// number, say. Without it, each call has a key of its own, which resolves lost answers and nothing more.
func IdempotencyKey(key string) CallOption { return func(r *request) { r.key, r.given = key, true } }

// A request is one call, before and between its sendings.
type request struct {
	method string
	path   string
	query  url.Values
	body   any
	key    string        // Idempotency-Key; default: a fresh one, for calls that change something
	given  bool          // it is the caller's own
	single bool          // not sent again at all: the caller has a loop of its own
	wait   time.Duration // how long the server may hold back the answer
	limit  int64         // of the answer's bytes
	fresh  func()        // called before it is sent again, to shorten what is left of a wait
	also   int           // a status beside 2xx that is an answer

	raw   func() (body io.Reader, size int64, err error) // instead of body: bytes, from their beginning; size -1: not known
	media string                                         // what they are
}

// maxAnswer bounds what is read of an answer. The server's own bounds are far below it.
const maxAnswer = 64 << 20

// do makes a call and reads its answer into out, which may be nil.
func (c *Client) do(ctx context.Context, r *request, out any, opts ...CallOption) (status int, err error) {
	for _, o := range opts {
		o(r)
	}
	switch {
	case r.given && r.key == "":
		return 0, api.NewProblem(perdure.CodeInvalid, "an idempotency key is not empty", "Idempotency-Key")
	case r.key == "" && r.method != http.MethodGet:
		r.key = rand.Text()
	}
	once := session.OnceOf(ctx)
	maybe := false // an earlier sending may have arrived
	for n := 0; ; n++ {
		if n > 0 && r.fresh != nil {
			r.fresh()
		}
		var f *failure
		status, f = c.send(ctx, r, out)
		if f == nil {
			return status, nil
		}
		maybe = maybe || f.maybe
		if once != nil {
			once.After = f.after
			return status, r.explain(ctx, f, maybe)
		}
		if ctx.Err() != nil || !f.again || n >= c.opt.Retries || r.single || !c.pause(ctx, n, f.after) {
			return status, r.explain(ctx, f, maybe)
		}
		c.log.Debug("a call is sent again", "method", r.method, "path", r.path, "sent", n+1, "error", f.err)
	}
}

// answer makes a call whose answer is a T; one that failed gives nothing, rather than something half filled.
func answer[T any](ctx context.Context, c *Client, r *request, opts ...CallOption) (*T, error) {
	out := new(T)
	if _, err := c.do(ctx, r, out, opts...); err != nil {
		return nil, err
	}
	return out, nil
}

// A failure is a sending that brought no answer.
type failure struct {
	err   error
	again bool          // another sending may do better
	maybe bool          // it may have arrived and counted
	after time.Duration // the server asks to be left alone for so long
}

// send sends a call once.
func (c *Client) send(ctx context.Context, r *request, out any) (int, *failure) {
	one, cancel := context.WithTimeout(ctx, r.wait+c.opt.Timeout)
	defer cancel()
	req, err := c.request(one, r)
	if err != nil {
		return 0, &failure{err: err}
	}
	res, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the path is said once, by explain
		}
		// A certificate that is not trusted is not trusted a second later either.
		untrusted := errors.As(err, new(*tls.CertificateVerificationError))
		return 0, &failure{err: err, again: !untrusted, maybe: !unsent(err)}
	}
	defer res.Body.Close()
	limit := max(r.limit, maxAnswer)
	b, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return res.StatusCode, &failure{err: fmt.Errorf("the answer broke off: %w", err), again: true, maybe: true}
	case int64(len(b)) > limit:
		return res.StatusCode, &failure{err: fmt.Errorf("the answer has more than %d bytes", limit), maybe: true}
	}
	if res.StatusCode/100 != 2 && res.StatusCode != r.also {
		return res.StatusCode, refused(res, b)
	}
	if out == nil {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return res.StatusCode, &failure{err: fmt.Errorf("the answer is not what this client knows: %w", err), maybe: true}
	}
	return res.StatusCode, nil
}

// unsent tells whether a call that failed never left: there was no connection to send it on.
func unsent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, new(*tls.CertificateVerificationError))
}

func (c *Client) request(ctx context.Context, r *request) (*http.Request, error) {
	if !strings.HasPrefix(c.base, "http://") && !strings.HasPrefix(c.base, "https://") {
		return nil, api.NewProblem(perdure.CodeInvalid, fmt.Sprintf("the server's address is %q: it has to be a URL such as http://127.0.0.1:7373", c.base), "")
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	size, media := int64(-1), "application/json"
	switch {
	case r.raw != nil:
		from, n, err := r.raw()
		if err != nil {
			return nil, fmt.Errorf("read the artifact: %w", err)
		}
		body, size, media = io.NopCloser(from), n, r.media // it is the caller's to close
		if n == 0 {
			body = http.NoBody
		}
	case r.body != nil:
		b, err := encode(r.body)
		if err != nil {
			return nil, api.NewProblem(perdure.CodeInvalid, "the request can't be written as JSON: "+err.Error(), "")
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, api.NewProblem(perdure.CodeInvalid, err.Error(), "")
	}
	if size >= 0 {
		req.ContentLength = size
	}
	if body != nil && media != "" {
		req.Header.Set("Content-Type", media)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	req.Header.Set("User-Agent", "perdure-go")
	return req, nil
}

// encode writes JSON without escaping <, > and &: a value of many of them would grow past its bound.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// path puts ids into a path.
func path(format string, ids ...string) string {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = url.PathEscape(id)
	}
	return fmt.Sprintf(format, args...)
}
