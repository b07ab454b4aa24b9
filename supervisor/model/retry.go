package model

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	longestPause  = 20 * time.Second
	maxRetryAfter = 24 * time.Hour // longer values are cut to this
)

// backoff returns the pause after the n-th failure, counted from zero. It doubles each time, with
// jitter, so that callers who failed together do not retry together.
func backoff(base time.Duration, n int) time.Duration {
	d := longestPause
	if n < 20 && base<<n < d {
		d = base << n
	}
	return d/2 + rand.N(d/2+1)
}

// sleep waits. It returns false if the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryAfter reads the header Retry-After: seconds, maybe with a fraction, or a date. A date is
// compared with the endpoint's own clock, if the answer has that. OpenAI's retry-after-ms is finer
// and has precedence.
func retryAfter(h http.Header) (time.Duration, bool) {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms >= 0 {
		return seconds(ms / 1000), true
	}
	text := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(text, 64); err == nil && s >= 0 {
		return seconds(s), true
	}
	if at, err := http.ParseTime(text); err == nil {
		now := time.Now()
		if there, err := http.ParseTime(h.Get("Date")); err == nil {
			now = there
		}
		return min(max(at.Sub(now), 0), maxRetryAfter), true
	}
	return 0, false
}

func seconds(s float64) time.Duration {
	if !(s < maxRetryAfter.Seconds()) { // so that NaN is cut too
		return maxRetryAfter
	}
	return time.Duration(s * float64(time.Second))
}
