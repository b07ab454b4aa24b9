package store

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/plant"
)

var runTable = register(&table[perdure.Run]{
	name: "runs", once: true, keys: []string{"tenant", "id"},
	rare: []string{"parent_id", "journal_key", "continuation_of", "retry_of", "origin_id", "first_epoch", "inbox_from",
		"copy_to", "epoch", "strikes", "deliveries", "heard", "resumed", "granted_at", "first_grant_at", "lease_until",
		"started_at", "seen_at", "moved_at", "wait_at", "finished_at", "beat_at", "deferred_at", "worker", "activity",
		"said", "result", "inbox_seq", "inbox_open", "journal_seq", "waits_open", "children", "late", "watched",
		"cascade", "committed", "held_by", "limited_at"},
	groups: alikeNewRuns,
	columns: func(c *columns, r *perdure.Run) {
		acceptedColumns(c, r)
		changingColumns(c, r)
	},
	unreadable: func(r *perdure.Run, column string) { damaged(r, column) },
	validate:   validateRun,
})

// acceptedColumns are written when a run is accepted.
func acceptedColumns(c *columns, r *perdure.Run) {
	text(c, "tenant", &r.Tenant)
	text(c, "id", &r.ID)
	text(c, "kind", &r.Kind)
	text(c, "class", &r.Class)
	text(c, "queue", &r.Queue)
	number(c, "priority", &r.Priority)
	text(c, "thread_id", &r.ThreadID)
	text(c, "parent_id", &r.ParentID)
	text(c, "root_id", &r.RootID)
	text(c, "journal_key", &r.JournalKey)
	text(c, "continuation_of", &r.ContinuationOf)
	text(c, "retry_of", &r.RetryOf)
	text(c, "input", &r.Input)
	text(c, "metadata", &r.Metadata)
	number(c, "created_at", &r.CreatedAt)
	number(c, "deadline_at", &r.DeadlineAt)
	number(c, "max_attempts", &r.MaxAttempts)
	derived(c, "place", r, runPlace)
	text(c, "origin_id", &r.OriginID)
	number(c, "first_epoch", &r.FirstEpoch)
	number(c, "inbox_from", &r.InboxFrom)
	number(c, "copy_to", &r.CopyTo)
}

// changingColumns are written with every transition as well.
func changingColumns(c *columns, r *perdure.Run) {
	text(c, "state", &r.State)
	number(c, "version", &r.Version)
	number(c, "epoch", &r.Epoch)
	number(c, "attempt", &r.Attempt)
	number(c, "strikes", &r.Strikes)
	number(c, "deliveries", &r.Grants)
	number(c, "turn", &r.Turn)
	flag(c, "ready", &r.Ready)
	flag(c, "heard", &r.HolderSeen)
	flag(c, "resumed", &r.Resumed)
	number(c, "ready_at", &r.ReadyAt)
	number(c, "granted_at", &r.GrantedAt)
	number(c, "first_grant_at", &r.FirstGrantAt)
	number(c, "lease_until", &r.LeaseUntil)
	number(c, "started_at", &r.StartedAt)
	number(c, "seen_at", &r.SeenAt)
	number(c, "moved_at", &r.MovedAt)
	number(c, "wait_at", &r.WaitAt)
	number(c, "finished_at", &r.FinishedAt)
	number(c, "beat_at", &r.HeartbeatAt)
	number(c, "deferred_at", &r.DeferredAt)
	text(c, "worker", &r.Worker)
	text(c, "activity", &r.Activity)
	number(c, "said", &r.AlertsSent)
	text(c, "result", &r.Result)
	number(c, "seq", &r.Seq)
	number(c, "inbox_seq", &r.InboxSeq)
	number(c, "inbox_open", &r.InboxOpen)
	number(c, "journal_seq", &r.JournalSeq)
	number(c, "waits_open", &r.WaitsOpen)
	number(c, "children", &r.Children)
	number(c, "late", &r.Late)
	flag(c, "watched", &r.Counted)
	flag(c, "cascade", &r.Cascade)
	optional(c, "alarm_at", &r.AlarmAt)
	packed(c, "rest", restColumn{r})
	packed(c, "committed", lastCommitColumn{r})
	derived(c, "held_by", r, heldBy)
	derived(c, "limited_at", r, limitedAt)
}

// settledColumns are written as well if a batch settles the class of a run, or replaces its input.
func settledColumns(c *columns, r *perdure.Run) {
	text(c, "class", &r.Class)
	number(c, "deadline_at", &r.DeadlineAt)
}

