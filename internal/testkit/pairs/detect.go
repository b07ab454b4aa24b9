package pairs

import "github.com/perdure/perdure"

// Facts are a run and what else is stored about it.
type Facts struct {
	Run *perdure.Run
	// Open are the types of its open waits.
	Open []perdure.WaitType
	// Signals counts the signals in its inbox.
	Signals int
	// InGroup and InChord tell whether an open group, or an open chord, counts it.
	InGroup, InChord bool
	// ToUndo tells whether its journal has a step that is not undone.
	ToUndo bool
	// Artifacts and Views count what it has left.
	Artifacts, Views int
	// Paused tells whether its queue is paused.
	Paused bool
	// Registered tells whether its kind is in the registry.
	Registered bool
	// AtShare tells whether its tenant has as many live runs as it may have.
	AtShare bool
	// Neighbours tells whether another tenant has live runs in its queue.
	Neighbours bool
	// Redriven tells whether it was made of a dead letter.
	Redriven bool
	// Removed tells whether it is gone with its retention. Run is then as it was before.
	Removed bool

	// No row tells these: the caller knows them.

	// KeyRevoked: a key of its tenant was revoked since it was made.
	KeyRevoked bool
	// Restarted: a server was started since it was made.
	Restarted bool
	// Nodes counts the nodes that have written it.
	Nodes int
	// StoodBy: its lease was granted to a poll that stood by.
	StoodBy bool
}

// localQueue is the queue of processes that no pool takes: runner.LocalQueue.
const localQueue = "exec-local"

// restoredBits is where the number of a store's generation begins in an epoch: see engine.Restoring.
const restoredBits = 41

// Detect decides which features are in force on a run.
func Detect(f *Facts) (s Set) {
	r := f.Run
	live := r.State.Live()
	add := func(x Feature, in bool) {
		if in {
			s |= Of(x)
		}
	}
	add(Retry, live && r.RetryOf != "" && !f.Redriven)
	add(Redrive, live && r.RetryOf != "" && f.Redriven)
	add(Resume, live && r.Resumed && r.State != perdure.Suspended)
	add(Restore, r.Epoch>>restoredBits > 0)
	add(Cancel, live && r.Cancel.RequestedAt != 0)
	add(Cleanup, cleansUp(r))
	add(Pause, live && f.Paused)
	add(Hold, r.OnHold())
	add(Deadline, r.State == perdure.TimedOut && r.Failure != nil && r.Failure.Code == perdure.CodeDeadline)
	add(Delay, r.State == perdure.Queued && r.Options.RunAt != 0 && !r.Ready && r.StartedAt == 0 &&
		r.ReadyAt == r.Options.RunAt)
	add(Defer, live && r.DeferredAt != 0)
	add(Suspend, r.State == perdure.Suspended)
	add(Thread, r.ThreadID != "")
	add(Chat, r.Options.Chat)
	add(Group, f.InGroup)
	add(Chord, f.InChord || r.ContinuationOf != "" && !r.Options.Anew)
	add(Child, r.ParentID != "")
	add(Parent, r.Children > 0)
	add(Saga, f.ToUndo)
	add(Process, r.Options.Process)
	add(Pool, r.Options.Process && r.Queue != localQueue)
	add(OneAttempt, r.MaxAttempts == 1)
	add(LostLease, live && r.Attempt > 1)
	add(Signature, r.Signature.Value != "")
	add(Artifact, f.Artifacts > 0)
	add(View, f.Views > 0)
	add(Webhook, r.Options.Webhook != "")
	add(Retention, f.Removed)
	add(Share, live && f.AtShare)
	add(Tenant, live && f.Neighbours)
	add(KeyRevoked, live && f.KeyRevoked)
	add(Upgrade, live && f.Restarted)
	add(SecondNode, f.Nodes > 1)
	add(LateResult, r.Late > 0)
	for _, t := range f.Open {
		add(Signal, t == perdure.WaitSignal)
		add(Approval, t == perdure.WaitApproval)
		add(Callback, t == perdure.WaitCallback)
	}
	add(Signal, live && f.Signals > 0)
	add(StandingPoll, live && f.StoodBy)
	add(Kind, f.Registered)
	add(Anew, r.Options.Anew)
	return s
}

// cleansUp tells whether a run is leased to clean up.
func cleansUp(r *perdure.Run) bool {
	asked := r.Cancel.RequestedAt
	return r.State.Leased() && asked != 0 && (r.GrantedAt >= asked && r.Cancel.ToldAt == r.GrantedAt ||
		r.Cancel.AckedAt != 0)
}
