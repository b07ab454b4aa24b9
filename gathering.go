package perdure

// A Gathering counts the ends of a set of runs. There are two kinds. A chord is created when a run
// completes with continue_on, and starts one continuation when all its members have ended. A group
// is created by a caller, who waits for it.
type Gathering struct {
	Tenant    TenantID
	ID        GroupID // for a chord, the id of the run that created it
	Kind      string
	Mode      Mode
	OnLosers  Disposition // group: continue by default
	State     GatheringState
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

// Kinds of gatherings.
const (
	GatheringGroup = "group"
	GatheringChord = "chord"
)

// A GatheringState is the state of a gathering. It leaves GatheringOpen once.
type GatheringState string

const (
	GatheringOpen      GatheringState = "open"
	GatheringSatisfied GatheringState = "satisfied"
	GatheringTimedOut  GatheringState = "timed_out"
	GatheringDropped   GatheringState = "dropped" // a chord that was dropped because its run was cancelled
)

// GroupEnded selects groups that are satisfied or timed out, in a list. No group has it.
const GroupEnded GatheringState = "ended"

// GroupStates are those that a caller's group can have.
var GroupStates = []GatheringState{GatheringOpen, GatheringSatisfied, GatheringTimedOut}

// Satisfied tells whether enough members of an open group have ended for its mode.
func (g *Gathering) Satisfied() bool { return Satisfied(g.Mode, g.Total, g.Ended, g.OK) }
