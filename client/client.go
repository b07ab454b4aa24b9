package client

import (
	"bytes"
	"cmp"
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
	"reflect"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// Options of a client. The zero value is usable.
type Options struct {
	// Transport sends the requests. By default the client has its own connections.
	Transport http.RoundTripper
	// RootCAs are the certificate authorities that are trusted, for example from LoadCA. The
	// default is those of the system, or of SSL_CERT_FILE. They are not used with a Transport of
	// the caller.
	RootCAs *x509.CertPool
	// Retries is how often a failed call is sent again before its error is returned. The default is
	// 8, which takes about twenty seconds. A negative number means never.
	Retries int
	// Timeout limits one attempt of a call, 30 s by default, or 15 s if there are several addresses. A
	// call that waits on the server gets its wait in addition.
	Timeout time.Duration
	// Tenant is the tenant that the calls are about, if it is not the one of the key. It takes a
	// platform key, with platform:read to read and platform:admin to change anything. With it, calls
	// of workers, logins and the platform are refused. Streams and retries are about it as well.
	Tenant perdure.TenantID
	// Logger gets a line at level debug for each retry.
	Logger *slog.Logger
}

// Client calls a server. Any number of goroutines may use it.
type Client struct {
	nodes *nodes
	key   string
	opt   Options
	http  *http.Client
	log   *slog.Logger
	older *omitted
}

// New makes a client for the server at baseURL, such as "http://127.0.0.1:7373", with a tenant's
// key. The first call connects, not New. A client keeps its connections open for a while, so a
// program makes one client and reuses it. A program that makes many closes each.
//
// Several servers with the same store are separated by commas: "http://a:7373,http://b:7373". The
// client uses the first one. When a server can't be reached, does not answer in time or answers 503,
// the client goes on to the next, and stays there while it works.
func New(baseURL, key string, opt Options) *Client {
	if opt.Retries == 0 {
		opt.Retries = 8
	}
	nodes, connect := newNodes(baseURL), 10*time.Second
	several := len(nodes.addresses) > 1
	if several {
		connect = 3 * time.Second
	}
	switch {
	case opt.Timeout <= 0 && several:
		opt.Timeout = 15 * time.Second
	case opt.Timeout <= 0:
		opt.Timeout = 30 * time.Second
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Transport == nil {
		// http.DefaultTransport is shared with other clients, which would wait behind long polls,
		// and its two idle connections per host are too few for a worker.
		opt.Transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: connect, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			TLSClientConfig:       &tls.Config{RootCAs: opt.RootCAs},
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       90 * time.Second,
			ForceAttemptHTTP2:     true,
		}
	}
	return &Client{older: new(omitted),
		nodes: nodes, key: key, opt: opt, log: opt.Logger,
		http: &http.Client{Transport: opt.Transport, CheckRedirect: noRedirect},
	}
}

// noRedirect returns a redirect instead of following it, so that the key is not sent to another
// server.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// LoadCA reads a PEM file of certificate authorities for Options.RootCAs, where they replace the
// system's.
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

// Close closes idle connections. A client that is no longer used needs no other cleanup.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// CallOptions are the options of one call. Of several, a field that is set replaces the earlier one.
type CallOptions struct {
	// IdempotencyKey makes calls with the same key count once, even from several processes. An order
	// number is an example. Without it, each call gets a random key, which only protects against lost
	// answers.
	IdempotencyKey string
	// Created, if it is set, is told whether this call has created what it returns. It is false if an earlier
	// call has, also one whose answer was lost.
	Created *bool

	// emptyKey tells that the caller gave an empty key, which is refused.
	emptyKey bool
}

// IdempotencyKey returns options with a key. An empty key is refused.
func IdempotencyKey(key string) CallOptions {
	return CallOptions{IdempotencyKey: key, emptyKey: key == ""}
}

// applyTo sets the fields of a request that the options have.
func (o CallOptions) applyTo(r *request) {
	if o.IdempotencyKey != "" || o.emptyKey {
		r.key, r.callerKey = o.IdempotencyKey, true
	}
	if o.Created != nil {
		r.created = o.Created
	}
}

// A request describes one call. Each attempt builds an http.Request from it.
type request struct {
	method string
	path   string
	query  url.Values
	body   any
	// key is the Idempotency-Key. If it is empty, a call that changes something gets a random one.
	key       string
	callerKey bool          // key was set by the caller
	created   *bool         // gets whether the server has created something
	noRetry   bool          // the caller has its own loop
	wait      time.Duration // how long the server may delay the answer
	limit     int64         // maximum bytes of the answer, at least maxAnswer
	okStatus  int           // a status besides 2xx that is not an error
	// beforeResend is called before each retry. It shortens the wait to the time that is left.
	beforeResend func()
	// end is when the caller stops waiting. The call is not sent again after it, and an answer may
	// come up to answerGrace later. Zero means that only the context ends the wait.
	end time.Time

	// raw replaces body: it returns the bytes from their beginning. A size of -1 means unknown.
	raw   func() (body io.Reader, size int64, err error)
	media string // content type of raw

	// turn is that of the address which the last attempt was made for.
	turn int64
}

// maxAnswer limits the bytes that are read of an answer. The server's own limits are far below.
const maxAnswer = 64 << 20

// do makes a call, with retries, and decodes its answer into out, which may be nil.
func (c *Client) do(ctx context.Context, r *request, out any, opts ...CallOptions) (status int, err error) {
	for _, o := range opts {
		o.applyTo(r)
	}
	switch {
	case r.callerKey && r.key == "":
		return 0, api.NewProblem(perdure.CodeInvalid, "an idempotency key is not empty", "Idempotency-Key")
	case r.key == "" && r.method != http.MethodGet:
		r.key = rand.Text()
	}
	once := session.NoRetryOf(ctx)
	sending := ctx
	if !r.end.IsZero() {
		var cancel context.CancelFunc
		sending, cancel = context.WithDeadline(ctx, r.end.Add(answerGrace))
		defer cancel()
	}
	maybe := false // an earlier attempt may have taken effect
	var nodes round
	for n, sent := 0, 0; ; n++ {
		if sent++; sent > 1 && r.beforeResend != nil {
			r.beforeResend()
		}
		var f *failure
		status, f = c.send(sending, r, out)
		for f != nil && c.older.refused(r.body, f.err) {
			status, f = c.send(sending, r, out)
		}
		if f == nil {
			if r.created != nil {
				*r.created = status == http.StatusCreated
			}
			return status, nil
		}
		maybe = maybe || f.maybe
		left := c.leave(r.turn, f)
		if left {
			f.after = 0 // it is about the server that was left
		}
		if once != nil {
			once.After = f.after
			return status, r.explain(ctx, f, maybe)
		}
		if nodes.next(c, left) && (!r.noRetry || unsent(f.err)) && c.opt.Retries > 0 && sending.Err() == nil {
			n-- // the next address is tried at once
			continue
		}
		again := f.again && n < c.opt.Retries && !r.noRetry && sending.Err() == nil
		if !again || !c.pause(ctx, r.end, n, f.after) {
			return status, r.explain(ctx, f, maybe)
		}
		c.log.Debug("a call is sent again", "method", r.method, "path", r.path, "sent", n+1, "error", f.err)
	}
}

// answerGrace is how long after the end of the caller's wait an answer may come: the server answers
// at that end, and the answer takes its way.
const answerGrace = 2 * time.Second

// answer makes a call and returns its decoded answer. After an error it returns nil, never a partly
// filled value.
func answer[T any](ctx context.Context, c *Client, r *request, opts ...CallOptions) (*T, error) {
	out := new(T)
	if _, err := c.do(ctx, r, out, opts...); err != nil {
		return nil, err
	}
	return out, nil
}

// A failure is an attempt without a successful answer.
type failure struct {
	err   error
	again bool          // a retry may succeed
	maybe bool          // the attempt may have taken effect on the server
	node  bool          // another server may succeed at once
	after time.Duration // the server's Retry-After
}

// send makes one attempt of a call.
func (c *Client) send(ctx context.Context, r *request, out any) (int, *failure) {
	one, cancel := context.WithTimeout(ctx, r.wait+c.opt.Timeout)
	defer cancel()
	req, err := c.request(one, r)
	if err != nil {
		return 0, &failure{err: err}
	}
	began := time.Now()
	res, err := c.http.Do(req)
	if err != nil {
		failed := unanswered(ctx, err, began, r.wait)
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // explain adds the method and the path
		}
		// A retry does not help against an untrusted certificate, or if a server in this process is
		// closed.
		hopeless := errors.As(err, new(*tls.CertificateVerificationError)) || errors.Is(err, http.ErrServerClosed)
		return 0, &failure{err: err, again: !hopeless, maybe: !unsent(err), node: failed}
	}
	defer res.Body.Close()
	limit := max(r.limit, maxAnswer)
	b, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		err = fmt.Errorf("the answer broke off: %w", err)
		return res.StatusCode, &failure{err: err, again: true, maybe: true, node: unanswered(ctx, err, began, r.wait)}
	case int64(len(b)) > limit:
		return res.StatusCode, &failure{err: fmt.Errorf("the answer has more than %d bytes", limit), maybe: true}
	}
	if res.StatusCode/100 != 2 && res.StatusCode != r.okStatus {
		return res.StatusCode, c.explainTenant(readProblem(res, b))
	}
	if out == nil {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		err = fmt.Errorf("the answer is not what this client knows: %w", err)
		return res.StatusCode, &failure{err: err, maybe: true}
	}
	return res.StatusCode, nil
}

