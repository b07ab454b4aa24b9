package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/plant"
)

// insertColumns are written when a run is accepted, updateColumns with every transition.
var (
	insertColumns = []string{"tenant", "id", "kind", "class", "queue", "priority", "thread_id", "parent_id", "root_id",
		"journal_key", "continuation_of", "retry_of", "input", "metadata", "created_at", "deadline_at", "max_attempts",
		"place", "origin_id", "first_epoch", "inbox_from", "copy_to"}
	updateColumns = []string{"state", "version", "epoch", "attempt", "strikes", "deliveries", "turn", "ready", "heard",
		"resumed", "ready_at", "granted_at", "first_grant_at", "lease_until", "started_at", "seen_at", "moved_at",
		"wait_at", "finished_at", "beat_at", "deferred_at", "worker", "activity", "said", "result", "seq", "inbox_seq",
		"inbox_open", "journal_seq", "waits_open", "children", "late", "watched", "cascade", "alarm_at", "rest",
		"committed", "held_by"}
	// settledColumns are written as well if a batch settles the class of a run.
	settledColumns = []string{"class", "deadline_at"}
)

// bindInsert appends the values of insertColumns.
func bindInsert(to []any, r *perdure.Run) []any {
	return append(to, string(r.Tenant), string(r.ID), r.Kind, string(r.Class), r.Queue, int64(r.Priority),
		string(r.ThreadID), string(r.ParentID), string(r.RootID), r.JournalKey, string(r.ContinuationOf),
		string(r.RetryOf), string(r.Input), string(r.Metadata), int64(r.CreatedAt), int64(r.DeadlineAt),
		int64(r.MaxAttempts), int64(r.Place()), string(r.OriginID), r.FirstEpoch, r.InboxFrom, r.CopyTo)
}

// bindUpdate appends the values of updateColumns.
func bindUpdate(to []any, r *perdure.Run) []any {
	return append(to, string(r.State), r.Version, r.Epoch, int64(r.Attempt), int64(r.Strikes), int64(r.Grants),
		int64(r.Turn), toBit(r.Ready), toBit(r.HolderSeen), toBit(r.Resumed), int64(r.ReadyAt), int64(r.GrantedAt),
		int64(r.FirstGrantAt), int64(r.LeaseUntil), int64(r.StartedAt), int64(r.SeenAt), int64(r.MovedAt),
		int64(r.WaitAt), int64(r.FinishedAt), int64(r.HeartbeatAt), int64(r.DeferredAt), r.Worker, r.Activity,
		int64(r.AlertsSent),
		string(r.Result), r.Seq, r.InboxSeq, int64(r.InboxOpen), r.JournalSeq, int64(r.WaitsOpen), int64(r.Children),
		int64(r.Late), toBit(r.Counted), toBit(r.Cascade), orNull(r.AlarmAt), packRest(r), packLastCommit(r),
		packHeldBy(r))
}

var runTable = &table[perdure.Run]{
	name: "runs", once: true,
	rare: []string{"parent_id", "journal_key", "continuation_of", "retry_of", "origin_id", "first_epoch", "inbox_from",
		"copy_to", "epoch", "strikes", "deliveries", "heard", "resumed", "granted_at", "first_grant_at", "lease_until",
		"started_at", "seen_at", "moved_at", "wait_at", "finished_at", "beat_at", "deferred_at", "worker", "activity",
		"said", "result", "inbox_seq", "inbox_open", "journal_seq", "waits_open", "children", "late", "watched",
		"cascade", "committed", "held_by"},
	cols: slices.Concat(insertColumns, updateColumns), keys: []string{"tenant", "id"},
	bind: func(r *perdure.Run) []any {
		return bindUpdate(bindInsert(make([]any, 0, len(insertColumns)+len(updateColumns)), r), r)
	},
	scan: func(r *perdure.Run) []any {
		// The columns place and held_by are ignored: they follow from other columns.
		return []any{&r.Tenant, &r.ID, &r.Kind, &r.Class, &r.Queue, &r.Priority, &r.ThreadID, &r.ParentID, &r.RootID,
			&r.JournalKey, &r.ContinuationOf, &r.RetryOf, &r.Input, &r.Metadata, &r.CreatedAt, &r.DeadlineAt,
			&r.MaxAttempts, ignored{}, &r.OriginID, &r.FirstEpoch, &r.InboxFrom, &r.CopyTo, &r.State, &r.Version,
			&r.Epoch, &r.Attempt, &r.Strikes, &r.Grants, &r.Turn,
			bit{&r.Ready}, bit{&r.HolderSeen}, bit{&r.Resumed}, &r.ReadyAt, &r.GrantedAt, &r.FirstGrantAt,
			&r.LeaseUntil,
			&r.StartedAt, &r.SeenAt, &r.MovedAt, &r.WaitAt, &r.FinishedAt, &r.HeartbeatAt, &r.DeferredAt, &r.Worker,
			&r.Activity, &r.AlertsSent, &r.Result, &r.Seq, &r.InboxSeq, &r.InboxOpen, &r.JournalSeq, &r.WaitsOpen,
			&r.Children, &r.Late, bit{&r.Counted}, bit{&r.Cascade}, nullable[perdure.Instant]{&r.AlarmAt},
			restScanner{r}, lastCommitScanner{r}, ignored{}}
	},
	unreadable: func(r *perdure.Run, column string) { damaged(r, column) },
	validate:   validateRun,
}

