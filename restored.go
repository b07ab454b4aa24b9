package perdure

// This file has the events with which the runs of a backup go on after a restore. Holders from before
// it may still work, under epochs that the backup does not know. So each run gets an epoch that is
// greater than any of them. A process may live on without its store, and is looked for.

// Restored queues a leased run after the store was restored from a backup. Its holder is fenced
// out, and no attempt is spent. Epoch is greater than any epoch that was granted before the
// restore.
type Restored struct{ Epoch int64 }

func (e Restored) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Epoch < e.Epoch && r.Cancel.RequestedAt == 0 && (r.MaxAttempts > 1 || r.Options.Process)
}

func (e Restored) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Epoch = e.Epoch
	log.add(LineReclaimed, object("reason", "restored", "worker_id", r.Worker))
	enqueue(r, now, now)
	r.Grants = 0
}

// Renumbered raises the epoch of a restored run that stays in its state: a run without a holder, or
// one whose holder is lost: with a cancel request, or with a single attempt. Such an attempt may have
// begun after the backup was made, so it is not granted again and ends with its lease.
type Renumbered struct{ Epoch int64 }

func (e Renumbered) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Epoch < e.Epoch }

func (e Renumbered) apply(_ *Policy, r *Run, _ Instant, _ *history) {
	r.Epoch = e.Epoch
	if r.MaxAttempts == 1 && r.State.Leased() && !r.Options.Process {
		r.HolderSeen, r.Ready, r.Spent = true, false, true
	}
}

// ProcessRestored raises the epoch of a restored process. It may live on although its store was lost:
// until the instant Until it is neither given up nor granted, so that the server of its workspace can
// find it. Epoch is greater than any epoch that was granted before the restore.
type ProcessRestored struct {
	Epoch int64
	Until Instant
}

func (e ProcessRestored) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Options.Process && r.Epoch <= e.Epoch
}

func (e ProcessRestored) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Epoch, r.Former = e.Epoch, 0
	switch {
	case r.State == Suspended:
		return // it has no holder
	case r.State == Queued && r.Ready:
		r.Ready, r.ReadyAt = false, e.Until
	case r.State.Leased() && !r.HolderSeen:
		// Its clocks would take it from a holder that does not know the new epoch.
		r.HolderSeen, r.Ready, r.SeenAt = true, false, now
	}
	r.WatchUntil = e.Until
}

// ProcessFound records that a restored process has left files of an earlier epoch: its runner is the
// holder, and is told the run's epoch when it presents the earlier one.
type ProcessFound struct {
	Epoch  int64 // the run's
	Former int64 // that of the files
	// Limits are those that count the run from now on, if it was queued.
	Limits []LimitRef
	// Until is when the run may be given up, if its runner is not heard from.
	Until Instant
}

func (e ProcessFound) allowed(_ *Policy, r *Run, _ Instant) bool {
	waits := r.State == Queued || r.State == Running
	return r.Options.Process && r.Epoch == e.Epoch && e.Former < r.Epoch && r.WatchUntil != 0 && waits && r.Former == 0
}

func (e ProcessFound) apply(p *Policy, r *Run, now Instant, log *history) {
	r.Former, r.WatchUntil = e.Former, max(r.WatchUntil, e.Until)
	if r.State == Queued { // it was granted after the backup was made
		log.add(LineDispatched, object("worker_id", r.Worker, "epoch", r.Epoch, "delivery", 1))
		r.GrantedAt, r.FirstGrantAt, r.SeenAt, r.LeaseUntil = now, now, now, now.Add(p.Lease)
		start(r, now, log)
		r.Limited = held(e.Limits, nil)
	}
	r.HolderSeen, r.Ready, r.Grants = true, false, 0
}
