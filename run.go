package perdure

import "cmp"

// A Run is one piece of work. A worker executes it under a lease, sends heartbeats, and finishes it
// by the deadline. The fields before State are written when the run is accepted; its first grant may
// settle Class and DeadlineAt. The others are its current position, and only Policy.Apply changes
// them.
type Run struct {
	Tenant   TenantID
	ID       RunID
	Kind     string
	Class    Class
	Queue    string
	Priority int // -100 to 100, higher first

	ThreadID       ThreadID
	ParentID       RunID  // the run that spawned it
	RootID         RunID  // the top of its tree; its own id if it has no parent
	JournalKey     string // its name in its parent's journal; unique per parent
	ContinuationOf RunID
	RetryOf        RunID
	OriginID       RunID // the first run of its chain of retries; empty for a run that is no retry

	// FirstEpoch, InboxFrom and CopyTo are set for a retry with a journal. FirstEpoch is the lowest
	// epoch of its own: journal entries of lower ones are the original's. InboxFrom is the number of
	// the original's last inbox item. CopyTo is the number of the last entry that is copied.
	FirstEpoch int64
	InboxFrom  int64
	CopyTo     int64

	Input       Value
	Metadata    Value // an object of strings
	CreatedAt   Instant
	DeadlineAt  Instant // never extended; the settlement of an open class may shorten it
	MaxAttempts int
	Options     Options
	Signature   Signature // over the accepted fields; empty if the server has no signing key

	State   State
	Version int64 // rises with every change of the row and guards every write
	Epoch   int64 // rises when the run is granted or taken away; a worker presents it

	Attempt int // rises when a started execution is lost or fails retryably
	Strikes int // attempts lost since the last committed progress
	Grants  int // grants since the holder was last heard from

	Turn       Turn // its position on its thread
	Ready      bool // a poll may claim it now
	HolderSeen bool // the holder of this epoch has given a sign of life
	Resumed    bool // it was suspended before, and is granted before new runs of its priority
	// Spent is set while the only attempt of the run may be under way although nobody was heard from: its
	// holder made no promise to wait for an answer before it begins. Such a run counts as heard from.
	Spent bool

	ReadyAt      Instant // queued: when it became, or becomes, claimable
	GrantedAt    Instant
	FirstGrantAt Instant // first grant since it was queued
	LeaseUntil   Instant
	StartedAt    Instant
	SeenAt       Instant // last sign of life
	MovedAt      Instant // last change of activity, event or journal
	WaitAt       Instant // suspended: the first timeout of its open waits
	FinishedAt   Instant
	HeartbeatAt  Instant // last heartbeat that was written to the log

	// Counter is the count of the sentinel that was last stored as a sign of life, under this epoch.
	Counter int64
	// WatchUntil is set while a process waits for its first sign of life after the server's restart. It
	// is not given up before.
	WatchUntil Instant
	// Former is the epoch of a process that outlived its store: the store was restored from a backup, and
	// the process lives on. Its runner is told the run's epoch when it presents this one. Zero: none.
	Former int64

	Worker     string
	Activity   string
	ActivityAt Instant // when Activity last changed
	Progress   Value
	ProgressOf int    // the attempt that reported Progress
	AlertsSent Alerts // alerts already sent, so that each is sent once
	Withheld   string // the end of its deltas, held back because a secret may begin there

	Cancel     Cancel
	Limited    *Limited   // its position at its limits; nil: none
	Wants      []StepWant // steps that wait for their limits; shared, and never changed in place
	Hold       *Hold      // the defects of the code that workers have reported; nil: none
	DeferredAt Instant    // set while the run is deferred: no caller waits for it
	WasDefer   bool       // it was deferred at least once

	Result      Value
	Summary     string
	Failure     *Failure
	Fallback    Value // the deliverable if it ended without a result
	ContinuedBy RunID

	Seq        int64  // number of the last line of its log
	InboxSeq   int64  // number of the last item of its inbox
	InboxOpen  int    // inbox items that are neither done nor skipped
	JournalSeq int64  // number of the last entry of its journal
	WaitsOpen  int    // open waits
	Children   int    // children spawned
	Late       int    // late results kept
	Commits    int    // commits before LastCommit
	LastCommit Taken  // the last accepted commit
	Counted    bool   // a chord or a group waits for its end
	Cascade    bool   // it has ended, and live children remain to be cancelled
	Stopped    string // with Cascade: the children up to this key have been asked to stop

	// AlarmAt is the earliest of its clocks. It is set in every live state.
	AlarmAt Instant

	// Damage is set if the stored row is corrupted.
	Damage *Damage
}