// unsent tells whether a call failed before it was sent, because there was no connection.
func unsent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.Is(err, http.ErrServerClosed) ||
		errors.As(err, new(*tls.CertificateVerificationError))
}

// request builds the HTTP request of one attempt.
func (c *Client) request(ctx context.Context, r *request) (*http.Request, error) {
	if err := c.nodes.check(); err != nil {
		return nil, err
	}
	var target string
	target, r.turn = c.nodes.current()
	target += r.path
	query, err := c.query(r)
	if err != nil {
		return nil, err
	}
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var body io.Reader
	size, media := int64(-1), "application/json"
	switch {
	case r.raw != nil:
		from, n, err := r.raw()
		if err != nil {
			return nil, fmt.Errorf("read the artifact: %w", err)
		}
		body, size, media = io.NopCloser(from), n, r.media // the caller closes it
		if n == 0 {
			body = http.NoBody
		}
	case r.body != nil:
		b, err := perdure.Marshal(r.body)
		if err != nil {
			why := cmp.Or(unencoded(reflect.ValueOf(r.body)), "the request can't be written as JSON: "+err.Error())
			return nil, api.NewProblem(perdure.CodeInvalid, why, "")
		}
		body = bytes.NewReader(c.older.without(r.body, b))
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

// path formats a path with escaped ids.
func path(format string, ids ...string) string { return session.Path(format, ids...) }
