package runner

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/process/jobdir"
)

// sentinelLoop writes the sentinel: at once, then regularly, and when the status has changed. It has a
// goroutine of its own, so that a server that hangs does not delay it.
func (e *execution) sentinelLoop(ctx context.Context) {
	s := jobdir.Sentinel{JobID: e.dir.ID, WorkspacePath: e.dir.Path, AgentEngine: e.adaptor.Engine(),
		StartedAt: jobdir.Time(time.Now()), Tenant: e.grant.Tenant, Lock: e.lockID}
	for {
		s.Counter++
		lease, token := e.hold.now()
		s.Epoch = lease.Epoch
		s.LastHeartbeat = jobdir.Time(time.Now())
		s.Status, s.SessionID = e.state()
		// A sentinel that can't be written ends nothing: heartbeats are sent, too.
		err := e.dir.WriteSentinel(s, token)
		e.noteWrite(err)
		if err != nil {
			if s.WriteFailures++; s.WriteFailures&(s.WriteFailures-1) == 0 { // the 1st, 2nd, 4th, 8th …
				e.log.Warn("sentinel not written", "failures", s.WriteFailures, "writes", s.Counter, "error", err)
			}
		}
		select {
		case <-time.After(e.job.SentinelEvery):
		case <-e.kickSentinel:
		case <-ctx.Done():
			return
		}
	}
}
