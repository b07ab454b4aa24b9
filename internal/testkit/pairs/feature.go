package pairs

import "math/bits"

// A Feature is something that can be in force on a run. Its number is its place in the table.
type Feature int

// The features, in the order of the table.
const (
	Retry Feature = iota
	Redrive
	Resume
	Restore
	Cancel
	Cleanup
	Pause
	Hold
	Deadline
	Delay
	Defer
	Suspend
	Thread
	Chat
	Group
	Chord
	Child
	Parent
	Saga
	Process
	Pool
	OneAttempt
	LostLease
	Signature
	Artifact
	View
	Webhook
	Retention
	Share
	Tenant
	KeyRevoked
	Upgrade
	SecondNode
	LateResult
	Signal
	Approval
	Callback
	StandingPoll
	Kind
	Anew
	count
)

// Count is the number of features.
const Count = int(count)

// features has the name of each feature, and when it is in force on a run.
var features = [count]struct{ name, what string }{
	Retry:        {"retry", "the run was made by a retry of another one, and lives"},
	Redrive:      {"redrive", "the run was made of a dead letter, also by a resume of the recovery API, and lives"},
	Resume:       {"resume", "the run was suspended, a wait is over, and it is queued or works again"},
	Restore:      {"restore", "the run was live in a backup that was restored"},
	Cancel:       {"cancel", "the run is asked to stop"},
	Cleanup:      {"clean-up grant", "the run is leased and cleans up: its grant says so, or it has acknowledged"},
	Pause:        {"pause", "the queue of the live run is paused"},
	Hold:         {"hold", "a defect of the code holds the run"},
	Deadline:     {"deadline", "the deadline of the run ends it"},
	Delay:        {"delay", "the run waits for its `run_at` or `delay`"},
	Defer:        {"defer", "the caller of the live run has stopped waiting"},
	Suspend:      {"suspend", "the run is suspended"},
	Thread:       {"thread", "the run is on a thread"},
	Chat:         {"chat", "the run answers a conversation"},
	Group:        {"group", "an open group counts the run"},
	Chord:        {"chord", "an open chord counts the run, or the run continues one that has ended its turn"},
	Child:        {"child", "the run has a parent"},
	Parent:       {"parent", "the run has children"},
	Saga:         {"saga", "a step of the run is recorded that has to be undone if the run fails"},
	Process:      {"process", "the run is an external process"},
	Pool:         {"pool", "the run is an external process that a pool of runners takes from its queue"},
	OneAttempt:   {"one attempt", "the run has a single attempt (`max_attempts` 1)"},
	LostLease:    {"lost lease", "the live run was taken from a worker that was lost or had failed"},
	Signature:    {"signature", "the run is signed"},
	Artifact:     {"artifact", "the run has artifacts"},
	View:         {"view", "the run has published views"},
	Webhook:      {"webhook", "the run has a webhook of its own"},
	Retention:    {"retention", "the run has ended and its time is over: it is removed"},
	Share:        {"tenant at its share", "the tenant of the live run has as many live runs as it may have"},
	Tenant:       {"tenant", "another tenant has live runs in the same queue"},
	KeyRevoked:   {"key revoked", "a key of the tenant was revoked while the run lived"},
	Upgrade:      {"upgrade", "a server was started anew on the store while the run lived, as an upgrade does"},
	SecondNode:   {"second node", "two nodes have written the run"},
	LateResult:   {"late result", "a result that came too late is kept beside the run"},
	Signal:       {"signal", "the run waits for a signal, or one has come for it"},
	Approval:     {"approval", "the run waits for an approval"},
	Callback:     {"callback", "the run waits for a callback"},
	StandingPoll: {"standing poll", "the live run was granted to a poll that stood by, by the batch that made it"},
	Kind:         {"kind", "the kind of the run is in the registry"},
	Anew:         {"anew", "the run goes on for one that has completed with `continue_with`"},
}

// String gives the name of a feature.
func (f Feature) String() string { return features[f].name }

// What returns a sentence that says when a feature is in force.
func (f Feature) What() string { return features[f].what }

// named gives the feature of a name.
func named(name string) (Feature, bool) {
	for f := range count {
		if features[f].name == name {
			return f, true
		}
	}
	return 0, false
}

// A Set is a set of features.
type Set uint64

// Of makes a set.
func Of(list ...Feature) (s Set) {
	for _, f := range list {
		s |= 1 << f
	}
	return s
}

// Has tells whether a feature is in the set.
func (s Set) Has(f Feature) bool { return s&(1<<f) != 0 }

// All gives the features of the set in their order.
func (s Set) All() (out []Feature) {
	for ; s != 0; s &= s - 1 {
		out = append(out, Feature(bits.TrailingZeros64(uint64(s))))
	}
	return out
}

// A Pair is two features in the order in which they came. Of a pair without an order the lower one is
// the first.
type Pair struct{ First, Then Feature }

// Sorted gives the pair without its order.
func (p Pair) Sorted() Pair {
	if p.First > p.Then {
		return Pair{p.Then, p.First}
	}
	return p
}

// String names a pair as tests and pages do.
func (p Pair) String() string { return p.First.String() + " × " + p.Then.String() }