// A Firing says for which instant of a schedule a run was started.
type Firing struct {
	ID   string  `json:"id"`
	Name string  `json:"name"`
	For  Instant `json:"for,omitempty"` // zero: a person has triggered it
	// Missed is how many instants before For were missed, and are made up for by this run.
	Missed int `json:"missed,omitempty"`
}

// IsCommand tells whether the run is a command, which a runner executes.
func (r *Run) IsCommand() bool { return r.Options.Process && r.Kind == ExecKind }

// Local tells whether only its own runner may take the run; see LocalQueue.
func (r *Run) Local() bool { return r.Options.Process && r.Queue == LocalQueue }

// Damage describes a corrupted row, for example after a disk error or a manual change in the
// database. Such a run is not granted, calls of its holder are refused, and the run ends.
type Damage struct {
	What string // the error, for people
	// Rest and Commits keep columns that cannot be parsed. They are written back unchanged until
	// the run ends.
	Rest, Commits string
}

// Taken is an accepted commit with its answer. The same commit sent again gets the same answer.
type Taken struct {
	ID     string
	Digest string // hash of the commit's content
	Answer string // as JSON
}

// Options are fields of a run that no query selects by. They are stored together.
type Options struct {
	Timeout      Duration    `json:"timeout,omitempty"`
	RunAt        Instant     `json:"run_at,omitempty"`
	OnParentEnd  Disposition `json:"on_parent_end,omitempty"` // of a child: cancel by default
	OnDisconnect Disposition `json:"on_disconnect,omitempty"` // of a run in the foreground: continue by default
	Foreground   bool        `json:"foreground,omitempty"`    // a caller waits from the start
	Process      bool        `json:"process,omitempty"`       // lost by dead_after instead of by its lease
	// messages of the user that it does not take up get an answer too
	Chat bool `json:"chat,omitempty"`
	// Webhook is the id of the run's webhook. Runs from before webhooks were stored have the
	// requested value.
	Webhook Value `json:"webhook,omitempty"`
	// WebhookLines lists the types of lines that the webhook receives, separated by spaces. Empty
	// means NotifiedLines.
	WebhookLines string `json:"webhook_lines,omitempty"`
	// Opening has the messages that are appended to the thread when the run becomes its active one.
	Opening Value `json:"opening,omitempty"`
	First   bool  `json:"first,omitempty"` // it interrupted the active run, and is the next on the thread
	// Open says that neither the request nor the kind has named a class yet. Until the first grant
	// settles it, the run is treated as an agent, also by a release that does not know this field.
	Open  bool `json:"open,omitempty"`
	Depth int  `json:"depth,omitempty"` // number of ancestors
	// Firing is set if a schedule has started the run.
	Firing *Firing `json:"firing,omitempty"`
	// Limits is set if the run is under limits. It is shared, and never changed.
	Limits *LimitUse `json:"limits,omitempty"`
	// Unique is set if the run has, or had, a key of its kind. Debounce is set for a debounced run. Both
	// are shared, and never changed.
	Unique   *UniqueUse   `json:"unique,omitempty"`
	Debounce *DebounceUse `json:"debounce,omitempty"`
	// Anew says that the run goes on for one that completed with continue_with.
	Anew bool `json:"anew,omitempty"`
}

// MaxDepth limits the number of ancestors of a run.
const MaxDepth = 1000

// Place orders the runs that wait for their turn on a thread. The lower number is first; of equal
// ones, the older run.
func (r *Run) Place() int {
	switch {
	case r.Options.First:
		return 0
	case r.ContinuationOf != "":
		return 1
	}
	return 2
}

// Origin returns the first run of the run's chain of retries: the run itself if it is no retry.
func (r *Run) Origin() RunID { return cmp.Or(r.OriginID, r.ID) }

