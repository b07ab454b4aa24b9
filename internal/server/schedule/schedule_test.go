package schedule

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// at reads an instant.
func at(t *testing.T, text string) perdure.Instant {
	t.Helper()
	x, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return perdure.At(x)
}

func newClock(t *testing.T, p Plan, anchor string) *Clock {
	t.Helper()
	c, err := NewClock(&p, "sch_1", at(t, anchor))
	if err != nil {
		t.Fatalf("plan %+v: %v", p, err)
	}
	return c
}

// TestInstantsOfCron has expressions, also on days on which clocks change.
func TestInstantsOfCron(t *testing.T) {
	for _, x := range []struct {
		name, cron, zone, after string
		want                    []string
	}{
		{"every quarter of an hour", "*/15 * * * *", "", "2026-03-01T10:07:00Z",
			[]string{"2026-03-01T10:15:00Z", "2026-03-01T10:30:00Z", "2026-03-01T10:45:00Z", "2026-03-01T11:00:00Z"}},
		{"names, lists and ranges", "30 8,17 * jan-mar mon-fri", "", "2026-03-31T18:00:00Z",
			[]string{"2027-01-01T08:30:00Z", "2027-01-01T17:30:00Z", "2027-01-04T08:30:00Z"}},
		{"from a number on, with a step", "5/20 0 1 * *", "", "2026-03-31T18:00:00Z",
			[]string{"2026-04-01T00:05:00Z", "2026-04-01T00:25:00Z", "2026-04-01T00:45:00Z", "2026-05-01T00:05:00Z"}},
		{"either of two days", "0 0 13 * 5", "", "2026-03-01T00:00:00Z",
			[]string{"2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z", "2026-03-20T00:00:00Z"}},
		{"Sunday is 7", "0 12 * * 7", "", "2026-11-18T00:00:00Z", []string{"2026-11-22T12:00:00Z"}},
		{"a leap day", "0 0 29 2 *", "", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"a shorthand", "@monthly", "", "2026-12-31T23:59:59Z", []string{"2027-01-01T00:00:00Z"}},

		{"a time that is left out fires once, after the gap", "30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"several that are left out fire once", "*/20 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"one that begins after the gap fires once", "0 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T01:00:00Z"}},
		{"a time that exists twice fires the first time", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"the hour after it is as usual", "0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"}},
		{"midnight that is left out", "0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z",
			[]string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		{"a day that is left out", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z",
			[]string{"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},
		{"hourly, when clocks go forward", "15 * * * *", "America/New_York", "2026-03-08T05:30:00Z",
			[]string{"2026-03-08T06:15:00Z", "2026-03-08T07:15:00Z", "2026-03-08T08:15:00Z"}},
		{"hourly, when clocks go back", "15 * * * *", "America/New_York", "2026-11-01T04:30:00Z",
			[]string{"2026-11-01T05:15:00Z", "2026-11-01T06:15:00Z", "2026-11-01T07:15:00Z"}},
		{"hourly, half an hour forward", "0 * * * *", "Australia/Lord_Howe", "2026-10-03T14:00:00Z",
			[]string{"2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"}},
		{"hourly, half an hour back", "45 * * * *", "Australia/Lord_Howe", "2026-04-04T13:50:00Z",
			[]string{"2026-04-04T14:45:00Z", "2026-04-04T16:15:00Z"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newClock(t, Plan{Cron: x.cron, Timezone: x.zone}, x.after)
			var got []string
			for now := at(t, x.after); len(got) < len(x.want); {
				next, ok := c.Next(now)
				if !ok {
					break
				}
				got, now = append(got, next.Time().Format(time.RFC3339)), next
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("%q in %q after %s: instants %v, want %v", x.cron, x.zone, x.after, got, x.want)
			}
		})
	}
}

// TestCronAgreesWithAWalkOverMinutes compares two weeks without changes of clocks with a reader that looks
// at each minute.
func TestCronAgreesWithAWalkOverMinutes(t *testing.T) {
	for _, zone := range []string{"UTC", "America/New_York", "Asia/Kolkata"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"0 * * * *", "*/7 * * * *", "45 */6 2-20 * *", "5 4 * * sun", "30 12 1,15 * 3"} {
			c := newClock(t, Plan{Cron: text, Timezone: zone}, "2026-01-25T00:00:00Z")
			now := at(t, "2026-01-25T00:00:00Z")
			end := now.Time().AddDate(0, 0, 14)
			for minute := now.Time().Add(time.Minute); minute.Before(end); minute = minute.Add(time.Minute) {
				civil := minute.In(loc)
				shown := time.Date(civil.Year(), civil.Month(), civil.Day(), 0, 0, 0, 0, time.UTC)
				if c.cron.minutes&(1<<civil.Minute()) == 0 || c.cron.hours&(1<<civil.Hour()) == 0 ||
					!c.cron.onDay(shown) {
					continue
				}
				next, ok := c.Next(now)
				if !ok || next.Time() != minute {
					t.Fatalf("%q in %s after %s: instant %s, want %s", text, zone, now, next, minute)
				}
				now = next
			}
		}
	}
}

