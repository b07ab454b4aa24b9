package schedule

import (
	"time"
)

// The instants of a cron expression in a time zone.
//
// A time zone is a sequence of spans in which the distance to UTC is the same. Within a span, civil
// times and instants are the same up to that distance. So next walks over the spans, and looks for
// the first civil minute of the expression in each. Special cases are where a span begins:
//
//   - Civil times that were left out (clocks go forward) fire once, at the first instant of the span.
//   - Civil times that exist twice (clocks go back) fire the first time alone.
//
// An expression for every hour fires every hour of such a day. A civil time that was left out fires
// only if the rest of its hour exists, as on Lord Howe Island, where clocks go forward by half an
// hour. One that exists twice fires twice, unless clocks went back by less than an hour.

// horizon is how far ahead an instant is looked for. February 29 occurs at least every eight years.
const horizon = 12

// A span is a time in which a zone has one distance to UTC.
type span struct {
	begin, end time.Time // end is zero if the span never ends
	offset     time.Duration
}

// spanOf gives the span of an instant.
func spanOf(t time.Time, zone *time.Location) span {
	t = t.In(zone)
	begin, end := t.ZoneBounds()
	_, seconds := t.Zone()
	return span{begin, end, time.Duration(seconds) * time.Second}
}

// civil gives the time on the clocks of the span, written in UTC.
func (s *span) civil(t time.Time) time.Time { return t.UTC().Add(s.offset) }

// next gives the first instant of the expression after another one, within the horizon.
func (c *cron) next(after time.Time, zone *time.Location) (time.Time, bool) {
	limit := after.AddDate(horizon, 0, 0)
	for at, s := after, spanOf(after, zone); ; {
		end := s.end
		if end.IsZero() || end.After(limit) {
			end = limit
		}
		if t, ok := c.inSpan(&s, at, end, zone); ok {
			return t, true
		}
		if end.Equal(limit) {
			return time.Time{}, false
		}
		// An instant at the very begin of the next span counts too.
		at = s.end.Add(-1)
		s = spanOf(s.end, zone)
	}
}

// inSpan gives the first instant of the expression in a span, after one instant and before another.
func (c *cron) inSpan(s *span, after, end time.Time, zone *time.Location) (time.Time, bool) {
	from := after.Add(1)
	if from.Before(s.begin) {
		from = s.begin
	}
	first := s.civil(from)
	if !s.begin.IsZero() {
		before := spanOf(s.begin.Add(-1), zone)
		shift := s.offset - before.offset
		switch {
		case shift > 0 && from.Equal(s.begin):
			if c.leftOut(before.civil(s.begin), s.civil(s.begin)) {
				return s.begin, true
			}
		case shift < 0 && (!c.everyHour || shift > -time.Hour):
			// Times that the clocks showed before are not repeated.
			if shown := before.civil(s.begin); first.Before(shown) {
				first = shown
			}
		}
	}
	t, ok := c.from(first, s.civil(end))
	return t.Add(-s.offset), ok
}

// leftOut tells whether the expression has a civil time between two, the first of which did not exist.
func (c *cron) leftOut(from, to time.Time) bool {
	if c.everyHour {
		if hour := to.Truncate(time.Hour); from.Before(hour) {
			from = hour
		}
	}
	_, ok := c.from(from, to)
	return ok
}
