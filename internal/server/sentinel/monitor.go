package sentinel

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/wire/redact"
	"github.com/perdure/perdure/internal/wire/timer"
)

// Options configures a monitor. Zero durations have the defaults below.
type Options struct {
	// Workspace is the folder of the processes. Its folder jobs has a folder for each.
	Workspace string
	// Scan is the pause between two scans.
	Scan time.Duration
	// ReattachWindow is how long a process is watched after the server's start before it may be given up.
	ReattachWindow time.Duration
	// PresumedDeadAfter is the age of a heartbeat from which on a process is not watched, if its lock
	// tells nothing.
	PresumedDeadAfter time.Duration
	// Retention is how long the folder of an ended run is kept.
	Retention time.Duration

	Logger *slog.Logger
	// Secrets are removed from the output that is adopted.
	Secrets *redact.Set
}

// Defaults of the settings.
const (
	DefaultScan              = 15 * time.Second
	DefaultReattachWindow    = 5 * time.Minute
	DefaultPresumedDeadAfter = 30 * time.Minute
	DefaultRetention         = 24 * time.Hour
)

// Bounds of a scan and of what the monitor keeps.
const (
	// maxEntries bounds the entries of the folder of jobs that a scan lists.
	maxEntries = 1_000_000
	// maxJobs bounds the jobs that are remembered. Folders beyond it wait until others are gone.
	maxJobs = 250_000
	// readTime bounds the time in which a scan reads folders that it does not know. The next one goes on.
	readTime = 2 * time.Second
	// actTime bounds the time that a scan spends on adoptions and losses.
	actTime = 10 * time.Second
	// readRuns is how many runs are read in one query, and written in one operation.
	readRuns = 256
	// orphanEvery is after how many scans a folder without a run is looked at again.
	orphanEvery = 20
	// checkEvery is after how many scans the run of a job is read although nothing moves.
	checkEvery = 4
	// maxReports bounds the bad files that are reported.
	maxReports = 1000
	// maxAsideEach is how often a file of the same path is set aside. After that it stays.
	maxAsideEach = 3
	// maxJunk bounds the entries without a job that one scan handles.
	maxJunk = 100
	// restFactor times the time of a scan is the least pause after it: at most a tenth of a core.
	restFactor = 10
)

// A Monitor watches the processes of one workspace. Scans are made by one goroutine; reports may be
// read by any.
type Monitor struct {
	engine *engine.Engine
	opt    Options
	log    *slog.Logger

	mu   sync.Mutex // taken before the lock of the store's clock
	jobs map[string]*job
	// aside has the bad files that were found, by path.
	aside    map[string]Aside
	counts   Counts
	recovery Recovery
	startup  []StartupLine
	// dropped counts lines of the startup log that were not kept.
	dropped int
	scanned time.Duration

	// round counts scans.
	round     int
	asideFull bool
	recovered chan struct{}
	// looked closes recovered.
	looked sync.Once
}

// A job is a folder of the workspace. Fields are changed under the monitor's lock.
type job struct {
	// seen is the last round that found the folder.
	seen int
	// checked is the last round that read its run.
	checked int

	memory Memory
	look   Look
	// file is the last sentinel that counted.
	file     jobdir.Sentinel
	signed   bool
	moved    bool
	observed perdure.Instant

	tenant perdure.TenantID
	// known tells that run is a run of the store.
	known    bool
	state    perdure.State
	seenAt   perdure.Instant
	finished perdure.Instant
	// wasKnown tells that the run was of the store at some time.
	wasKnown bool
	// watched tells that the job may have outlived the server, and has not been heard from since then.
	watched   bool
	watchedAt perdure.Instant
	// rest tells that the run has ended while its runner held it, and the rest of its output is to be
	// copied; copied tells that this was done.
	rest, copied bool
	// hung tells that the process is not heard from although its lock is held.
	hung bool
	// since is when the folder was first seen without a run.
	since perdure.Instant
	// retryAt is when the removal of the folder is tried again.
	retryAt perdure.Instant
}

// ended tells that the folder is only kept for a while.
func (j *job) ended() bool { return j.known && j.state.Terminal() }

