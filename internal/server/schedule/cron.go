package schedule

import (
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// A cron expression has five fields: minute, hour, day of the month, month, day of the week. A field is
// *, a number, a range, or a list of these; a range and * take a step. Months and days of the week have
// names of three letters. Sunday is 0 or 7. If both days are restricted, either of them is enough, as
// in every cron since 1987.

// A cron is an expression as sets of numbers.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// everyHour says that the hour is *, anyDay and anyWeekday that the field begins with *.
	everyHour, anyDay, anyWeekday bool
}

// A field is what a field of an expression may have.
type field struct {
	name     string
	min, max int
	names    string // of three letters each, the first one for min
}

var cronFields = [5]field{
	{name: "minute", min: 0, max: 59},
	{name: "hour", min: 0, max: 23},
	{name: "day of the month", min: 1, max: 31},
	{name: "month", min: 1, max: 12, names: "janfebmaraprmayjunjulaugsepoctnovdec"},
	{name: "day of the week", min: 0, max: 7, names: "sunmontuewedthufrisat"},
}

// shorthands are expressions with a name.
var shorthands = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// parseCron reads an expression.
func parseCron(text string) (c cron, err error) {
	if strings.HasPrefix(text, "@") {
		long, ok := shorthands[strings.ToLower(text)]
		if !ok {
			return c, perdure.Unprocessable("cron", "%.40q is none of @hourly, @daily, @weekly, @monthly, @yearly",
				text)
		}
		text = long
	}
	parts := strings.Fields(text)
	if len(parts) != len(cronFields) {
		return c, perdure.Unprocessable("cron", "has %d fields; an expression has five: minute, hour, day of the "+
			"month, month, day of the week, such as \"30 2 * * mon-fri\"", len(parts))
	}
	for i, to := range []*uint64{&c.minutes, &c.hours, &c.days, &c.months, &c.weekdays} {
		if *to, err = cronFields[i].parse(parts[i]); err != nil {
			return c, err
		}
	}
	if c.weekdays&(1<<7) != 0 { // Sunday has two numbers
		c.weekdays = c.weekdays&^(1<<7) | 1
	}
	c.everyHour = parts[1] == "*" || parts[1] == "*/1"
	c.anyDay, c.anyWeekday = strings.HasPrefix(parts[2], "*"), strings.HasPrefix(parts[4], "*")
	return c, nil
}

// parse reads a field as the set of its numbers.
func (f *field) parse(text string) (set uint64, err error) {
	for item := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(item, "/")
		from, to, err := f.span(span)
		if err != nil {
			return 0, err
		}
		step := 1
		if stepped {
			if !strings.Contains(span, "-") { // "5/10" means "from 5 on"
				to = f.max
			}
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 || step > f.max {
				return 0, f.refuse("%.20q has no step from 1 to %d", item, f.max)
			}
		}
		for n := from; n <= to; n += step {
			set |= 1 << n
		}
	}
	return set, nil
}

// span reads "*", "5" or "mon-fri".
func (f *field) span(text string) (from, to int, err error) {
	if text == "*" {
		if f.max == 7 {
			return 0, 6, nil
		}
		return f.min, f.max, nil
	}
	first, last, ranged := strings.Cut(text, "-")
	if from, err = f.number(first); err != nil || !ranged {
		return from, from, err
	}
	if to, err = f.number(last); err == nil && to < from {
		err = f.refuse("%.20q ends before it begins", text)
	}
	return from, to, err
}

func (f *field) number(text string) (int, error) {
	if i := strings.Index(f.names, strings.ToLower(text)); len(text) == 3 && i >= 0 && i%3 == 0 {
		return f.min + i/3, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max || len(text) > 2 || text[0] == '+' {
		return 0, f.refuse("%.20q is no number from %d to %d", text, f.min, f.max)
	}
	return n, nil
}

func (f *field) refuse(form string, args ...any) error {
	err := perdure.Unprocessable("cron", form, args...)
	err.Message = f.name + ": " + err.Message
	return err
}

// onDay tells whether the expression has the day of a civil time.
func (c *cron) onDay(t time.Time) bool {
	if c.months&(1<<int(t.Month())) == 0 {
		return false
	}
	day, weekday := c.days&(1<<t.Day()) != 0, c.weekdays&(1<<int(t.Weekday())) != 0
	if c.anyDay || c.anyWeekday {
		return day && weekday
	}
	return day || weekday
}

// from gives the first civil minute of the expression at t or later, and before end. Civil times are
// written in UTC.
func (c *cron) from(t, end time.Time) (time.Time, bool) {
	if t.Second() != 0 || t.Nanosecond() != 0 {
		t = t.Truncate(time.Minute).Add(time.Minute)
	}
	hour, minute := t.Hour(), t.Minute()
	day := time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
	for ; day.Before(end); day = day.AddDate(0, 0, 1) {
		if c.onDay(day) {
			if h, m, ok := c.inDay(hour, minute); ok {
				at := day.Add(time.Duration(h)*time.Hour + time.Duration(m)*time.Minute)
				return at, at.Before(end)
			}
		}
		hour, minute = 0, 0
	}
	return time.Time{}, false
}

// inDay gives the first hour and minute of a day at a time of that day or later.
func (c *cron) inDay(hour, minute int) (h, m int, ok bool) {
	if c.hours&(1<<hour) != 0 {
		if left := c.minutes >> minute; left != 0 {
			return hour, minute + bits.TrailingZeros64(left), true
		}
	}
	left := c.hours >> (hour + 1)
	if left == 0 {
		return 0, 0, false
	}
	return hour + 1 + bits.TrailingZeros64(left), bits.TrailingZeros64(c.minutes), true
}