// rest holds the fields of a run that no query searches by, as one JSON column. It is empty for
// most runs. Values are strings here: perdure.Value would marshal as callers see it, and a
// reference could not be resolved any more.
type rest struct {
	Options     *restOptions     `json:"options,omitempty"`
	Progress    string           `json:"progress,omitempty"`
	ProgressOf  int              `json:"progress_of,omitempty"`
	ActivityAt  perdure.Instant  `json:"activity_at,omitempty"`
	Held        string           `json:"held,omitempty"`
	Cancel      *perdure.Cancel  `json:"cancel,omitempty"`
	Hold        *perdure.Hold    `json:"hold,omitempty"`
	WasDefer    bool             `json:"was_deferred,omitempty"`
	Summary     string           `json:"summary,omitempty"`
	Failure     *perdure.Failure `json:"failure,omitempty"`
	Fallback    string           `json:"fallback,omitempty"`
	ContinuedBy perdure.RunID    `json:"continued_by,omitempty"`
	Stopped     string           `json:"stopped,omitempty"`
	Counter     int64            `json:"counter,omitempty"`
	WatchUntil  perdure.Instant  `json:"watch_until,omitempty"`
	Spent       bool             `json:"spent,omitempty"`
	Former      int64            `json:"former,omitempty"`

	Signature *perdure.Signature `json:"signature,omitempty"`
}

// restOptions are the options of a run, with their values as strings.
type restOptions struct {
	perdure.Options
	Webhook string `json:"webhook,omitempty"`
	Opening string `json:"opening,omitempty"`
}

// packRest gives the rest column of a run. The column of a damaged run is kept as it was read.
func packRest(r *perdure.Run) string {
	if r.Damage != nil && r.Damage.Rest != "" {
		return r.Damage.Rest
	}
	x := rest{Progress: string(r.Progress), ProgressOf: r.ProgressOf, Held: r.Withheld, ActivityAt: r.ActivityAt,
		WasDefer: r.WasDefer, Summary: r.Summary, Failure: r.Failure, Fallback: string(r.Fallback),
		ContinuedBy: r.ContinuedBy, Hold: r.Hold,
		Stopped: r.Stopped, Counter: r.Counter, WatchUntil: r.WatchUntil, Spent: r.Spent,
		Former: r.Former}
	if r.Options != (perdure.Options{}) {
		x.Options = &restOptions{Options: r.Options, Webhook: string(r.Options.Webhook),
			Opening: string(r.Options.Opening)}
	}
	if r.Cancel != (perdure.Cancel{}) {
		x.Cancel = &r.Cancel
	}
	if !r.Signature.IsZero() {
		x.Signature = &r.Signature
	}
	if x == (rest{}) {
		return ""
	}
	b, err := json.Marshal(x)
	if err != nil {
		panic(fmt.Sprintf("a run that can't be written: %v", err))
	}
	return string(b)
}

// restScanner scans the rest column.
type restScanner struct{ r *perdure.Run }

