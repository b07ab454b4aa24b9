package store

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// A RunFilter selects runs. Empty fields select all.
type RunFilter struct {
	Status   []string // each a state, or "deferred"
	State    []perdure.State
	Kind     string
	Queue    string
	ThreadID perdure.ThreadID
	ParentID perdure.RunID
	RootID   perdure.RunID
	Metadata map[string]string
	Before   perdure.RunID // the cursor: only older ones
	After    perdure.RunID // only newer ones
	Live     bool          // only runs that have not ended
	Limit    int

	IDPart     string // a part of the id: pages show its last eight letters
	KindPrefix string // what the kind begins with
	Value      string // the value of any entry of metadata
	Worker     string // the worker that has the run, or had it last
	// Code selects runs that ended with this code of failure.
	Code perdure.Code
	// Held selects runs that are on hold.
	Held bool
	// DeadlineBefore selects live runs whose deadline is not later.
	DeadlineBefore perdure.Instant
	Class          perdure.Class
	// SeenBefore selects runs that a worker has, and whose last sign of life is not later.
	SeenBefore perdure.Instant
	// FinishedAfter selects runs that ended then or later.
	FinishedAfter perdure.Instant

	// Heads reads only the fields of a Head. The other fields of the runs are empty.
	Heads bool

	// Bytes bounds the size of a page, which has at least one run; zero: PageBytes.
	Bytes int
	// Rows bounds the candidates that a page examines; zero: PageRows.
	Rows int
	// Over tells that the time for a page is over; nil: there is no limit.
	Over func() bool
}

// unsuccessful gives the states of the filter, if it selects only runs that ended without success.
// Few runs do, and they have an index.
func (f *RunFilter) unsuccessful() []string {
	states := texts(f.State)
	if len(states) == 0 {
		states = f.Status
	}
	if len(states) == 0 && f.Code != "" {
		return []string{string(perdure.Failed), string(perdure.TimedOut), string(perdure.Cancelled)}
	}
	for _, s := range states {
		if !perdure.State(s).Terminal() || s == string(perdure.Completed) {
			return nil
		}
	}
	return states
}

// onlyLive tells whether the filter selects live runs only.
func (f *RunFilter) onlyLive() bool {
	ended := func(s perdure.State) bool { return !s.Live() }
	endedStatus := func(s string) bool { return s != perdure.StatusDeferred && !perdure.State(s).Live() }
	return f.Live || f.Held || f.SeenBefore > 0 || f.DeadlineBefore > 0 ||
		len(f.State) > 0 && !slices.ContainsFunc(f.State, ended) ||
		len(f.Status) > 0 && !slices.ContainsFunc(f.Status, endedStatus)
}

// Matches tells whether a run has what the filter selects by, as far as that changes. A run keeps the
// other fields that a filter selects by for all its life.
func (f *RunFilter) Matches(r *perdure.Run) bool {
	live := r.State.Live()
	return (len(f.Status) == 0 || slices.Contains(f.Status, r.Status())) &&
		(len(f.State) == 0 || slices.Contains(f.State, r.State)) && (!f.Live || live) &&
		(f.Worker == "" || r.Worker == f.Worker) && (!f.Held || r.OnHold()) &&
		(f.Code == "" || !live && r.Failure != nil && r.Failure.Code == f.Code) &&
		(f.DeadlineBefore == 0 || live && r.DeadlineAt <= f.DeadlineBefore) &&
		(f.SeenBefore == 0 || r.State.Leased() && r.SeenAt > 0 && r.SeenAt <= f.SeenBefore) &&
		(f.Class == "" || r.Class == f.Class) && (f.FinishedAfter == 0 || !live && r.FinishedAt >= f.FinishedAfter)
}

// Searches tells whether the runs that match may have to be looked for among many that don't: no index
// has what the filter selects by.
func (f *RunFilter) Searches() bool {
	return f.IDPart != "" || f.KindPrefix != "" || f.Value != "" || f.Worker != "" || f.Code != "" || f.Held ||
		f.DeadlineBefore > 0 || f.FinishedAfter > 0 || f.SeenBefore > 0 || f.Class != ""
}