// renewedColumns are written as well if a batch replaces the input of a run.
func renewedColumns(c *columns, r *perdure.Run) { text(c, "input", &r.Input) }

// An alsoWritten says which columns beside changingColumns a batch writes.
type alsoWritten int

const (
	onlyChanging alsoWritten = iota
	alsoSettled
	alsoRenewed // with settledColumns
)

func runPlace(r *perdure.Run) any { return int64(r.Place()) }

// heldForCleanup is held_by of a run that any build may claim, to clean up after a cancel request.
const heldForCleanup = "cancel"

// heldBy gives the builds that may not claim a run, see held.go.
func heldBy(r *perdure.Run) any {
	if r.ForCleanup() {
		return heldForCleanup
	}
	if !r.HeldBack() {
		return ""
	}
	return "\n" + strings.Join(r.Hold.Builds, "\n") + "\n"
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

// lastCommitColumn is the column with the last commit.
type lastCommitColumn struct{ r *perdure.Run }

func (s lastCommitColumn) value() any { return packLastCommit(s.r) }

func (s lastCommitColumn) Scan(v any) error {
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
	in       *base
	events   *Events
	removals *Removals
	rows     staged[runKey, perdure.Run]
	// read has the version of each run's row as it was read. New runs are not in it.
	read map[runKey]int64
	// unsettled has those of them whose class was open.
	unsettled map[runKey]bool
	// renewed is set when the batch replaces the input of a run.
	renewed bool
}

func (repo *Runs) open(in *base, events *Events, removals *Removals) {
	repo.events, repo.removals = events, removals
	repo.in, repo.rows.in, repo.rows.table = in, in, runTable
	in.write(repo)
}

// Get gives a run of a tenant. ok is false if there is none.
func (repo *Runs) Get(t perdure.TenantID, id perdure.RunID) (r perdure.Run, ok bool, err error) {
	k := runKey{t, id}
	if _, _, known := getRow(&repo.rows, k); known || repo.recall(k) {
		r, ok, _ = getRow(&repo.rows, k)
		return r, ok, nil
	}
	r, ok, err = loadRow(&repo.rows, k, "WHERE tenant=? AND id=?", string(t), string(id))
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
		if _, _, known := getRow(&repo.rows, runKey{t, id}); !known && !asked[id] && !repo.recall(runKey{t, id}) {
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
			absorbRow(&repo.rows, runKey{t, perdure.RunID(id)}, perdure.Run{}, false)
		}
		return nil
	})
}

