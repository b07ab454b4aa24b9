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
	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	firstPause    = 100 * time.Millisecond
	longPause     = 5 * time.Second
	maxRetryAfter = time.Minute // longer values of Retry-After are cut to this
)

// backoff returns the pause after the n-th failure. It doubles each time, with jitter, so that
// clients that failed together do not retry together.
func backoff(n int) time.Duration {
	d := longPause
	if n < 6 {
		d = firstPause << n
	}
	return d/2 + rand.N(d/2)
}

// pause waits before a retry. It returns false if the context ends before the pause does, or if the
// end of the caller's wait comes before (zero: there is none).
func (c *Client) pause(ctx context.Context, end time.Time, n int, atLeast time.Duration) bool {
	d := max(backoff(n), atLeast)
	if !end.IsZero() {
		if left := time.Until(end); left <= atLeast || left < minRemaining {
			return false
		} else if left < d { // the last try is just before the end
			d = left
		}
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return false
	}
	return timer.Sleep(ctx, d)
}

// readProblem turns an unsuccessful answer into a failure.
func readProblem(res *http.Response, body []byte) *failure {
	p := &api.Problem{}
	t, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	ours := t == "application/problem+json" && json.Unmarshal(body, p) == nil && p.Code != ""
	f := &failure{err: p}
	if !ours { // a proxy answered, not the server
		text := strings.ToValidUTF8(string(body[:min(len(body), 200)]), "")
		p = api.NewProblem(perdure.CodeInternal, strings.TrimSpace(fmt.Sprintf("HTTP %d: %s", res.StatusCode, text)),
			"")
		f.err = p
		f.maybe = res.StatusCode >= 500
	}
	p.Status = res.StatusCode
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		f.again, f.node = true, res.StatusCode == http.StatusServiceUnavailable
		f.after = min(retryAfter(res.Header.Get("Retry-After")), maxRetryAfter)
		f.maybe = f.maybe || p.Code == perdure.CodeUnknown
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		f.again, f.node = true, true
	}
	if !ours && f.again {
		p.Code = perdure.CodeUnavailable
	}
	return f
}

// retryAfter parses the header Retry-After: seconds or a date.
func retryAfter(text string) time.Duration {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(text); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

// explain makes the error for the caller. It is always a problem with a code, except when the
// context of a read-only call ended.
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
	case said && (!maybe || coversEarlier(p)):
		return err // the server's answer
	case changes && maybe:
		unknown := api.NewProblem(perdure.CodeUnknown, what+" may or may not have counted", "")
		return fmt.Errorf("%w: %w", unknown, err)
	case said:
		return err
	case ctx.Err() != nil && !changes:
		return fmt.Errorf("%s: %w", what, err)
	default:
		unavailable := api.NewProblem(perdure.CodeUnavailable, what+" did not arrive, or was not answered", "")
		return fmt.Errorf("%w: %w", unavailable, err)
	}
}

// coversEarlier tells whether a refusal also decides the earlier attempts of the call. A refusal
// from before the server has read the call, such as a missing permission, does not.
func coversEarlier(p *api.Problem) bool {
	switch p.Code {
	case api.CodeUnauthorized, api.CodeForbidden, api.CodeHost, api.CodeRate:
		return false
	}
	return p.Status/100 == 4
}

// CodeOf returns the code of an error of this package, from the server or from the network. It is
// empty for nil, and for a read-only call whose context ended. A call that may have changed
// something before its context ended has [perdure.CodeUnknown].
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

// Transient tells whether the same call may succeed later: the server was not reached, was busy, or
// is shutting down. A call that changes something is repeated with the same key.
func Transient(err error) bool {
	switch CodeOf(err) {
	case perdure.CodeUnavailable, perdure.CodeUnknown, perdure.CodeQuota, perdure.CodeStorageFull,
		perdure.CodeNoSigner, api.CodeRate, api.CodeShuttingDown:
		return true
	}
	return false
}
