package perdure

import (
	"cmp"
	"time"
)

// A Unique says that of the runs of a kind with the same key only one is accepted at a time.
type Unique struct {
	Key string `json:"key"`
	// While says how long the key is taken. Default: UniqueLive.
	While UniqueWhile `json:"while,omitempty"`
	// For is the time from the creation, with UniqueFor.
	For Duration `json:"for,omitempty"`
	// OnConflict says what happens to a submission whose key is taken. Default: UniqueReturn. A spawn has
	// UniqueReject, because a run has one parent.
	OnConflict UniqueConflict `json:"on_conflict,omitempty"`
}

// A UniqueWhile says how long the key of a run is taken.
type UniqueWhile string

const (
	UniqueLive    UniqueWhile = "live"    // until the run ends
	UniqueWaiting UniqueWhile = "waiting" // until it first starts, so that one may run and one wait
	UniqueFor     UniqueWhile = "for"     // for a time from its creation, also after its end
)

// uniqueWhiles are all of them.
var uniqueWhiles = []UniqueWhile{UniqueLive, UniqueWaiting, UniqueFor}

// A UniqueConflict says what happens to a submission whose key is taken.
type UniqueConflict string

const (
	UniqueReturn  UniqueConflict = "return"  // its caller gets the run that has the key
	UniqueReject  UniqueConflict = "reject"  // it is refused with not_unique
	UniqueReplace UniqueConflict = "replace" // it takes the place of a run that has never started
)

// Those of a submission and of a child. A child has nothing to return: the run that has the key is a
// child of another.
var (
	uniqueConflicts = []UniqueConflict{UniqueReturn, UniqueReject, UniqueReplace}
	childConflicts  = uniqueConflicts[1:]
)

const (
	// maxUniqueKey limits the key of a unique or debounced run, in bytes.
	maxUniqueKey = 200
	// maxUniqueFor limits the time for which a key is taken.
	maxUniqueFor = 366 * 24 * time.Hour
	// MaxDebounced limits the input of a debounced run, in bytes. It is kept in the run's row, because
	// each further submission replaces it.
	MaxDebounced = 64 << 10
)

// A Debounce says that submissions of a kind with the same key become one run, with the last input.
type Debounce struct {
	Key string `json:"key"`
	// For is how long after the last submission the run begins, and Max how long after the first at the
	// latest.
	For Duration `json:"for"`
	Max Duration `json:"max"`
}

// A UniqueUse is the key of an accepted run.
type UniqueUse struct {
	Key   string      `json:"key"`
	While UniqueWhile `json:"while"`
	// Until is when the key is free again, with UniqueFor.
	Until Instant `json:"until,omitempty"`
}

// A DebounceUse is the key of an accepted debounced run.
type DebounceUse struct {
	Key string `json:"key"`
	// Last is the latest instant at which the run begins.
	Last Instant `json:"last"`
	// Count is how many submissions came after the first.
	Count int `json:"count,omitempty"`
}

// Use gives what an accepted run keeps of it.
func (u *Unique) Use(now Instant) *UniqueUse {
	x := &UniqueUse{Key: u.Key, While: u.While}
	if u.While == UniqueFor {
		x.Until = now.Add(time.Duration(u.For))
	}
	return x
}

// Holds tells whether a run still has its key. ended is set for a run that has ended.
func (x *UniqueUse) Holds(r *Run, now Instant) bool {
	switch x.While {
	case UniqueFor:
		return now < x.Until
	case UniqueWaiting:
		return r.State.Live() && r.StartedAt == 0
	}
	return r.State.Live()
}

// validate checks a Unique and fills in its defaults. Conflicts are what its OnConflict may be; the first
// one is the default.
func (u *Unique) validate(field string, conflicts []UniqueConflict) error {
	if u == nil {
		return nil
	}
	if err := checkUniqueKey(field+".key", u.Key); err != nil {
		return err
	}
	u.While = cmp.Or(u.While, UniqueLive)
	if err := oneOf(field+".while", u.While, uniqueWhiles); err != nil {
		return err
	}
	switch {
	case u.While == UniqueFor && (u.For <= 0 || time.Duration(u.For) > maxUniqueFor):
		return Unprocessable(field+".for", "must lie between 1s and %s", maxUniqueFor)
	case u.While != UniqueFor && u.For != 0:
		return Unprocessable(field+".for", "goes with while \"for\"")
	}
	u.OnConflict = cmp.Or(u.OnConflict, conflicts[0])
	return oneOf(field+".on_conflict", u.OnConflict, conflicts)
}

// checkUniqueKey checks the key of a unique or debounced run.
func checkUniqueKey(field, key string) error {
	switch {
	case key == "":
		return Invalid(field, "is missing")
	case len(key) > maxUniqueKey:
		return Invalid(field, "has %d bytes; a key has at most %d", len(key), maxUniqueKey)
	}
	return CheckText(field, key)
}

// checkDebounce checks the debounce of a submission, and what does not go with it.
func (s *Submission) checkDebounce() error {
	d := s.Debounce
	if d == nil {
		return nil
	}
	if err := checkUniqueKey("debounce.key", d.Key); err != nil {
		return err
	}
	switch {
	case s.Name != "":
		return Unprocessable("debounce", "does not go with name: a name is that of one submission")
	case s.Unique != nil:
		return Unprocessable("debounce", "does not go with unique: give one of them")
	case d.For <= 0:
		return Unprocessable("debounce.for", "must be a time after which the run begins, such as 30s")
	case d.Max < d.For:
		return Unprocessable("debounce.max", "is shorter than debounce.for: give at least %s", d.For)
	case time.Duration(d.Max) > MaxWait:
		return Unprocessable("debounce.max", "is longer than %s", MaxWait)
	case s.RunAt != 0:
		return Unprocessable("run_at", "does not go with debounce, which says when the run begins")
	case s.Delay != 0:
		return Unprocessable("delay", "does not go with debounce, which says when the run begins")
	case s.ThreadID != "":
		return Unprocessable("thread_id", "does not go with debounce: the runs of a thread take turns")
	case len(s.Input) > MaxDebounced:
		return &Error{Code: CodeTooLarge, Field: "input", Message: "a debounced run takes at most 64 KiB"}
	}
	return nil
}

// Debounced replaces the input of a run that has not been granted, and moves its begin.
type Debounced struct {
	Input     Value
	Signature Signature
	RunAt     Instant
}

func (Debounced) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Debounces() }

func (e Debounced) apply(_ *Policy, r *Run, now Instant, log *history) {
	use := *r.Options.Debounce // of the row as it is stored
	use.Count++
	r.Options.Debounce = &use
	r.Input, r.Signature = e.Input, e.Signature
	r.Options.RunAt, r.ReadyAt = e.RunAt, e.RunAt
	r.Ready = e.RunAt <= now
	log.add(LineDebounced, object("count", use.Count, "run_at", e.RunAt))
}

// Debounces tells whether a further submission may still replace the input of a debounced run: nobody
// has taken it, and its time has not come at a limit.
func (r *Run) Debounces() bool {
	return r.Options.Debounce != nil && r.State == Queued && r.StartedAt == 0 && r.Cancel.RequestedAt == 0 &&
		r.Attempt == 1 && !r.OnHold() && r.Limited == nil
}
