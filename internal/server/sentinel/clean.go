package sentinel

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/wire/timer"
)

// Clean-up removes folders: those of runs that ended long enough ago, and those whose run does not
// exist any more. A folder whose lock is held stays. It is first moved out of the jobs, in one step,
// and deleted afterwards by a goroutine of its own, because a command may leave millions of files.

const (
	// maxRemovals bounds the folders that one scan removes, and maxChecks those whose run it looks for.
	maxRemovals = 1000
	maxChecks   = 2000
	// removeAgain is when a removal that failed is tried again.
	removeAgain = time.Hour
	// emptyEvery is the pause between two deletions of what was removed.
	emptyEvery = time.Second
	// emptyWait bounds how long the end of the server waits for a deletion. The next start goes on.
	emptyWait = time.Second
)

// clean removes a portion of the folders that nobody needs.
func (m *Monitor) clean(ctx context.Context) {
	m.findRemoved(ctx)
	now := m.engine.Now()
	var due []string
	m.mu.Lock()
	for id, j := range m.jobs {
		if len(due) < maxRemovals && j.retryAt <= now && m.removable(j, now) {
			due = append(due, id)
		}
	}
	m.mu.Unlock()
	for _, id := range due {
		if ctx.Err() != nil {
			return
		}
		m.remove(id, now)
	}
}

// removable tells whether a job's folder has had its time. The caller holds the lock.
//
// The folder of a run that was deleted goes at once, if this monitor has seen the run. Any other folder
// without a run may be somebody else's, or of a store that was restored from a backup. It stays as long
// as an ended one.
func (m *Monitor) removable(j *job, now perdure.Instant) bool {
	keep := m.opt.Retention
	switch {
	case j.ended():
		return now >= j.finished.Add(keep)
	case j.known || j.since == 0:
		return false
	case j.wasKnown:
		return true
	}
	return now >= j.since.Add(min(keep, time.Minute))
}

// remove removes a job's folder, unless somebody lives in it.
func (m *Monitor) remove(id string, now perdure.Instant) {
	d, err := jobdir.Of(m.opt.Workspace, id)
	if err != nil {
		return
	}
	m.mu.Lock()
	j := m.jobs[id]
	lock, overdue := j.file.Lock, j.ended() && now >= j.finished.Add(2*m.opt.Retention)
	foreign := !j.known && !j.wasKnown
	m.mu.Unlock()
	if overdue {
		lock = "" // somebody has replaced the lock: in the end, what is there decides
	}
	held, err := d.LockHeld(lock)
	if err != nil {
		m.bad(err, false)
	}
	if foreign && !held {
		at, err := d.Changed()
		held = err != nil || now.Time().Sub(at) < m.opt.Retention
	}
	if !held {
		err = jobdir.Discard(m.opt.Workspace, id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if held || err != nil {
		j.retryAt = now.Add(min(removeAgain, m.opt.Retention))
		if err != nil && !held {
			m.log.Warn("a job's folder could not be removed", "run", id, "error", err)
		}
		return
	}
	delete(m.jobs, id)
	m.counts.Removed++
}

// findRemoved looks for the runs of some folders of ended runs: those that were deleted need no folder.
func (m *Monitor) findRemoved(ctx context.Context) {
	var ids []string
	m.mu.Lock()
	for id, j := range m.jobs {
		if j.ended() && m.round-j.checked >= checkEvery {
			if ids = append(ids, id); len(ids) == maxChecks {
				break
			}
		}
	}
	m.mu.Unlock()
	runs, err := m.runs(ctx, ids)
	if err != nil {
		m.logError(ctx, "processes could not be read", err)
		return
	}
	now := m.engine.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		j := m.jobs[id]
		if j.checked = m.round; runs[id] == nil {
			j.known, j.since = false, now
		}
	}
}

// empty deletes what was removed, until the context ends.
func (m *Monitor) empty(ctx context.Context) {
	for {
		done := make(chan error, 1)
		go func() { done <- jobdir.Empty(m.opt.Workspace) }()
		select {
		case err := <-done:
			if err != nil {
				m.logError(ctx, "removed folders could not be deleted", err)
			}
		case <-ctx.Done():
			select {
			case <-done:
			case <-time.After(emptyWait):
			}
			return
		}
		pause := emptyEvery
		if m.opt.Scan > pause {
			pause = m.opt.Scan
		}
		if !timer.Sleep(ctx, pause) {
			return
		}
	}
}
