package schedule

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// A year of a server that looks every few minutes and is away now and then, in zones whose clocks change by an
// hour, by half an hour and at midnight: every day and every hour has one firing, whatever the clocks do.
func TestYearOfClockChanges(t *testing.T) {
	for _, x := range []struct{ zone, daily string }{
		{"Europe/Berlin", "30 2 * * *"}, {"America/New_York", "30 1 * * *"},
		{"Australia/Lord_Howe", "15 2 * * *"}, {"America/Santiago", "0 0 * * *"},
	} {
		zone, err := time.LoadLocation(x.zone)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Date(2026, 1, 1, 0, 0, 0, 0, zone)
		end := time.Date(2027, 1, 1, 0, 0, 0, 0, zone)
		for cron, want := range map[string]int{x.daily: 365, "0 * * * *": int(end.Sub(begin) / time.Hour)} {
			clock, err := NewClock(&Plan{Cron: cron, Timezone: x.zone, Missed: MissedAll}, "s", 0)
			if err != nil {
				t.Fatal(err)
			}
			next, _ := clock.Next(perdure.At(begin.Add(-time.Second)))
			fired, days := map[perdure.Instant]bool{}, map[string]int{}
			for n, now := 0, begin; now.Before(end); n, now = n+1, now.Add(7*time.Minute) {
				if n%500 == 0 {
					now = now.Add(5 * time.Hour) // nobody was there
				}
				for {
					due := clock.Due(next, min(perdure.At(now), perdure.At(end)-1))
					if due.Fire == 0 {
						break
					}
					if next = due.Next; fired[due.Fire] {
						t.Fatalf("%s in %s fires %s twice", cron, x.zone, due.Fire)
					}
					fired[due.Fire] = true
					days[due.Fire.Time().In(zone).Format(time.DateOnly)]++
				}
			}
			if len(fired) != want || len(days) != 365 {
				t.Errorf("%s in %s: %d firings on %d days, want %d on 365", cron, x.zone, len(fired), len(days), want)
			}
		}
	}
}
