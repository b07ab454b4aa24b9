package sentinel

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/wire/timer"
)

// The states of the recovery after a start.
const (
	RecoveryPending  = "pending"
	RecoveryRunning  = "running"
	RecoveryWatching = "watching"
	RecoveryFinished = "finished"
	// RecoveryElsewhere means that another server looks after the workspace.
	RecoveryElsewhere = "elsewhere"
)

// secondLook is the pause before the second look at locks that were free at the start.
const secondLook = 200 * time.Millisecond

// maxStartup bounds the lines of the startup log.
const maxStartup = 5000

// Recover makes the first scan after the server's start. Processes that may live are watched, results
// are adopted, and the runs of processes that are gone are lost. It stops at nothing: a file that
// can't be read is reported.
//
// Watching is stored with the run: no node gives it up before reattach_window is over, however long
// no server was there. The next sign of life ends it, and the run's log has run:process_reattached.
func (m *Monitor) Recover(ctx context.Context) {
	defer m.looked.Do(func() { close(m.recovered) })
	m.mu.Lock()
	m.recovery = Recovery{State: RecoveryRunning, StartedAt: m.engine.Now()}
	m.mu.Unlock()
	m.note("", "recovery begins in "+m.opt.Workspace)
	m.Scan(ctx)
	again := m.watch(ctx)
	if again && timer.Sleep(ctx, secondLook) {
		m.Scan(ctx)
	}
	m.mu.Lock()
	m.recovery.State = RecoveryWatching
	m.mu.Unlock()
	m.settle()
	c := m.Status()
	m.note("", fmt.Sprintf("recovery looked at everything: %d watched, %d adopted, %d dead, %d files set aside",
		c.Watched, c.Adopted, c.Dead, c.SetAside))
	m.log.Info("recovery of processes", "watched", c.Watched, "adopted", c.Adopted, "dead", c.Dead, "set_aside",
		c.SetAside)
}

// Recovered is closed when everything was looked at once. Processes may still be watched.
func (m *Monitor) Recovered() <-chan struct{} { return m.recovered }

// watch has the runs of all processes watched that may live. It tells whether there are free locks,
// which need a second look.
func (m *Monitor) watch(ctx context.Context) (again bool) {
	type candidate struct {
		id    string
		epoch int64
		t     perdure.TenantID
	}
	var list []candidate
	m.mu.Lock()
	for id, j := range m.jobs {
		if !j.known || !j.signed || j.state != perdure.Running || j.watched {
			continue
		}
		switch j.look.Lock {
		case LockFree:
			again = true
			continue
		case LockUnknown:
			if m.presumedDead(&j.file) {
				m.noteLocked(id, "not watched: its lock was replaced, and its last heartbeat is from "+
					j.file.LastHeartbeat)
				continue
			}
		}
		list = append(list, candidate{id, j.look.Epoch, j.tenant})
	}
	m.mu.Unlock()
	for len(list) > 0 && ctx.Err() == nil {
		n := min(len(list), readRuns)
		ops := make([]kernel.Op, n)
		for i, c := range list[:n] {
			ops[i] = &life.WatchProcess{Tenant: c.t, RunID: perdure.RunID(c.id), Epoch: c.epoch,
				For: m.opt.ReattachWindow}
		}
		for i, err := range m.engine.DoAll(ctx, ops...) {
			id := list[i].id
			if err != nil {
				m.note(id, "not watched: "+err.Error())
				continue
			}
			m.mu.Lock()
			if j := m.jobs[id]; j != nil {
				j.watched, j.watchedAt = true, m.engine.Now()
				m.recovery.Watched++
			}
			m.mu.Unlock()
			m.note(id, fmt.Sprintf("its lock is held: watched for %s", m.opt.ReattachWindow))
		}
		list = list[n:]
	}
	return again
}

// presumedDead tells whether a heartbeat is so old that the process is not watched. Its time is the
// runner's, and counts only where the lock tells nothing.
func (m *Monitor) presumedDead(s *jobdir.Sentinel) bool {
	at, err := time.Parse(time.RFC3339, s.LastHeartbeat)
	return err == nil && m.engine.Now().Time().Sub(at) > m.opt.PresumedDeadAfter
}

// settle counts the watched processes that were heard from or have ended. With the last one the
// recovery has finished.
func (m *Monitor) settle() {
	now := m.engine.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	left := 0
	for id, j := range m.jobs {
		switch {
		case !j.watched:
		case j.known && !j.ended() && j.seenAt > j.watchedAt:
			j.watched = false
			m.counts.Reattached++
			m.recovery.Reattached++
			m.noteLocked(id, "re-attached")
		case !j.known || j.ended():
			j.watched = false
			if j.seenAt > j.watchedAt {
				m.counts.Reattached++
				m.recovery.Reattached++
				m.noteLocked(id, "re-attached, and has ended: "+string(j.state))
			} else {
				m.recovery.Dead++
				m.noteLocked(id, "not heard from again: "+string(j.state))
			}
		default:
			left++
		}
	}
	if left == 0 && m.recovery.State == RecoveryWatching {
		m.noteLocked("", "recovery has finished")
		m.recovery.State, m.recovery.FinishedAt = RecoveryFinished, now
	}
}

// booting tells whether what happens belongs into the startup log.
func (m *Monitor) booting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.recovery.State == RecoveryRunning || m.recovery.State == RecoveryWatching
}

// note adds a line to the startup log while the recovery is under way.
func (m *Monitor) note(id, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLocked(id, text)
}

// noteLocked is note for a caller that holds the lock.
func (m *Monitor) noteLocked(id, text string) {
	if m.recovery.State != RecoveryRunning && m.recovery.State != RecoveryWatching {
		return
	}
	if len(m.startup) >= maxStartup {
		m.dropped++
		return
	}
	m.startup = append(m.startup, StartupLine{At: m.engine.Now(), JobID: id, Message: text})
	m.log.Info("recovery", "run", id, "did", text)
}