func TestDue(t *testing.T) {
	const start = "2026-03-01T00:00:00Z"
	for _, x := range []struct {
		name      string
		plan      Plan
		next, now string
		want      string // "instant missed next", times of one day
	}{
		{"not yet", Plan{Every: perdure.Duration(time.Hour)}, "01:00:00", "00:59:59", "- 0 01:00:00"},
		{"in time", Plan{Every: perdure.Duration(time.Hour)}, "01:00:00", "01:00:00", "01:00:00 0 02:00:00"},
		{"late, but within grace", Plan{Every: perdure.Duration(time.Hour), Missed: MissedSkip},
			"01:00:00", "01:00:59", "01:00:00 0 02:00:00"},
		{"missed, once", Plan{Every: perdure.Duration(time.Hour)}, "01:00:00", "04:30:00", "04:00:00 3 05:00:00"},
		{"missed, once, by cron", Plan{Cron: "0 * * * *"}, "01:00:00", "04:30:00", "04:00:00 3 05:00:00"},
		{"missed, skipped", Plan{Every: perdure.Duration(time.Hour), Missed: MissedSkip},
			"01:00:00", "04:30:00", "- 4 05:00:00"},
		{"missed but for the latest", Plan{Every: perdure.Duration(time.Hour), Missed: MissedSkip},
			"01:00:00", "04:00:10", "04:00:00 3 05:00:00"},
		{"all, one by one", Plan{Every: perdure.Duration(time.Hour), Missed: MissedAll},
			"01:00:00", "04:30:00", "01:00:00 0 02:00:00"},
		{"all, at most a hundred", Plan{Cron: "* * * * *", Missed: MissedAll},
			"01:00:00", "04:00:10", "02:21:00 81 02:22:00"},
		{"the last one", Plan{Every: perdure.Duration(time.Hour), EndAt: at(t, "2026-03-01T02:30:00Z")},
			"02:00:00", "02:00:01", "02:00:00 0 -"},
		{"more than are counted, by cron", Plan{Cron: "* * * * *"}, "00:01:00", "23:59:30", "23:59:00 1000 +00:00:00"},
		{"more than are counted", Plan{Every: perdure.Duration(10 * time.Second)}, "00:01:00", "23:59:35",
			"23:59:30 1000 23:59:40"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newClock(t, x.plan, start)
			d := c.Due(at(t, "2026-03-01T"+x.next+"Z"), at(t, "2026-03-01T"+x.now+"Z"))
			show := func(i perdure.Instant) string {
				switch {
				case i == 0:
					return "-"
				case i.Time().Day() > 1:
					return i.Time().Format("+15:04:05")
				}
				return i.Time().Format("15:04:05")
			}
			if got := strings.Join([]string{show(d.Fire), strconv.Itoa(d.Missed), show(d.Next)}, " "); got != x.want {
				t.Errorf("due = %s, want %s", got, x.want)
			}
		})
	}
}

// TestJitterStaysBeforeTheNextInstant also checks that it differs from instant to instant.
func TestJitterStaysBeforeTheNextInstant(t *testing.T) {
	c := newClock(t, Plan{Every: perdure.Duration(time.Minute), Jitter: perdure.Duration(time.Hour)},
		"2026-03-01T00:00:00Z")
	different := map[time.Duration]bool{}
	now := at(t, "2026-03-01T00:00:00Z")
	for range 50 {
		next, _ := c.Next(now)
		after, _ := c.Next(next)
		fire := c.FireAt(next)
		if fire < next || fire >= after {
			t.Fatalf("instant %s fires at %s, and the next one is %s", next, fire, after)
		}
		different[fire.Sub(next)] = true
		now = next
	}
	if len(different) < 45 {
		t.Errorf("50 instants have %d different jitters", len(different))
	}
}

