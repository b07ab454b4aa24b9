package connlimit

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// MinDescriptors is the smallest descriptor limit that a server runs with.
const MinDescriptors = 64

// noLimit stands for a process whose descriptors are not limited.
const noLimit = 1 << 20

// A Plan divides the descriptors of a process. Blocking calls are fewer than connections, so that there is
// always a connection for a health check or a short call.
type Plan struct {
	// Descriptors is how many files and sockets the process may have open.
	Descriptors int64
	// Conns is how many connections of clients may be open. The rest is for the store, files and webhooks.
	Conns int64
	// Blocking is how many calls may block at once: streams, sockets, waits and polls together.
	Blocking int64
	// Streams is how many of them may be streams, sockets and waits: three quarters of the descriptors.
	Streams int64
	// Polls is how many of them may be polls of workers.
	Polls int64
}

// PlanFor divides so many descriptors. An eighth, from 48 to 512, is kept from clients.
func PlanFor(descriptors int64) Plan {
	d := max(1, min(descriptors, noLimit))
	conns := max(8, d-min(512, max(48, d/8)))
	blocking := conns - max(4, conns/16)
	return Plan{Descriptors: d, Conns: conns, Blocking: blocking, Streams: min(blocking, d*3/4), Polls: max(1, min(blocking, d/2))}
}

// Descriptors is how many files and sockets this process may have open.
func Descriptors() int64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > math.MaxInt32 {
		return noLimit
	}
	return int64(r.Cur)
}

// Check refuses a limit with which a server could not work.
func Check(descriptors int64) error {
	if descriptors < MinDescriptors {
		return fmt.Errorf("this process may open %d files and sockets, and needs at least %d: raise the limit (ulimit -n)", descriptors, MinDescriptors)
	}
	return nil
}
