package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

const (
	firstPause  = 100 * time.Millisecond
	longPause   = 5 * time.Second
	longestPlea = time.Minute // of a Retry-After that is believed
)

// backoff is the pause after the n-th failure: doubling, and never twice the same, so that clients which failed
// together don't come back together.
func backoff(n int) time.Duration {
	d := longPause
	if n < 6 {
		d = firstPause << n
	}
	return d/2 + rand.N(d/2)
}

// pause waits before a call is sent again. It tells false when the caller would be gone by then.
func (c *Client) pause(ctx context.Context, n int, atLeast time.Duration) bool {
	d := max(backoff(n), atLeast)
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// refused reads an answer that is no success.
func refused(res *http.Response, body []byte) *failure {
	p := &api.Problem{}
	t, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	ours := t == "application/problem+json" && json.Unmarshal(body, p) == nil && p.Code != ""
	f := &failure{err: p}
	if !ours { // something between here and the server answered
		text := strings.ToValidUTF8(string(body[:min(len(body), 200)]), "")
		p = api.NewProblem(perdure.CodeInternal, strings.TrimSpace(fmt.Sprintf("HTTP %d: %s", res.StatusCode, text)), "")
		f.err = p
		f.maybe = res.StatusCode >= 500
	}
	p.Status = res.StatusCode
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		f.again = true
		f.after = min(retryAfter(res.Header.Get("Retry-After")), longestPlea)
		f.maybe = f.maybe || p.Code == perdure.CodeUnknown
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		f.again = true
	}
	if !ours && f.again {
		p.Code = perdure.CodeUnavailable
	}
	return f
}

// retryAfter reads the header: seconds, or a date.
func retryAfter(text string) time.Duration {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(text); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

// explain makes the error that a caller gets: always a problem with a code, unless the caller himself gave up
// a call that changes nothing.
func (r *request) explain(ctx context.Context, f *failure, maybe bool) error {
	changes := r.method != http.MethodGet
	err := f.err
	var p *api.Problem
	said := errors.As(err, &p)
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	what := r.method + " " + r.path
	switch {
	case said && (!maybe || knows(p)):
		return err // the server's own word
	case changes && maybe:
		return fmt.Errorf("%w: %w", api.NewProblem(perdure.CodeUnknown, what+" may or may not have counted", ""), err)
	case said:
		return err
	case ctx.Err() != nil && !changes:
		return fmt.Errorf("%s: %w", what, err)
	default:
		return fmt.Errorf("%w: %w", api.NewProblem(perdure.CodeUnavailable, what+" did not arrive, or was not answered", ""), err)
	}
}

// knows tells whether a refusal answers for the earlier sendings of its call too. One that came before the server looked
// at the call itself says nothing about them.
func knows(p *api.Problem) bool {
	switch p.Code {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost, api.CodeRate:
		return false
	}
	return p.Status/100 == 4
}

// CodeOf is the code of an error of this package: of the server's refusal, or of what the network did. It is
// empty for nil, and for a call that changes nothing whose context ended; one that may have changed something by then
// says [perdure.CodeUnknown].
func CodeOf(err error) perdure.Code {
	var p *api.Problem
	if errors.As(err, &p) {
		return p.Code
	}
	var e *perdure.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Transient tells whether an error says nothing about the call itself: the server was not reached, was busy, or
// is going down. The same call may succeed later; one that changes something, under the same key.
func Transient(err error) bool {
	switch CodeOf(err) {
	case perdure.CodeUnavailable, perdure.CodeUnknown, perdure.CodeQuota, perdure.CodeStorageFull, perdure.CodeNoSigner, api.CodeRate, api.CodeShuttingDown:
		return true
	}
	return false
}
