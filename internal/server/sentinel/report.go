package sentinel

import (
	"cmp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// An Aside is a file that could not be used. To is where it was moved, if it could be.
type Aside struct {
	Path, Reason, To string

	at    perdure.Instant
	times int
}

// Counts are what the monitor has done since it was started.
type Counts struct {
	Reattached int
	Adopted    int
	Dead       int
	SetAside   int
	Removed    int
}

// Recovery is the state of the recovery after the server's start.
type Recovery struct {
	State      string
	StartedAt  perdure.Instant
	FinishedAt perdure.Instant
	Watched    int
	Reattached int
	Adopted    int
	Dead       int
	SetAside   int
}

// A StartupLine is a line of what recovery did.
type StartupLine struct {
	At      perdure.Instant
	JobID   string
	Message string
}

// A Seen is a sentinel with what the monitor knows of it.
type Seen struct {
	File jobdir.Sentinel
	Lock string
	// ObservedAt is when the sentinel was last read, MovedAt when its count last rose. Both are times
	// of the server.
	ObservedAt perdure.Instant
	MovedAt    perdure.Instant
	State      perdure.State
	SeenAt     perdure.Instant
}

// Workspace returns the folder of the processes.
func (m *Monitor) Workspace() string { return m.opt.Workspace }

// Status returns the state of the recovery.
func (m *Monitor) Status() Recovery {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recovery
	r.Adopted, r.Dead, r.SetAside = m.counts.Adopted, r.Dead+m.counts.Dead, m.counts.SetAside
	return r
}

// Counted returns what was done, how many sentinels runners could not write, and how many milliseconds
// the last scan took.
func (m *Monitor) Counted() (c Counts, writeFailures int64, scanMs float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.jobs {
		if j.signed && !j.ended() {
			writeFailures += j.file.WriteFailures
		}
	}
	return m.counts, writeFailures, float64(m.scanned.Microseconds()) / 1000
}

// Sentinels returns the sentinels of live runs in the order of their ids, after one of them.
func (m *Monitor) Sentinels(after string, limit int) (out []Seen, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for id, j := range m.jobs {
		if id > after && j.signed && !j.ended() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if more = len(ids) > limit; more {
		ids = ids[:limit]
	}
	for _, id := range ids {
		out = append(out, m.jobs[id].seenNow())
	}
	return out, more
}

// Sentinel returns the sentinel of a job, if there is one that counts.
func (m *Monitor) Sentinel(id string) (s Seen, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.jobs[id]
	if j == nil || !j.signed || j.ended() {
		return s, false
	}
	return j.seenNow(), true
}

func (j *job) seenNow() Seen {
	return Seen{File: j.file, Lock: j.look.Lock, ObservedAt: j.observed, MovedAt: j.memory.MovedAt, State: j.state,
		SeenAt: j.seenAt}
}

// SetAside returns the files that could not be used, the newest first.
func (m *Monitor) SetAside(limit int) []Aside {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Aside, 0, len(m.aside))
	for _, a := range m.aside {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b Aside) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(a.Path, b.Path)) })
	return out[:min(limit, len(out))]
}

// Startup returns lines of the startup log from a number on, and how many were not kept.
func (m *Monitor) Startup(from, limit int) (lines []StartupLine, total, dropped int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	total = len(m.startup)
	from = max(0, min(from, total))
	return slices.Clone(m.startup[from:min(total, from+limit)]), total, m.dropped
}

// Files tells which of a job's files are there: its sentinel, its folder, and anything that the command
// has left.
func (m *Monitor) Files(id string) (sentinel, folder, data bool) {
	d, err := jobdir.Of(m.opt.Workspace, id)
	if err != nil {
		return false, false, false
	}
	_, err = d.Changed()
	return d.Has(jobdir.SentinelFile), err == nil, d.HasData()
}

// Window returns how long a process is watched.
func (m *Monitor) Window() time.Duration { return m.opt.ReattachWindow }

// Watch remembers that a process is watched once more, because somebody has asked for it.
func (m *Monitor) Watch(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if j := m.jobs[id]; j != nil {
		j.watched, j.watchedAt = true, m.engine.Now()
	}
}