// BegunOnce tells whether the run has a single attempt that has begun, or may have. It is not granted
// again, except after a suspend or a hold, with which its holder says that it has stopped.
func (r *Run) BegunOnce() bool { return r.MaxAttempts == 1 && r.State.Leased() && r.HolderSeen }

// Copying tells whether a part of the original's journal is still to be copied. JournalSeq says how
// far it is. Such a run is not claimable.
func (r *Run) Copying() bool { return r.JournalSeq < r.CopyTo }

// MayOutlive tells whether the run goes on when its parent ends.
func (r *Run) MayOutlive() bool { return r.Options.OnParentEnd == DispositionContinue }

// HasTold tells whether the current attempt has already reported this progress. Reports of an
// earlier attempt do not count.
func (r *Run) HasTold(progress Value) bool {
	return r.Progress == progress && r.ProgressOf == r.Attempt
}

// ShownClass returns the class that the API shows: Open until the first grant has settled it.
func (r *Run) ShownClass() Class {
	if r.Options.Open {
		return Open
	}
	return r.Class
}

// Status returns the status that the API shows; see StatusOf.
func (r *Run) Status() string { return StatusOf(r.State, r.DeferredAt) }

// StatusURL returns the API path of a run. AttachURL returns the path of its event stream.
func StatusURL(id RunID) string { return "/api/v1/runs/" + string(id) }
func AttachURL(id RunID) string { return StatusURL(id) + "/stream" }

// StatusOf returns the status that the API shows: "deferred" for a live run that no caller waits
// for, and the state otherwise.
func StatusOf(s State, deferred Instant) string {
	if s.Live() && deferred != 0 {
		return StatusDeferred
	}
	return string(s)
}

// DeliverableID returns the id of an ended run's deliverable: its result or its fallback.
func (r *Run) DeliverableID() string { return "dlv_" + string(r.ID) }

// Turn is a run's position on its thread. A thread has at most one active run.
type Turn int

const (
	TurnNone    Turn = iota // no thread
	TurnActive              // claimable, leased or suspended
	TurnWaiting             // queued behind the active run; not claimable
	TurnLater               // joins the thread at its run_at
)

// Alerts is the set of alerts that were sent and whose cause still holds.
type Alerts int

const (
	AlertQueued     Alerts = 1 << iota // claimable for too long
	AlertSilent                        // no sign of life
	AlertNoProgress                    // heartbeats, but no progress
	AlertStale                         // no sign of life for so long that the worker may be gone
	AlertHold                          // on hold for so long that a waiting parent may decide
)

// Cancel records a cancel request and each of its steps: requested, delivered to the worker,
// acknowledged by it, stopped.
type Cancel struct {
	RequestedAt Instant `json:"requested_at,omitempty"`
	ToldAt      Instant `json:"delivered_at,omitempty"`
	AckedAt     Instant `json:"acknowledged_at,omitempty"`
	StoppedAt   Instant `json:"stopped_at,omitempty"`
	// CleanupAt is when the run was first queued again for its clean-up, if nobody had acknowledged the
	// request by then. cleanup_grace counts from it.
	CleanupAt Instant `json:"cleanup_at,omitempty"`
	Reason    string  `json:"reason,omitempty"`
}

// Pending tells whether the request still waits for an acknowledgement.
func (c Cancel) Pending() bool { return c.RequestedAt != 0 && c.AckedAt == 0 }

// ForCleanup tells whether the run waits for a worker that cleans up after a cancel request. Its grant
// waits for no pause.
func (r *Run) ForCleanup() bool { return r.Ready && r.Cancel.RequestedAt != 0 && r.StartedAt != 0 }

// Rank is a measure of how far a run is from its end: attempts left, deliveries left, and the
// distance of the state from an end, compared in this order. Every action of the watchdog that ends
// a run or takes it from its holder lowers the rank. It is bounded below, so every run ends.
func (r *Run) Rank(p *Policy) [3]int {
	state := map[State]int{Queued: 1, Dispatched: 2, Running: 3, Suspended: 4}[r.State]
	return [3]int{r.MaxAttempts - r.Strikes, p.MaxGrants - r.Grants, state}
}