func (s restScanner) Scan(v any) error {
	text, ok := v.(string)
	if !ok || text == "" {
		return nil
	}
	var x rest
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		damaged(s.r, "rest").Rest = text
		return nil
	}
	r := s.r
	r.Progress, r.Fallback = perdure.Value(x.Progress), perdure.Value(x.Fallback)
	r.ActivityAt, r.WasDefer, r.Summary, r.Failure, r.ContinuedBy = x.ActivityAt, x.WasDefer, x.Summary, x.Failure,
		x.ContinuedBy
	r.Withheld, r.ProgressOf, r.Stopped, r.Hold = x.Held, x.ProgressOf, x.Stopped, x.Hold
	r.Counter, r.WatchUntil, r.Spent, r.Former = x.Counter, x.WatchUntil, x.Spent, x.Former
	if x.Options != nil {
		r.Options = x.Options.Options
		r.Options.Webhook, r.Options.Opening = perdure.Value(x.Options.Webhook), perdure.Value(x.Options.Opening)
	}
	if x.Cancel != nil {
		r.Cancel = *x.Cancel
	}
	if x.Signature != nil {
		r.Signature = *x.Signature
	}
	return nil
}

// packLastCommit gives the column with the last commit, in up to four lines: the number of rows in
// commits, the digest, the answer, and the id. The id comes last, because a client chose it and it
// may contain anything.
func packLastCommit(r *perdure.Run) string {
	if r.Damage != nil && r.Damage.Commits != "" {
		return r.Damage.Commits
	}
	c := &r.LastCommit
	if c.ID == "" {
		if r.Commits == 0 {
			return ""
		}
		return strconv.Itoa(r.Commits)
	}
	return strconv.Itoa(r.Commits) + "\n" + c.Digest + "\n" + c.Answer + "\n" + c.ID
}

// lastCommitScanner scans the column that packLastCommit writes.
type lastCommitScanner struct{ r *perdure.Run }

func (s lastCommitScanner) Scan(v any) error {
	text, _ := v.(string)
	if text == "" {
		return nil
	}
	part := strings.SplitN(text, "\n", 4)
	n, err := strconv.Atoi(part[0])
	if err != nil || n < 0 || (len(part) != 1 && len(part) != 4) {
		damaged(s.r, "committed").Commits = text
		return nil
	}
	s.r.Commits = n
	if len(part) == 4 {
		s.r.LastCommit = perdure.Taken{Digest: part[1], Answer: part[2], ID: part[3]}
	}
	return nil
}

// Runs holds the runs. Their index of metadata is written with them.
type Runs struct {
	in   *Records
	rows staged[runKey, perdure.Run]
	// read has the version of each run's row as it was read. New runs are not in it.
	read map[runKey]int64
	// unsettled has those of them whose class was open.
	unsettled map[runKey]bool
}

func (repo *Runs) open(in *Records) {
	repo.in, repo.rows.in, repo.rows.table = in, in, runTable
	in.write(repo)
}

// Get gives a run of a tenant. ok is false if there is none.
func (repo *Runs) Get(t perdure.TenantID, id perdure.RunID) (r perdure.Run, ok bool, err error) {
	k := runKey{t, id}
	if _, _, known := repo.rows.get(k); known || repo.recall(k) {
		r, ok, _ = repo.rows.get(k)
		return r, ok, nil
	}
	r, ok, err = repo.rows.load(k, "WHERE tenant=? AND id=?", string(t), string(id))
	if ok {
		repo.noteRead(k, &r)
	}
	return r, ok, err
}

// Load reads many runs in few queries.
func (repo *Runs) Load(t perdure.TenantID, ids []perdure.RunID) error {
	var want []perdure.RunID
	asked := make(map[perdure.RunID]bool, len(ids))
	for _, id := range ids {
		if _, _, known := repo.rows.get(runKey{t, id}); !known && !asked[id] && !repo.recall(runKey{t, id}) {
			want, asked[id] = append(want, id), true
		}
	}
	return eachPart(repo.in.dialect, texts(want), func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		err := runTable.query(repo.in.sess, given, args, func(r *perdure.Run) error {
			repo.absorb(r)
			return nil
		})
		if err != nil {
			return err // the runs may exist: nothing is remembered
		}
		for _, id := range part {
			repo.rows.absorb(runKey{t, perdure.RunID(id)}, perdure.Run{}, false)
		}
		return nil
	})
}

