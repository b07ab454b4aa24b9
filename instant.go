package perdure

import (
	"fmt"
	"strings"
	"time"
)

// An Instant is a point in time on the store's clock, in microseconds since 1970. Times of workers'
// and callers' clocks are never compared with it. Zero means "not set".
type Instant int64

// At converts a time to an Instant.
func At(t time.Time) Instant { return Instant(t.UnixMicro()) }

// Time converts the instant to a time in UTC.
func (i Instant) Time() time.Time { return time.UnixMicro(int64(i)).UTC() }

// Add returns the instant moved by d. d is truncated to microseconds.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d/time.Microsecond) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i-j) * time.Microsecond }

// IsZero tells whether the instant is not set.
func (i Instant) IsZero() bool { return i == 0 }

func (i Instant) String() string {
	if i == 0 {
		return "-"
	}
	return i.Time().Format(instantForm)
}

// instantForm is the written form of an instant.
const instantForm = "2006-01-02T15:04:05.000000Z"

// append appends the JSON of an instant.
func (i Instant) append(b []byte) []byte {
	if i == 0 {
		return append(b, "null"...)
	}
	return append(i.Time().AppendFormat(append(b, '"'), instantForm), '"')
}

// MarshalJSON writes RFC 3339 with microseconds, or null for an unset instant.
func (i Instant) MarshalJSON() ([]byte, error) {
	return i.append(make([]byte, 0, 48)), nil
}

// UnmarshalJSON reads RFC 3339.
func (i *Instant) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*i = 0
		return nil
	}
	var t time.Time
	if err := t.UnmarshalJSON(b); err != nil {
		return fmt.Errorf("%.60s is not an instant such as \"2026-01-02T15:04:05Z\"", b)
	}
	*i = At(t)
	return nil
}

// earliest returns the smaller of two instants; an unset one does not count.
func earliest(a, b Instant) Instant {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// A Duration is a time.Duration that is written as "1m30s" in JSON. Where a field allows it, Never
// means "no timeout of its own".
type Duration time.Duration

// Never is the timeout of a wait that ends only with its run.
const Never Duration = -1

func (d Duration) String() string {
	if d == Never {
		return "never"
	}
	return time.Duration(d).String()
}

// MarshalText writes "1m30s", or "never".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads "30s", "1h15m" or "never".
func (d *Duration) UnmarshalText(b []byte) error {
	s := strings.TrimSpace(string(b))
	if s == "never" {
		*d = Never
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil || strings.Trim(s, "+-") == "0" { // which would be the only one without a unit
		return fmt.Errorf("%q is not a duration such as \"30s\" or \"1h15m\"", s)
	}
	if v < 0 {
		return fmt.Errorf("%q is negative", s)
	}
	*d = Duration(v)
	return nil
}