// New makes a monitor.
func New(e *engine.Engine, opt Options) *Monitor {
	for _, x := range []struct {
		d   *time.Duration
		def time.Duration
	}{{&opt.Scan, DefaultScan}, {&opt.ReattachWindow, DefaultReattachWindow},
		{&opt.PresumedDeadAfter, DefaultPresumedDeadAfter}, {&opt.Retention, DefaultRetention}} {
		if *x.d == 0 {
			*x.d = x.def
		}
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	return &Monitor{engine: e, opt: opt, log: opt.Logger, jobs: make(map[string]*job), aside: make(map[string]Aside),
		recovery: Recovery{State: RecoveryPending}, recovered: make(chan struct{})}
}

// Run recovers, and then scans and cleans up until the context ends. Where another server looks after
// the workspace, it says so and waits until that one is gone: two would adopt, set aside and remove the
// same files.
func (m *Monitor) Run(ctx context.Context) error {
	owned := m.own(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if owned != nil {
		defer owned.Close()
	}
	m.Recover(ctx)
	var cleaning sync.WaitGroup
	cleaning.Go(func() { m.empty(ctx) })
	defer cleaning.Wait()
	next := time.NewTimer(m.opt.Scan)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		took := m.Scan(ctx)
		next.Reset(max(m.opt.Scan, restFactor*took))
	}
}

// own waits until no other server looks after the workspace. It returns the lock, or nil where the file
// system has none.
func (m *Monitor) own(ctx context.Context) *os.File {
	for told := false; ; told = true {
		f, err := jobdir.Own(m.opt.Workspace)
		if err == nil {
			return f
		}
		if !errors.Is(err, jobdir.ErrLocked) {
			m.log.Warn("the workspace can't be locked: keep other servers away from it", "workspace", m.opt.Workspace,
				"error", err)
			return nil
		}
		if !told {
			m.log.Warn("another server looks after the workspace: this one leaves it alone", "workspace",
				m.opt.Workspace)
			m.mu.Lock()
			m.recovery = Recovery{State: RecoveryElsewhere}
			m.mu.Unlock()
			m.looked.Do(func() { close(m.recovered) })
		}
		if !timer.Sleep(ctx, m.opt.Scan) {
			return nil
		}
	}
}

// Scan looks at the workspace once and acts on what it finds. It returns how long the looking took.
func (m *Monitor) Scan(ctx context.Context) time.Duration {
	began := time.Now()
	live, err := m.list()
	if err != nil {
		m.bad(err, false)
		return time.Since(began)
	}
	now := m.engine.Now()
	ask := m.observe(live, now, began)
	runs, err := m.runs(ctx, ask)
	if err != nil {
		m.logError(ctx, "processes could not be read", err)
		return time.Since(began)
	}
	m.mu.Lock()
	beats, todo := m.judge(ask, runs, now)
	m.scanned = time.Since(began)
	m.mu.Unlock()
	for len(beats) > 0 {
		n := min(len(beats), readRuns)
		if err := m.engine.Do(ctx, &life.ProcessBeat{Beats: beats[:n]}); err != nil {
			m.logError(ctx, "signs of life could not be written", err)
		}
		beats = beats[n:]
	}
	took := time.Since(began)
	m.act(ctx, todo)
	m.clean(ctx)
	m.settle()
	return took
}

// list finds the folders of the workspace and returns the jobs that have to be looked at: those that
// are not known to have ended. Folders that are gone are forgotten.
func (m *Monitor) list() (live []string, err error) {
	if err := jobdir.Check(m.opt.Workspace); err != nil {
		return nil, err
	}
	m.round++
	var junk []string
	_, err = jobdir.Jobs(m.opt.Workspace, maxEntries, func(d jobdir.Dir, ok bool) {
		if !ok {
			if len(junk) < maxJunk {
				junk = append(junk, d.Path)
			}
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		j := m.jobs[d.ID]
		if j == nil {
			if len(m.jobs) >= maxJobs {
				return
			}
			j = &job{}
			m.jobs[d.ID] = j
		}
		if j.seen = m.round; (!j.ended() || j.rest) && !(j.since != 0 && m.round-j.checked < orphanEvery) {
			live = append(live, d.ID)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, path := range junk {
		m.bad(&jobdir.BadFile{Path: path, Reason: "is no folder of a job"}, true)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, j := range m.jobs {
		if j.seen != m.round {
			delete(m.jobs, id)
		}
	}
	return live, nil
}

// observe reads the files of jobs, and returns those whose run has to be read: something has moved, or
// nobody has looked for a while.
func (m *Monitor) observe(ids []string, now perdure.Instant, began time.Time) (ask []string) {
	for _, id := range ids {
		m.mu.Lock()
		j := m.jobs[id]
		fresh := j.checked == 0
		m.mu.Unlock()
		if fresh && time.Since(began) > readTime {
			continue
		}
		d, err := jobdir.Of(m.opt.Workspace, id)
		if err != nil {
			continue
		}
		s, l, ok := m.read(d)
		m.mu.Lock()
		if ok && l.Epoch < j.memory.Epoch {
			ok = false // somebody has put an older file back
		}
		j.signed = ok
		if j.moved = false; ok {
			j.file, j.look, j.tenant, j.observed = s, l, s.Tenant, now
			j.moved = j.memory.Observe(l, now)
		}
		if !j.known || !ok || j.moved || j.watched || j.hung || j.rest || l.Lock == LockFree || l.Result ||
			m.round-j.checked >= checkEvery {
			ask = append(ask, id)
		}
		m.mu.Unlock()
	}
	return ask
}

// runs reads the runs of jobs.
func (m *Monitor) runs(ctx context.Context, ids []string) (map[string]*perdure.Run, error) {
	out := make(map[string]*perdure.Run, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), readRuns)
		part := make([]perdure.RunID, n)
		for i, id := range ids[:n] {
			part[i] = perdure.RunID(id)
		}
		list, err := m.engine.Processes.Of(ctx, part)
		if err != nil {
			return nil, err
		}
		for i := range list {
			out[string(list[i].ID)] = &list[i]
		}
		ids = ids[n:]
	}
	return out, nil
}

// A task is something that a scan has to do about a job.
type task struct {
	dir jobdir.Dir
	run perdure.Run
	// lost is set for a process that is gone, and former for one whose files are of an epoch from before
	// a restore; otherwise its result is adopted.
	lost   bool
	since  perdure.Instant
	former int64
	// hung is set for a process that is not heard from although its lock is held: its output is copied.
	hung bool
	// ended is set for a process whose run was ended by somebody else than its runner: the rest of its
	// output is copied.
	ended bool
}

// judge updates jobs by their runs, and returns the signs of life and the tasks. The caller holds the
// lock.
func (m *Monitor) judge(
	ids []string, runs map[string]*perdure.Run, now perdure.Instant,
) (beats []life.Sentinel, todo []task) {
	for _, id := range ids {
		j, r := m.jobs[id], runs[id]
		j.checked = m.round
		if j.known = r != nil; !j.known {
			if j.since == 0 {
				j.since = now
			}
			continue
		}
		j.since = 0
		j.update(r)
		if !j.signed || r.Tenant != j.file.Tenant {
			continue
		}
		d, err := jobdir.Of(m.opt.Workspace, id)
		if err != nil {
			continue
		}
		look := j.look
		if r.State.Terminal() {
			// An end that is not by the holder raises the epoch.
			if j.hung, j.rest = false, !j.copied && r.Epoch == look.Epoch+1; j.rest {
				ended := *r
				ended.Epoch = look.Epoch
				todo = append(todo, task{dir: d, run: ended, ended: true})
			}
			continue
		}
		switch {
		case r.Former != 0 && r.Former == look.Epoch:
			look.Epoch = r.Epoch // its runner does not know the new epoch yet
		case life.Outlived(r, look.Epoch) && r.Former == 0:
			todo = append(todo, task{dir: d, run: *r, former: look.Epoch})
			continue
		}
		do := j.memory.Judge(look, r, j.moved)
		if do.Beat {
			beats = append(beats, life.Sentinel{Tenant: r.Tenant, RunID: r.ID, Epoch: look.Epoch,
				Counter: look.Counter})
		}
		if do.Adopt || do.Lost {
			todo = append(todo, task{dir: d, run: *r, lost: do.Lost, since: j.memory.FreeSince})
			continue
		}
		silent := r.State == perdure.Running && r.Epoch == look.Epoch && r.HolderSeen
		if j.hung = silent && !look.Result && m.engine.Policy().Tier(r, now) != perdure.TierFresh; j.hung {
			todo = append(todo, task{dir: d, run: *r, hung: true})
		}
	}
	return beats, todo
}

// update takes over what the run's row says.
func (j *job) update(r *perdure.Run) {
	j.tenant, j.state, j.seenAt, j.finished = r.Tenant, r.State, r.SeenAt, r.FinishedAt
	j.wasKnown = true
	if r.State.Terminal() {
		j.file = jobdir.Sentinel{Tenant: j.file.Tenant, Epoch: j.file.Epoch, Lock: j.file.Lock}
	}
}

// act adopts results and takes runs from processes that are gone.
func (m *Monitor) act(ctx context.Context, todo []task) {
	until := time.Now().Add(actTime)
	for i := range todo {
		if time.Now().After(until) || ctx.Err() != nil {
			return
		}
		t := &todo[i]
		if t.former != 0 {
			m.find(ctx, t)
			continue
		}
		if t.hung || t.ended {
			m.copyHung(ctx, t, until)
			continue
		}
		err := m.unwatch(ctx, t)
		switch {
		case err != nil:
		case t.lost:
			err = m.lose(ctx, t, until)
		default:
			err = m.adopt(ctx, t.dir, &t.run, until)
		}
		switch {
		case err == nil, errors.Is(err, errLater), perdure.CodeOf(err) == perdure.CodeStaleEpoch,
			perdure.CodeOf(err) == perdure.CodeWrongState, perdure.CodeOf(err) == perdure.CodeNotFound:
			// The run has gone on meanwhile, or the next scan goes on.
		default:
			m.logError(ctx, "a process could not be ended", err, "run", t.dir.ID)
		}
	}
}

// find says that a process has outlived its store: its files are from before a restore. The next scan
// judges them as those of the run's epoch, and its runner is given that epoch by its next heartbeat.
func (m *Monitor) find(ctx context.Context, t *task) {
	err := m.engine.Do(ctx, &life.ReadoptProcess{Tenant: t.run.Tenant, RunID: t.run.ID, Former: t.former,
		For: m.opt.ReattachWindow})
	if err != nil {
		m.note(t.dir.ID, "from before the restore, and not taken back: "+err.Error())
		return
	}
	m.note(t.dir.ID, "from before the restore: taken back")
	m.log.Info("process has outlived its store", "run", t.dir.ID)
	m.mu.Lock()
	if j := m.jobs[t.dir.ID]; j != nil {
		j.watched, j.watchedAt = true, m.engine.Now()
		m.recovery.Watched++
	}
	m.mu.Unlock()
}

// copyHung copies the output of a process whose runner hangs: it does not do so itself, and the watchdog
// may end the run any time. The commits are no signs of life. A runner that goes on finds the offsets
// moved. When the run has ended, what was written since the last scan is copied, whoever holds the lock.
// A scan that can't do so because of the store leaves it to the next one.
func (m *Monitor) copyHung(ctx context.Context, t *task, until time.Time) {
	err := m.copyOutput(ctx, t.dir, &t.run, nil, until)
	if t.ended && err == nil {
		err = m.tellShorter(ctx, t.dir, &t.run)
	}
	if t.ended && !temporary(err) {
		m.mu.Lock()
		if j := m.jobs[t.dir.ID]; j != nil {
			j.rest, j.copied = false, true
		}
		m.mu.Unlock()
	}
	if err != nil && !errors.Is(err, errLater) && perdure.CodeOf(err) != perdure.CodeStaleEpoch {
		m.logError(ctx, "output of a process could not be copied", err, "run", t.dir.ID)
	}
}

// temporary tells whether output that could not be copied may be copied by a later scan. An error without
// a code of its own is the store's.
func temporary(err error) bool {
	if err == nil || errors.Is(err, errStuck) {
		return false
	}
	switch perdure.CodeOf(err) {
	case perdure.CodeStorageFull, perdure.CodeUnavailable, perdure.CodeUnknown, perdure.CodeQueryTimeout,
		perdure.CodeTooMany, perdure.CodeInternal:
		return true
	}
	return errors.Is(err, errLater)
}

// unwatch ends the watching of a process whose files have told what became of it. Otherwise the commits
// of its output would look like its own signs of life.
func (m *Monitor) unwatch(ctx context.Context, t *task) error {
	m.mu.Lock()
	if j := m.jobs[t.dir.ID]; j != nil {
		j.watched = false
	}
	m.mu.Unlock()
	if t.run.WatchUntil == 0 {
		return nil
	}
	return m.engine.Do(ctx, &life.WatchProcess{Tenant: t.run.Tenant, RunID: t.run.ID, Epoch: t.run.Epoch})
}

// lose copies the output of a process that is gone and takes its run away. The output is not worth the
// run: if it can't be copied, the run is lost all the same.
func (m *Monitor) lose(ctx context.Context, t *task, until time.Time) error {
	err := m.copyOutput(ctx, t.dir, &t.run, nil, until)
	if errors.Is(err, errLater) {
		return err
	}
	if err == nil {
		err = m.tellShorter(ctx, t.dir, &t.run)
	}
	if err != nil {
		m.logError(ctx, "output of a process could not be copied", err, "run", t.dir.ID)
	}
	op := &life.LoseProcess{Tenant: t.run.Tenant, RunID: t.run.ID, Epoch: t.run.Epoch, Since: t.since,
		Why: "the process is gone: its lock is free, and it left no result"}
	if err := m.engine.Do(ctx, op); err != nil {
		return err
	}
	if op.Alive {
		m.bad(&jobdir.BadFile{Path: t.dir.Path + "/" + jobdir.LockFile,
			Reason: "is free although the runner lives"}, false)
		return nil
	}
	m.count(func(c *Counts) { c.Dead++ })
	m.note(t.dir.ID, "dead: its lock is free, and it left no result; the run is "+string(op.Run.State))
	m.log.Warn("process is gone", "run", t.dir.ID, "state", op.Run.State)
	return nil
}

// logError logs an error, unless the monitor is being stopped.
func (m *Monitor) logError(ctx context.Context, msg string, err error, args ...any) {
	if ctx.Err() == nil {
		m.log.Error(msg, append(args, "error", err)...)
	}
}

// count changes the counters.
func (m *Monitor) count(f func(*Counts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.counts)
}
