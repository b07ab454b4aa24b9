package perdure

// A Group counts the ends of a set of runs. There are two kinds. A chord is created when a run
// completes with continue_on, and starts one continuation when all its members have ended. A group
// is created by a caller, who waits for it.
type Group struct {
	Tenant    TenantID
	ID        GroupID // for a chord, the id of the run that created it
	Kind      string
	Mode      string
	OnLosers  string // group: "continue" (default) or "cancel"
	State     string
	Version   int64
	CreatedAt Instant
	// AlarmAt is when the watchdog looks at the group. For an open group that is its deadline. For
	// a chord whose members have all ended, and for a group that has ended, it is now, until the
	// work that remains is done.
	AlarmAt Instant
	EndedAt Instant
	Total   int   // members
	Ended   int   // members that have ended
	OK      int   // members that have completed
	Made    RunID // chord: the continuation
	// Next counts the members that are finished with: a chord has written their results to the
	// thread; a group that has ended has released them.
	Next int
	// Members lists the runs. It is not loaded by a batch that only counts an end.
	Members []RunID
}

// Kinds and states of groups.
const (
	GroupOfCaller = "group"
	GroupChord    = "chord"

	GroupOpen      = "open"
	GroupSatisfied = "satisfied"
	GroupTimedOut  = "timed_out"
	GroupDropped   = "dropped" // a chord that was dropped because its run was cancelled
)

// GroupStates are those that a caller's group can have.
var GroupStates = []string{GroupOpen, GroupSatisfied, GroupTimedOut}

// Satisfied tells whether enough members of an open group have ended for its mode.
func (g *Group) Satisfied() bool { return Satisfied(g.Mode, g.Total, g.Ended, g.OK) }
