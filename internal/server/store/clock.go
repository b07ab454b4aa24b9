package store

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
)

// startClock gives the clock of a store whose database has none. It reads the wall clock once and
// then counts on a monotonic clock that also runs while the machine is suspended. So setting the
// wall clock can't expire a lease. It never shows an instant before the last one stored.
func startClock(s *Store) (func() perdure.Instant, error) {
	last, wall := s.stored, perdure.At(time.Now())
	if ahead := last.Sub(wall); ahead > time.Hour && !s.opt.AnyClock {
		dir := filepath.Dir(s.opt.Path)
		return nil, fmt.Errorf("refusing to start: the store's last instant, %s, lies %s ahead of this machine's "+
			"clock, %s.\n"+
			"If this machine's clock is wrong now, set it right and start again.\n"+
			"If it was wrong before, see what that did with \"perdure clock --data %s\", and set the store's clock "+
			"back with "+
			"\"perdure clock reset --yes --data %s\".\n"+
			"A backup can be made before: \"perdure backup FILE --stopped --data %s\"", last, ahead.Round(time.Second),
			wall, dir, dir, dir)
	}
	if ahead := last.Sub(wall); ahead > ClockSlack && !s.opt.AnyClock {
		s.log.Warn("the store's clock is ahead of this machine's: until that has caught up, times are those of "+
			"the store", "ahead", ahead.Round(time.Millisecond), "store", last, "machine", wall)
	}
	start, zero := max(wall, last), counting()
	if s.opt.AnyClock {
		start = wall
	}
	return func() perdure.Instant { return start.Add(counting() - zero) }, nil
}

// ClockSlack is the difference between clocks of two boots that needs no warning.
const ClockSlack = time.Second

// Ahead tells how far the store's clock is ahead of the machine's.
func (s *Store) Ahead() time.Duration {
	if s.opt.Hooks.Clock != nil || !s.dialect.ownClock {
		return 0 // a test's clock, or the database's own
	}
	return s.Now().Sub(perdure.At(time.Now()))
}

// storedClock reads the latest instant from the database.
func storedClock(s Conn) (perdure.Instant, error) {
	var text string
	err := s.Query("SELECT value FROM meta WHERE name='clock'", nil,
		func(scan func(...any) error) error { return scan(&text) })
	if err != nil || text == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the store says that its clock stands at %q, which is no instant: it is damaged", text)
	}
	return perdure.Instant(n), nil
}

// processStart is the zero of counting on systems without CLOCK_BOOTTIME.
var processStart = time.Now()

// counting is a monotonic clock that also runs while the machine is suspended, where the system has
// one.
func counting() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(processStart)
	}
	return time.Duration(ts.Nano())
}