// absorb keeps a run as the database has it, unless the batch knows it already.
func (repo *Runs) absorb(r *perdure.Run) {
	k := runKey{r.Tenant, r.ID}
	if _, _, known := repo.rows.get(k); !known {
		repo.rows.absorb(k, *r, true)
		repo.noteRead(k, r)
	}
}

// noteRead records the version of a run's row as it was read or taken from the cache.
func (repo *Runs) noteRead(k runKey, r *perdure.Run) {
	if repo.read == nil {
		repo.read = make(map[runKey]int64)
	}
	repo.read[k] = r.Version
	if r.Options.Open {
		if repo.unsettled == nil {
			repo.unsettled = make(map[runKey]bool)
		}
		repo.unsettled[k] = true
	}
}

// Staged gives the version of a run that the batch already knows.
func (repo *Runs) Staged(t perdure.TenantID, id perdure.RunID) (version int64, ok bool) {
	r, ok, _ := repo.rows.get(runKey{t, id})
	return r.Version, ok
}

// Moved tells whether another writer has changed or removed a run since the batch read it. Callers
// use it when rows do not fit together: they may have been read at different times.
func (repo *Runs) Moved(r *perdure.Run) (moved bool, err error) {
	k := runKey{r.Tenant, r.ID}
	moved = true // also if the row is gone
	err = repo.in.sess.Query("SELECT version FROM runs WHERE tenant=? AND id=?", []any{string(k.t), string(k.r)},
		func(scan func(...any) error) error {
			var version int64
			err := scan(nullable[int64]{&version})
			moved = version != repo.read[k]
			return err
		})
	return moved, err
}

// eachChanged calls f for the runs that the batch has changed, in the order of their first change.
func (repo *Runs) eachChanged(f func(runKey, *perdure.Run)) {
	for _, k := range repo.rows.dirty {
		if known := repo.rows.byKey[k]; known.exists {
			f(k, &known.val)
		}
	}
}

// touched gives the ids of the runs that the batch has changed.
func (repo *Runs) touched() []perdure.RunID {
	out := make([]perdure.RunID, len(repo.rows.dirty))
	for i, k := range repo.rows.dirty {
		out[i] = k.r
	}
	return out
}

// Put stages a run, new or changed, and the lines that this adds to its log.
func (repo *Runs) Put(r perdure.Run, lines []perdure.Line) {
	if repo.in.tx.recount {
		lines = repo.renumber(&r, lines)
	}
	repo.rows.put(runKey{r.Tenant, r.ID}, r)
	rows := make([]eventRow, len(lines))
	for i, l := range lines {
		rows[i] = eventRow{r.Tenant, r.ID, l}
		repo.in.tx.bytes += len(l.Data) // restored by the undo of the rows
	}
	repo.in.Events.rows.add(rows...)
}

// renumber moves lines behind the last line in a run's log, if the counter in a damaged row is too
// low. A query error shows when the lines are written.
func (repo *Runs) renumber(r *perdure.Run, lines []perdure.Line) []perdure.Line {
	last := int64(0)
	_ = repo.in.sess.Query("SELECT coalesce(max(seq),0) FROM events WHERE tenant=? AND run_id=?",
		[]any{string(r.Tenant), string(r.ID)}, func(scan func(...any) error) error {
			return scan(&last)
		})
	for i := range repo.in.Events.rows.list {
		if e := &repo.in.Events.rows.list[i]; e.Tenant == r.Tenant && e.RunID == r.ID {
			last = max(last, e.Seq)
		}
	}
	out := slices.Clone(lines)
	for i := range out {
		if out[i].Seq <= last {
			out[i].Seq = last + 1
		}
		last = out[i].Seq
	}
	r.Seq = max(r.Seq, last)
	return out
}

// Drop stages the removal of a run, provided that its row has not changed. The records of the run
// are removed later; see removals.go.
func (repo *Runs) Drop(r *perdure.Run) {
	k := runKey{r.Tenant, r.ID}
	repo.rows.drop(k)
	repo.drop(r.Tenant, []Spent{{ID: r.ID, Version: r.Version, Metadata: r.Metadata,
		Lines: r.Seq + r.JournalSeq + r.InboxSeq + int64(r.Commits)}})
}

