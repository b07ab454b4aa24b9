package connlimit

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// MinDescriptors is the smallest descriptor limit with which a server starts.
const MinDescriptors = 64

// noLimit is assumed for a process without a descriptor limit.
const noLimit = 1 << 20

// A Plan divides the descriptors of a process. Blocking calls are limited to fewer than the
// connections, so that a health check or a short call always finds one.
type Plan struct {
	// Descriptors is the limit of open files and sockets of the process.
	Descriptors int64
	// Conns limits the connections of clients. The rest is for the store, files and webhooks.
	Conns int64
	// Blocking limits all blocking calls together: streams, sockets, waits and polls.
	Blocking int64
	// Streams limits streams, sockets and waits, to three quarters of the descriptors.
	Streams int64
	// Polls limits the polls of workers, to half of the descriptors.
	Polls int64
}

// PlanFor divides a number of descriptors. An eighth of them, from 48 to 512, is reserved for the
// server.
func PlanFor(descriptors int64) Plan {
	d := max(1, min(descriptors, noLimit))
	conns := max(8, d-min(512, max(48, d/8)))
	blocking := conns - max(4, conns/16)
	return Plan{
		Descriptors: d, Conns: conns, Blocking: blocking,
		Streams: min(blocking, d*3/4), Polls: max(1, min(blocking, d/2)),
	}
}

// Descriptors returns the limit of open files and sockets of this process.
func Descriptors() int64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > math.MaxInt32 {
		return noLimit
	}
	return int64(r.Cur)
}

// Check returns an error for a descriptor limit that is too small for a server.
func Check(descriptors int64) error {
	if descriptors < MinDescriptors {
		return fmt.Errorf("this process may open %d files and sockets, and needs at least %d: "+
			"raise the limit (ulimit -n)", descriptors, MinDescriptors)
	}
	return nil
}