func TestRefusedPlans(t *testing.T) {
	for _, x := range []struct {
		plan  Plan
		field string
		code  perdure.Code
		text  string
	}{
		{Plan{}, "cron", perdure.CodeUnprocessable, "either cron or every"},
		{Plan{Cron: "* * * * *", Every: perdure.Duration(time.Hour)}, "cron", perdure.CodeUnprocessable, "either"},
		{Plan{Cron: "* * * *"}, "cron", perdure.CodeUnprocessable, "has 4 fields"},
		{Plan{Cron: "60 * * * *"}, "cron", perdure.CodeUnprocessable, "minute: \"60\" is no number from 0 to 59"},
		{Plan{Cron: "* * * foo *"}, "cron", perdure.CodeUnprocessable, "month"},
		{Plan{Cron: "* * * ebm *"}, "cron", perdure.CodeUnprocessable, "month"},
		{Plan{Cron: "*/0 * * * *"}, "cron", perdure.CodeUnprocessable, "step"},
		{Plan{Cron: "5-1 * * * *"}, "cron", perdure.CodeUnprocessable, "ends before it begins"},
		{Plan{Cron: "+5 * * * *"}, "cron", perdure.CodeUnprocessable, "minute"},
		{Plan{Cron: "@often"}, "cron", perdure.CodeUnprocessable, "@hourly"},
		{Plan{Cron: "30 2 30 2 *"}, "cron", perdure.CodeNeverFires, "no day"},
		{Plan{Cron: "* * * * *", Timezone: "Europe/Bonn"}, "timezone", perdure.CodeUnprocessable, "no time zone"},
		{Plan{Cron: "* * * * *", Timezone: "Local"}, "timezone", perdure.CodeUnprocessable, "another node"},
		{Plan{Cron: "* * * * *", Timezone: "../../etc/passwd"}, "timezone", perdure.CodeUnprocessable, "no time zone"},
		{Plan{Every: perdure.Duration(time.Second)}, "every", perdure.CodeUnprocessable, "between 10s"},
		{Plan{Every: perdure.Duration(10500 * time.Millisecond)}, "every", perdure.CodeUnprocessable, "whole seconds"},
		{Plan{Every: perdure.Duration(time.Hour), Timezone: "UTC"}, "timezone",
			perdure.CodeUnprocessable, "goes with cron"},
		{Plan{Every: perdure.Duration(time.Hour), Jitter: perdure.Duration(25 * time.Hour)}, "jitter",
			perdure.CodeUnprocessable, "24h"},
		{Plan{Every: perdure.Duration(time.Hour), StartAt: 2, EndAt: 1}, "end_at", perdure.CodeUnprocessable, "after"},
		{Plan{Every: perdure.Duration(time.Hour), Overlap: "never"}, "overlap",
			perdure.CodeUnprocessable, "cancel_old"},
		{Plan{Every: perdure.Duration(time.Hour), Missed: "never"}, "missed", perdure.CodeUnprocessable, "once"},
	} {
		_, err := NewClock(&x.plan, "sch_1", at(t, "2026-03-01T00:00:00Z"))
		var refused *perdure.Error
		if !errors.As(err, &refused) || refused.Field != x.field || refused.Code != x.code ||
			!strings.Contains(refused.Message, x.text) {
			t.Errorf("plan %+v: error %v, want %s of %s with %q", x.plan, err, x.code, x.field, x.text)
		}
	}
}

func FuzzCron(f *testing.F) {
	f.Add("*/5 1-3,7 * jan mon", int64(1_700_000_000))
	f.Fuzz(func(t *testing.T, text string, second int64) {
		c, err := NewClock(&Plan{Cron: text, Timezone: "Europe/Berlin"}, "sch_1", 1)
		if err != nil {
			return
		}
		now := perdure.At(time.Unix(second%4e9, 0))
		if next, ok := c.Next(now); ok && next <= now {
			t.Errorf("%q: the instant after %s is %s", text, now, next)
		}
	})
}
