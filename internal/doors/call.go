package doors

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors/answer"
)

// A Call is one request to a door.
type Call struct {
	*http.Request
	// API calls the API with the caller's key, within the process. It sends each call once. A call ends
	// when the caller hangs up, if it is made with the context of the request.
	API *client.Client
	// Key is the caller's key. It is for digests; nothing else looks at it.
	Key string
	// Root is the part of the path before the door's own, or empty at the root of the server.
	Root string

	*answer.Answer

	w      http.ResponseWriter
	set    *Set
	door   *mounted
	params map[string]string
	// accepted is set once the answer can't be a refusal any more, perhaps before it has begun.
	accepted bool
}

// inProcess is the address of the API within the process.
const inProcess = "http://perdure"

// connect reads the credential and makes the client of the API.
func (c *Call) connect() error {
	if c.Key = credential(c.Request); c.Key == "" {
		return perdure.Errorf(api.CodeUnauthorized, "send Authorization: Bearer <key>")
	}
	c.useAPI(client.Options{Retries: -1}) // the caller repeats what is refused for the moment
	c.Request = c.WithContext(context.WithValue(c.Context(), remoteKey{}, c.RemoteAddr))
	return nil
}

// useAPI makes the client of the API.
func (c *Call) useAPI(opt client.Options) {
	opt.Transport, opt.Timeout = c.set.transport, callTimeout
	c.API = client.New(inProcess, c.Key, opt)
}

// callTimeout bounds a call of the API that does not wait.
const callTimeout = time.Minute

// credential is the key of a request: that of Authorization: Bearer, or else of X-Api-Key. A second
// credential is no error, because some clients add one from the environment. Cookies are ignored, so
// that no page can use somebody's session.
func credential(r *http.Request) string {
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if token = strings.TrimSpace(token); strings.EqualFold(scheme, "Bearer") && token != "" {
			return token
		}
	}
	return strings.TrimSpace(r.Header.Get("X-Api-Key"))
}

// remoteKey is the key of the caller's address in the context of a call.
type remoteKey struct{}

// RemoteAddr returns the address of the caller of a door, for a call of the API that the door makes. It
// is empty for any other call.
func RemoteAddr(ctx context.Context) string {
	addr, _ := ctx.Value(remoteKey{}).(string)
	return addr
}

// Afterwards does something for a call that is over, which the caller need not wait for. The context of the
// call that work gets ends when the server shuts down. It has no answer.
func (c *Call) Afterwards(work func(*Call)) {
	after := *c
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.Context()))
	after.Request, after.w, after.Answer = c.WithContext(ctx), nil, nil
	stop := context.AfterFunc(c.set.closing, func() { cancel(answer.ErrClosing) })
	go func() {
		defer stop()
		defer cancel(context.Canceled)
		defer func() {
			if p := recover(); p != nil {
				after.set.log.Error("a handler panicked", "door", after.door.Name, "path", after.URL.Path,
					"panic", p, "stack", string(debug.Stack()))
			}
		}()
		work(&after)
	}()
}

// Param is a parameter of the path, decoded.
func (c *Call) Param(name string) string { return c.params[name] }

// Query is a parameter of the query, or empty. Of several the first one counts.
func (c *Call) Query(name string) string { return c.URL.Query().Get(name) }

// QueryList is a parameter of the query with several values: repeated, or as an array in JSON.
func (c *Call) QueryList(name string) (out []string) {
	for _, v := range c.URL.Query()[name] {
		var list []string
		if strings.HasPrefix(v, "[") && json.Unmarshal([]byte(v), &list) == nil {
			out = append(out, list...)
			continue
		}
		out = append(out, v)
	}
	return out
}

// CheckQuery refuses NUL bytes and texts that are no UTF-8 in the parameters of the query.
func (c *Call) CheckQuery() error {
	for name, values := range c.URL.Query() {
		for _, v := range values {
			if err := checkText(name, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkText refuses NUL bytes and a text that is no UTF-8.
func checkText(field, text string) error {
	if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
		return perdure.Invalid(field, "has a NUL byte or is no UTF-8")
	}
	return nil
}

// Options are the options of the call that starts something: the caller's Idempotency-Key, if it sent
// one.
func (c *Call) Options() []client.CallOptions {
	if key := c.Header.Get("Idempotency-Key"); key != "" {
		return []client.CallOptions{client.IdempotencyKey(key)}
	}
	return nil
}

// OptionsOf are the options of the n-th of several calls that start something. Each has a key of its own, made of
// the caller's, because two calls with one key are one.
func (c *Call) OptionsOf(n int) []client.CallOptions {
	key := c.Header.Get("Idempotency-Key")
	if key == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(key + "\x00" + strconv.Itoa(n)))
	return []client.CallOptions{client.IdempotencyKey(hex.EncodeToString(sum[:16]))}
}

// refuse writes an error in the door's own shape.
func (c *Call) refuse(err error) {
	p := ProblemOf(err)
	h := c.w.Header()
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInsufficientStorage:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	}
	if p.Code == perdure.CodeInternal {
		c.set.log.Error("a request failed", "door", c.door.Name, "path", c.URL.Path, "error", err)
	}
	status, body := c.door.Refuse(p, h)
	if err := c.JSON(status, body); err != nil {
		c.set.log.Debug("a refusal was not read", "door", c.door.Name, "error", err)
	}
}

// ProblemOf returns an error as a problem of the API: the API's own, or one of a door.
func ProblemOf(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) {
		return p
	}
	var e *perdure.Error
	if errors.As(err, &e) {
		p = api.NewProblem(e.Code, e.Message, e.Field)
		p.RunID = e.RunID
		return p
	}
	switch {
	case errors.Is(err, answer.ErrClosing), errors.Is(err, http.ErrServerClosed):
		return api.NewProblem(api.CodeShuttingDown, "the server is shutting down; try again", "")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return api.NewProblem(perdure.CodeUnavailable, "the request was given up", "")
	}
	return api.NewProblem(perdure.CodeInternal, "the server has a defect; it is logged", "")
}

// Missing tells whether something is not there, or the caller may not see it.
func Missing(err error) bool { return err != nil && ProblemOf(err).Code == perdure.CodeNotFound }