// absorb keeps a run as the database has it, unless the batch knows it already.
func (repo *Runs) absorb(r *perdure.Run) {
	k := runKey{r.Tenant, r.ID}
	if _, _, known := getRow(&repo.rows, k); !known {
		absorbRow(&repo.rows, k, *r, true)
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
	r, ok, _ := getRow(&repo.rows, runKey{t, id})
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
	putRow(&repo.rows, runKey{r.Tenant, r.ID}, r)
	rows := make([]eventRow, len(lines))
	for i, l := range lines {
		rows[i] = eventRow{r.Tenant, r.ID, l}
		repo.in.tx.bytes += len(l.Data) // restored by the undo of the rows
	}
	addRows(&repo.events.rows, rows...)
}

// renumber moves lines behind the last line in a run's log, if the counter in a damaged row is too
// low. A query error shows when the lines are written.
func (repo *Runs) renumber(r *perdure.Run, lines []perdure.Line) []perdure.Line {
	last := int64(0)
	_ = repo.in.sess.Query("SELECT coalesce(max(seq),0) FROM events WHERE tenant=? AND run_id=?",
		[]any{string(r.Tenant), string(r.ID)}, func(scan func(...any) error) error {
			return scan(&last)
		})
	for i := range repo.events.rows.list {
		if e := &repo.events.rows.list[i]; e.Tenant == r.Tenant && e.RunID == r.ID {
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
	dropRow(&repo.rows, k)
	repo.drop(r.Tenant, []Spent{{ID: r.ID, Version: r.Version, Metadata: r.Metadata,
		Lines: r.Seq + r.JournalSeq + r.InboxSeq + int64(r.Commits)}})
}

// drop stages the removal of runs, each provided that its version has not changed.
func (repo *Runs) drop(t perdure.TenantID, runs []Spent) {
	for _, r := range runs {
		addRows(&repo.in.tx.later, statement{"DELETE FROM runs WHERE tenant=? AND id=? AND version=?",
			[]any{string(t), string(r.ID), r.Version}, 1})
		dropMetadata(repo.in.tx, t, r.ID, r.Metadata)
		addRows(&repo.removals.rows, removal{Tenant: t, Kind: RemoveRun, ID: string(r.ID), Due: repo.in.Now,
			Lines: r.Lines})
	}
}

// RenewInput has the batch write the inputs of its runs: one of them is replaced.
func (repo *Runs) RenewInput() { repo.renewed = true }

func (repo *Runs) pending() int { return len(repo.rows.dirty) }

// statements gives the statements that write the runs: the update of those that were read, the
// inserts of new ones, and their metadata index.
func (repo *Runs) statements(d *dialect) []statement {
	var fresh []perdure.Run
	var changed []changedRun
	also := onlyChanging
	for i, k := range repo.rows.dirty {
		r := &repo.rows.byKey[k].val
		if read, stored := repo.read[k]; stored {
			changed = append(changed, changedRun{r, read})
			if also == onlyChanging && repo.unsettled[k] && !r.Options.Open {
				also = alsoSettled
			}
			continue
		}
		if fresh == nil {
			fresh = make([]perdure.Run, 0, len(repo.rows.dirty)-i)
		}
		fresh = append(fresh, *r)
	}
	if repo.renewed {
		also = alsoRenewed
	}
	return slices.Concat(saveRuns(d, changed, also), runTable.insert(d, fresh),
		metadataTable.insert(d, indexMetadata(fresh, repo.in.s.opt.Redact)))
}

// A changedRun is a run to be written, and the version of the row that the decision was made on.
type changedRun struct {
	run  *perdure.Run
	read int64
}

// columns are the key of the run, the version that was read, and the columns to write.
func (x *changedRun) columns(c *columns, also alsoWritten) {
	text(c, "tenant", &x.run.Tenant)
	text(c, "id", &x.run.ID)
	number(c, "read", &x.read)
	changingColumns(c, x.run)
	if also >= alsoSettled {
		settledColumns(c, x.run)
	}
	if also == alsoRenewed {
		renewedColumns(c, x.run)
	}
}

// changeNames has the names of a changedRun's columns.
var changeNames = [...][]string{namesOfChange(onlyChanging), namesOfChange(alsoSettled), namesOfChange(alsoRenewed)}

// changeGroups has the groups of these columns that are often alike.
var changeGroups = [...]grouping{group(changeNames[onlyChanging], alikeRuns),
	group(changeNames[alsoSettled], alikeRuns), group(changeNames[alsoRenewed], alikeRuns)}

func namesOfChange(also alsoWritten) []string {
	return names(func(c *columns) { (&changedRun{run: new(perdure.Run)}).columns(c, also) })
}

// saveRuns gives the only statement of the program that updates runs: a compare-and-set on the
// version, for many runs at once. The rows are sorted by id, so that two nodes can't deadlock. If
// another writer has changed one of the rows, the whole batch is rolled back. Columns that only some of
// the rows need are written for all of them: two statements could deadlock with those of another node.
func saveRuns(d *dialect, rows []changedRun, also alsoWritten) (out []statement) {
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b changedRun) int { return strings.Compare(string(a.run.ID), string(b.run.ID)) })
	names := changeNames[also]
	bound, c := make([][]any, len(rows)), columns{of: binding, list: make([]any, 0, len(rows)*len(names))}
	for i := range rows {
		from := len(c.list)
		rows[i].columns(&c, also)
		bound[i] = c.list[from:]
	}
	for part := range d.parts(bound) {
		groups := changeGroups[also]
		all := groups.alike(d, part)
		k := textKey{d: d, n: d.textFor(len(part)), also: also, all: all}
		text, ok := updateTexts.Load(k)
		if !ok {
			text = updateText(d, names, groups.given(d, part, all))
			updateTexts.Store(k, text)
		}
		out = append(out, statement{text.(string) + guard(), groups.args(d, part, all, nil), int64(len(part))})
	}
	return out
}

// updateTexts caches the results of updateText by dialect, number of rows and columns.
var updateTexts sync.Map

// updateText is the UPDATE without its condition on the version.
func updateText(d *dialect, names []string, given string) string {
	var set []string
	for _, c := range names[slices.Index(names, "read")+1:] {
		set = append(set, c+"=input."+c)
	}
	return "WITH input(" + strings.Join(names, ",") +
		") AS (" + given + ") UPDATE " + d.orFail + "runs SET " +
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
