package perdure

// A Run is one leased, heartbeating, deadline-bound piece of work: the only executable thing there is.
// The first half is written once, when the run is accepted; the second half is where it stands, and only
// Policy.Apply changes it.
type Run struct {
	Tenant   TenantID
	ID       RunID
	Kind     string
	Class    Class
	Queue    string
	Priority int // -100 to 100, higher first

	ThreadID       ThreadID
	ParentID       RunID  // the run that spawned it
	RootID         RunID  // the run at the top of its tree; its own id when it has no parent
	JournalKey     string // its name in its parent's journal: (parent, key) is unique
	ContinuationOf RunID
	RetryOf        RunID

	Input       Value
	Metadata    Value // an object of strings
	CreatedAt   Instant
	DeadlineAt  Instant // nothing extends it
	MaxAttempts int
	Options     Options
	Signature   Signature // over what it was accepted as, if there was a key to sign it with

	State   State
	Version int64 // rises with every change of the row and guards every write
	Epoch   int64 // rises when the run changes hands; what a worker presents

	Attempt    int // rises when a started execution is lost or fails retryably
	Strikes    int // attempts lost since the last committed progress
	Deliveries int // grants since the holder was last heard from

	Turn    Turn // its place on its thread
	Ready   bool // a poll may take it now
	Heard   bool // the holder of this epoch has been heard from
	Resumed bool // it has been suspended before: goes ahead of new runs of its priority

	ReadyAt      Instant // queued: when it became, or becomes, claimable
	GrantedAt    Instant
	FirstGrantAt Instant // first grant since it was queued
	LeaseUntil   Instant
	StartedAt    Instant
	SeenAt       Instant // last sign of life
	MovedAt      Instant // last change of activity, event or journal
	WaitAt       Instant // suspended: when the first of its open waits times out
	FinishedAt   Instant
	BeatAt       Instant // last heartbeat that made a line

	Worker     string
	Activity   string
	ActivityAt Instant // since when it says so
	Progress   Value
	ProgressOf int    // the attempt that said so
	Said       Said   // alerts already given, so that each is given once
	Held       string // what is held back of its deltas, because it may be the beginning of a secret

	Cancel     Cancel
	DeferredAt Instant // set while nobody waits for it any more
	WasDefer   bool    // a deferral has been told to the thread already

	Result      Value
	Summary     string
	Failure     *Failure
	Fallback    Value // the deliverable of a run that ended without a result
	ContinuedBy RunID

	Seq        int64  // last line of its log
	InboxSeq   int64  // last item of its inbox
	InboxOpen  int    // items that are neither done nor skipped
	JournalSeq int64  // last entry of its journal
	WaitsOpen  int    // waits that are open
	Children   int    // children spawned
	Late       int    // late results kept
	Commits    int    // commits before the last one
	LastCommit Taken  // the last commit that it took
	Watched    bool   // a chord or a group waits for its end
	Cascade    bool   // it has ended and live children are still to be cancelled
	Stopped    string // with Cascade: children up to this key have been asked to stop

	AlarmAt Instant // the earliest of its clocks; set in every live state

	Damage *Damage // what of its row can't be read; nil for all but those that something happened to outside of the program
}

// Damage is what of a stored run can't be right: a disk that forgets, a hand in the database. Such a run is not handed over, its
// holder is turned away, and it ends.
type Damage struct {
	What string // what is wrong, for people
	// Texts that can't be read. They are written back as they are, until the run ends.
	Rest, Commits string
}

// Taken is a commit that was taken, and the answer to it: the same commit again is answered as the first time.
type Taken struct {
	ID     string
	Digest string // of what it said
	Answer string // as JSON
}