// drop stages the removal of runs, each provided that its version has not changed.
func (repo *Runs) drop(t perdure.TenantID, runs []Spent) {
	for _, r := range runs {
		repo.in.tx.later.add(statement{"DELETE FROM runs WHERE tenant=? AND id=? AND version=?",
			[]any{string(t), string(r.ID), r.Version}, 1})
		dropMetadata(repo.in.tx, t, r.ID, r.Metadata)
		repo.in.Removals.rows.add(removal{Tenant: t, Kind: RemoveRun, ID: string(r.ID), Due: repo.in.Now,
			Lines: r.Lines})
	}
}

func (repo *Runs) pending() int { return repo.rows.pending() }

// statements gives the statements that write the runs: the update of those that were read, the
// inserts of new ones, and their metadata index.
func (repo *Runs) statements(d *dialect) []statement {
	var fresh []perdure.Run
	var changed []changedRun
	settles := false
	for i, k := range repo.rows.dirty {
		r := &repo.rows.byKey[k].val
		if read, stored := repo.read[k]; stored {
			changed = append(changed, changedRun{r, read})
			settles = settles || repo.unsettled[k] && !r.Options.Open
			continue
		}
		if fresh == nil {
			fresh = make([]perdure.Run, 0, len(repo.rows.dirty)-i)
		}
		fresh = append(fresh, *r)
	}
	return slices.Concat(saveRuns(d, changed, settles), runTable.insert(d, fresh),
		metadataTable.insert(d, indexMetadata(fresh, repo.in.s.opt.Redact)))
}

// A changedRun is a run to be written, and the version of the row that the decision was made on.
type changedRun struct {
	run  *perdure.Run
	read int64
}

// saveRuns gives the only statement of the program that updates runs: a compare-and-set on the
// version, for many runs at once. The rows are sorted by id, so that two nodes can't deadlock. If
// another writer has changed one of the rows, the whole batch is rolled back. With settles it writes
// settledColumns too, of all rows: two statements could deadlock with those of another node.
func saveRuns(d *dialect, rows []changedRun, settles bool) (out []statement) {
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b changedRun) int { return strings.Compare(string(a.run.ID), string(b.run.ID)) })
	columns := updateColumns
	if settles {
		columns = slices.Concat(updateColumns, settledColumns)
	}
	bound := make([][]any, len(rows))
	for i, c := range rows {
		row := append(make([]any, 0, 3+len(columns)), string(c.run.Tenant), string(c.run.ID), c.read)
		row = bindUpdate(row, c.run)
		if settles {
			row = append(row, string(c.run.Class), int64(c.run.DeadlineAt))
		}
		bound[i] = row
	}
	for part := range d.parts(bound) {
		k := textKey{d: d, n: d.textFor(len(part)), settles: settles}
		text, ok := updateTexts.Load(k)
		if !ok {
			text = updateText(d, columns, part)
			updateTexts.Store(k, text)
		}
		out = append(out, statement{text.(string) + guard(), d.args(part), int64(len(part))})
	}
	return out
}

// updateTexts caches the results of updateText by dialect, number of rows and settles.
var updateTexts sync.Map

// updateText is the UPDATE without its condition on the version.
func updateText(d *dialect, columns []string, part [][]any) string {
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = c + "=input." + c
	}
	return "WITH input(" + strings.Join(slices.Concat([]string{"tenant", "id", "read"}, columns), ",") +
		") AS (" + d.rows(part) + ") UPDATE " + d.orFail + "runs SET " +
		strings.Join(set, ",") + " FROM input WHERE runs.tenant=input.tenant AND runs.id=input.id"
}

// guard is the condition under which a row is updated. plant.Is selects a deliberate defect, by
// which tests prove that they would find it.
func guard() string {
	switch {
	case plant.Is("guard-without-version"):
		return ""
	case plant.Is("sweep-ignores-epoch"):
		return " AND (runs.version=input.read OR runs.epoch<input.epoch)"
	}
	// CAST, because a version that can't be read counts as zero.
	return " AND CAST(runs.version AS BIGINT)=input.read"
}
