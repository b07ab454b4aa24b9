package perdure

// A Group gathers the ends of runs. Two kinds share the row: a chord is what a run left behind when it
// ended with continue_on, and makes one continuation when all have ended; a group is a caller's own.
type Group struct {
	Tenant    TenantID
	ID        GroupID // a chord bears the id of the run that left it
	Kind      string
	Mode      string
	OnLosers  string // group: "continue" (default) or "cancel"
	State     string
	Version   int64
	CreatedAt Instant
	// AlarmAt is when the watchdog looks at it: a group's deadline while it is open. Where something is left
	// to do, for a chord whose runs have all ended and for a group that has ended, it is at once.
	AlarmAt Instant
	EndedAt Instant
	Total   int
	Ended   int
	OK      int
	Made    RunID // chord: the continuation
	// Next is how many of its members have been dealt with: a chord has told their results to the thread, a
	// group that has ended has let go of them.
	Next int
	// Members are its runs. A batch that only counts an end leaves them out.
	Members []RunID
}

// Kinds and states of groups.
const (
	GroupOfCaller = "group"
	GroupChord    = "chord"

	GroupOpen      = "open"
	GroupSatisfied = "satisfied"
	GroupTimedOut  = "timed_out"
	GroupDropped   = "dropped" // a chord whose ended run was cancelled
)

// GroupStates are those that a caller's group can have.
var GroupStates = []string{GroupOpen, GroupSatisfied, GroupTimedOut}

// Satisfied judges an open group by its tallies.
func (g *Group) Satisfied() bool { return Satisfied(g.Mode, g.Total, g.Ended, g.OK) }