// Options are what a run was asked for and nobody searches by.
type Options struct {
	Timeout      Duration `json:"timeout,omitempty"`
	RunAt        Instant  `json:"run_at,omitempty"`
	OnParentEnd  string   `json:"on_parent_end,omitempty"` // "cancel" (default) or "continue"
	OnDisconnect string   `json:"on_disconnect,omitempty"` // "continue" (default) or "cancel"
	Foreground   bool     `json:"foreground,omitempty"`    // somebody waits from the start
	Process      bool     `json:"process,omitempty"`       // its life is judged by its process, not by its lease
	Webhook      Value    `json:"webhook,omitempty"`       // the id of its endpoint; in runs from before there were any, what was asked for
	WebhookLines string   `json:"webhook_lines,omitempty"` // which lines it is told of, with spaces between; empty: NotifiedLines
	Opening      Value    `json:"opening,omitempty"`       // messages appended when its turn on the thread comes
	First        bool     `json:"first,omitempty"`         // it interrupted the active run: goes first on the thread
	Depth        int      `json:"depth,omitempty"`         // how many ancestors it has
}

// MaxDepth bounds how deep runs may be nested: a child of a child and so on.
const MaxDepth = 1000

// Place says who goes first among the runs that wait for their turn on a thread; the lower number does. Of one
// place the older run goes first.
func (r *Run) Place() int {
	switch {
	case r.Options.First:
		return 0
	case r.ContinuationOf != "":
		return 1
	}
	return 2
}

// MayOutlive tells whether the run goes on when its parent ends.
func (r *Run) MayOutlive() bool { return r.Options.OnParentEnd == OutliveParent }

// HasTold tells whether that progress is what the current attempt said last. What an earlier one said is no longer so.
func (r *Run) HasTold(progress Value) bool {
	return r.Progress == progress && r.ProgressOf == r.Attempt
}

// What happens to a child when its parent ends.
const (
	EndWithParent = "cancel"
	OutliveParent = "continue"
)

// What the last waiter of a run in the foreground does to it by closing its connection.
const (
	OnDisconnectContinue = "continue"
	OnDisconnectCancel   = "cancel"
)

// Status is what people see: the state, or "deferred" while the run is live and nobody waits for it.
func (r *Run) Status() string { return StatusOf(r.State, r.DeferredAt) }

// StatusURL is where a run is looked at, AttachURL where its log is followed: paths of the API.
func StatusURL(id RunID) string { return "/api/v1/runs/" + string(id) }
func AttachURL(id RunID) string { return StatusURL(id) + "/stream" }

// StatusOf is the status that people see: deferred while the run is live and nobody waits for it, otherwise the state.
func StatusOf(s State, deferred Instant) string {
	if s.Live() && deferred != 0 {
		return StatusDeferred
	}
	return string(s)
}

// DeliverableID names what an ended run hands over: its result, or the fallback written for it.
func (r *Run) DeliverableID() string { return "dlv_" + string(r.ID) }

// Turn is a run's place on its thread, which has at most one active run.
type Turn int

const (
	TurnNone    Turn = iota // it has no thread
	TurnActive              // claimable, leased or suspended
	TurnWaiting             // queued behind the active run; unclaimable
	TurnLater               // its run_at lies ahead; it joins the thread then
)

// Said is the set of alerts that were given since the thing they are about last changed.
type Said int

const (
	SaidQueued     Said = 1 << iota // claimable for too long
	SaidSilent                      // no sign of life
	SaidNoProgress                  // beats, but nothing changes
	SaidStale                       // no sign of life for so long that it may be gone
)

// Cancel is a request to stop and the proof of what became of it: requested, delivered, acknowledged,
// stopped, each with its instant.
type Cancel struct {
	RequestedAt Instant `json:"requested_at,omitempty"`
	DeliveredAt Instant `json:"delivered_at,omitempty"`
	AckedAt     Instant `json:"acknowledged_at,omitempty"`
	StoppedAt   Instant `json:"stopped_at,omitempty"`
	Reason      string  `json:"reason,omitempty"`
}

// Pending tells whether a worker still has to be told.
func (c Cancel) Pending() bool { return c.RequestedAt != 0 && c.AckedAt == 0 }

// Rank is what every forceful action of the watchdog lowers, lexicographically: attempts left, deliveries
// left, and how far the state is from an end. It is why every run ends.
func (r *Run) Rank(p *Policy) [3]int {
	state := map[State]int{Queued: 1, Dispatched: 2, Running: 3, Suspended: 4}[r.State]
	return [3]int{r.MaxAttempts - r.Strikes, p.MaxDeliveries - r.Deliveries, state}
}
