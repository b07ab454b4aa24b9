package sentinel

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// read looks at a job's files. ok is false if there is no sentinel that counts: there is none, or it
// can't be read, or it is not signed. A file that is wrong is reported.
func (m *Monitor) read(d jobdir.Dir) (s jobdir.Sentinel, l Look, ok bool) {
	s, err := d.ReadSentinel()
	if err == nil && !m.signed(s.Verify, s.Tenant, perdure.RunID(d.ID), s.Epoch) {
		err = &jobdir.BadFile{Path: d.Path + "/" + jobdir.SentinelFile, Reason: "is not signed by the job's runner"}
	}
	if err != nil {
		m.bad(err, true)
		return s, l, false
	}
	l = Look{Epoch: s.Epoch, Counter: s.Counter, Lock: LockHeld}
	held, err := d.LockHeld(s.Lock)
	switch {
	case err != nil:
		l.Lock = LockUnknown
		m.bad(err, false)
	case !held:
		l.Lock = LockFree
	}
	// The lock is looked at first: a file that is not there after it was free will never be.
	l.Result = d.Has(jobdir.ResultFile)
	return s, l, true
}

// result reads the job's result of an epoch, or of the former one of a process that has outlived its
// store. A result that does not count is reported and set aside.
func (m *Monitor) result(d jobdir.Dir, tenant perdure.TenantID, epoch, former int64) (r jobdir.Result, ok bool) {
	r, err := d.ReadResult()
	if err == nil && (r.Tenant != tenant || !m.signed(r.Verify, r.Tenant, perdure.RunID(d.ID), r.Commit.Epoch)) {
		err = &jobdir.BadFile{Path: d.Path + "/" + jobdir.ResultFile, Reason: "is not signed by the job's runner"}
	}
	if err != nil {
		m.bad(err, true)
		return r, false
	}
	if former != 0 && r.Commit.Epoch == former {
		r.Commit.Epoch = epoch
	}
	return r, r.Commit.Epoch == epoch
}

// signed tells whether a file was signed by the runner of an epoch, under any root secret that counts.
func (m *Monitor) signed(verify func(string) bool, t perdure.TenantID, run perdure.RunID, epoch int64) bool {
	return slices.ContainsFunc(m.engine.ProcessTokens(t, run, epoch), verify)
}

// bad reports a file that can't be used, once, and sets it aside if that is asked for and possible. A
// file that is not there is no news.
func (m *Monitor) bad(err error, aside bool) {
	var file *jobdir.BadFile
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case errors.As(err, &file):
	default:
		var path *fs.PathError
		if !errors.As(err, &path) {
			m.log.Warn("workspace", "error", err)
			return
		}
		file, aside = &jobdir.BadFile{Path: path.Path, Reason: path.Err.Error()}, false
	}
	m.mu.Lock()
	before, known := m.aside[file.Path]
	full := len(m.aside) >= maxReports
	m.mu.Unlock()
	if !known && full || known && before.Reason == file.Reason && before.times >= maxAsideEach {
		return
	}
	report := Aside{Path: file.Path, Reason: file.Reason, at: m.engine.Now(), times: before.times + 1}
	if aside && report.times <= maxAsideEach && !m.asideFull {
		if to, err := jobdir.SetAside(m.opt.Workspace, file.Path); err == nil {
			report.To = to
			m.asideFull = jobdir.AsideFull(m.opt.Workspace)
			m.count(func(c *Counts) { c.SetAside++ })
		}
	}
	m.mu.Lock()
	m.aside[file.Path] = report
	m.mu.Unlock()
	m.log.Warn("bad file in the workspace", "path", file.Path, "reason", file.Reason, "moved_to", report.To)
	if m.booting() {
		m.note("", "set aside "+file.Path+": "+file.Reason)
	}
}