// conditions gives the filter as conditions on a row of runs, each preceded by AND.
func (f *RunFilter) conditions(d *dialect) (string, []any, error) {
	var where strings.Builder
	var args []any
	and := func(cond string, arg string) {
		if arg != "" {
			where.WriteString(" AND " + cond)
			args = append(args, arg)
		}
	}
	oneOf := func(column string, values []string) string {
		for _, v := range values {
			args = append(args, v)
		}
		if len(values) == 1 {
			return column + "=?"
		}
		return column + " IN (?" + strings.Repeat(",?", len(values)-1) + ")"
	}
	const deferred = "deferred_at>0 AND alarm_at IS NOT NULL"
	if plain := slices.DeleteFunc(slices.Clone(f.Status), isDeferred); len(plain) > 0 {
		cond := oneOf("state", plain) + " AND (deferred_at=0 OR alarm_at IS NULL)"
		if len(plain) < len(f.Status) {
			cond = "(" + cond + " OR " + deferred + ")"
		}
		where.WriteString(" AND " + cond)
	} else if len(f.Status) > 0 {
		where.WriteString(" AND " + deferred)
	}
	if len(f.State) > 0 {
		where.WriteString(" AND " + oneOf("state", texts(f.State)))
	}
	and("kind=?", f.Kind)
	and("queue=?", f.Queue)
	and("thread_id=?", string(f.ThreadID))
	and("parent_id=?", string(f.ParentID))
	and("root_id=?", string(f.RootID))
	if f.Live {
		where.WriteString(" AND alarm_at IS NOT NULL")
	}
	for _, k := range slices.Sorted(maps.Keys(f.Metadata)) {
		// Metadata is an object of strings, written without spaces, so that a name and its value
		// are adjacent.
		pair, err := json.Marshal(map[string]string{k: f.Metadata[k]})
		if err != nil {
			return "", nil, err
		}
		and(d.contains("metadata"), strings.Trim(string(pair), "{}"))
	}
	if f.Value != "" {
		b, err := json.Marshal(f.Value)
		if err != nil {
			return "", nil, err
		}
		and(d.contains("metadata"), ":"+string(b)) // a quotation mark in a value is escaped
	}
	and(d.contains("id"), f.IDPart)
	if f.KindPrefix != "" {
		and("kind>=?", f.KindPrefix)
		and("kind<?", f.KindPrefix+lastRune)
	}
	and("worker=?", f.Worker)
	if f.Held {
		where.WriteString(" AND alarm_at IS NOT NULL")
		and(d.contains("rest"), heldNow)
	}
	if f.Code != "" {
		cond, texts, err := f.failedWith(d)
		if err != nil {
			return "", nil, err
		}
		where.WriteString(" AND alarm_at IS NULL AND " + cond)
		args = append(args, texts...)
	}
	if f.DeadlineBefore > 0 {
		where.WriteString(" AND alarm_at IS NOT NULL AND deadline_at<=?")
		args = append(args, int64(f.DeadlineBefore))
	}
	and("class=?", string(f.Class))
	if f.SeenBefore > 0 {
		where.WriteString(" AND state IN ('dispatched','running') AND seen_at>0 AND seen_at<=?")
		args = append(args, int64(f.SeenBefore))
	}
	if f.FinishedAfter > 0 {
		where.WriteString(" AND alarm_at IS NULL AND finished_at>=?")
		args = append(args, int64(f.FinishedAfter))
	}
	return where.String(), args, nil
}

const (
	// lastRune is greater than what may follow the prefix of a kind.
	lastRune = "\U0010ffff"
	// heldNow is in the column rest of a run that is on hold. Texts in it have their quotation marks
	// escaped.
	heldNow = `"hold":{"since":`
)

// failedWith is the condition that a run has failed with the code. The column rest has a failure in two
// places: of the run, and of the defect that held it last. The latter follows the list of builds, or a number.
func (f *RunFilter) failedWith(d *dialect) (cond string, args []any, err error) {
	code, err := json.Marshal(f.Code)
	if err != nil {
		return "", nil, err
	}
	failure := `"failure":{"code":` + string(code)
	part := d.contains("rest")
	args = []any{"," + failure, "{" + failure, `"hold":{`}
	cond = "((" + part + " OR " + part + ") AND (NOT " + part
	for _, before := range []string{"}", "true", `"`} { // what stands between the hold and the failure ends so
		cond, args = cond+" OR "+part, append(args, before+","+failure)
	}
	return cond + "))", args, nil
}

func isDeferred(status string) bool { return status == perdure.StatusDeferred }
