// Package wrongclock makes the clock of this process wrong, for tests of programs whose machine has a wrong clock. It
// replaces the first bytes of time.Now, so that all code of the process is deceived. As on a machine whose wall clock
// is wrong, the monotonic clock is right: timers and durations are as long as ever.
//
// It is for processes of tests alone.
package wrongclock

import (
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offset is how wrong the wall clock is, in nanoseconds.
var offset atomic.Int64

// zero and started are the same instant: as package time has it, and on the monotonic clock.
var (
	zero    reading
	started int64
)

// A reading is a time.Time with its parts: see the comments there.
type reading struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

// Bits of reading.wall.
const (
	hasMonotonic = 1 << 63
	nsecShift    = 30
	unixToWall   = 2_682_288_000 // seconds from 1885, where the wall clock of a reading begins, to 1970
)

// now is in the place of time.Now. The runtime calls it for timers, on a stack where an ordinary system call
// may not be made.
func now() time.Time {
	var wall, mono unix.Timespec
	syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&wall)), 0)
	syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&mono)), 0)
	at := wall.Nano() + offset.Load()
	r := reading{ext: zero.ext + mono.Nano() - started, loc: zero.loc,
		wall: hasMonotonic | uint64(at/1e9+unixToWall)<<nsecShift | uint64(at%1e9)}
	return *(*time.Time)(unsafe.Pointer(&r))
}

// Shift makes the wall clock wrong by a duration. The first call is made before other goroutines use the clock.
func Shift(d time.Duration) error {
	offset.Store(int64(d))
	if started != 0 {
		return nil
	}
	var mono unix.Timespec
	t := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
		return err
	}
	zero, started = *(*reading)(unsafe.Pointer(&t)), mono.Nano()
	f := now
	// movabs $f, %rdx; jmp *(%rdx): a call of a function value.
	code := binary.LittleEndian.AppendUint64([]byte{0x48, 0xba}, uint64(*(*uintptr)(unsafe.Pointer(&f))))
	code = append(code, 0xff, 0x22)
	// Unlike a plain write, one to this file may change code.
	mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	if _, err := mem.WriteAt(code, int64(reflect.ValueOf(time.Now).Pointer())); err != nil {
		return fmt.Errorf("replacing time.Now: %w", err)
	}
	return nil
}
