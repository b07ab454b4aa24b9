package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

var groupTable = register(&table[perdure.Gathering]{
	name: "gatherings", versioned: true, version: func(g *perdure.Gathering) *int64 { return &g.Version },
	heads: groupHeads,
	keys:  []string{"tenant", "id"},
	columns: func(c *columns, g *perdure.Gathering) {
		groupHead(c, g)
		packed(c, "members", idList{&g.Members})
	},
	validate: validateGroup,
})

// groupHeads are groups without their members. There may be a thousand members and they never
// change, so that counting an end neither reads nor writes them.
var groupHeads = register(&table[perdure.Gathering]{
	name: "gatherings", versioned: true, keys: []string{"tenant", "id"}, columns: groupHead,
	validate: validateGroup,
})

// groupHead are the columns of a group without its members.
func groupHead(c *columns, g *perdure.Gathering) {
	text(c, "tenant", &g.Tenant)
	text(c, "id", &g.ID)
	text(c, "kind", &g.Kind)
	text(c, "mode", &g.Mode)
	text(c, "on_losers", &g.OnLosers)
	text(c, "state", &g.State)
	number(c, "version", &g.Version)
	number(c, "created_at", &g.CreatedAt)
	optional(c, "alarm_at", &g.AlarmAt)
	number(c, "ended_at", &g.EndedAt)
	number(c, "total", &g.Total)
	number(c, "ended", &g.Ended)
	number(c, "ok", &g.OK)
	text(c, "made", &g.Made)
	number(c, "next", &g.Next)
}

func validateGroup(g *perdure.Gathering) { clampCounts(&g.Ended, &g.OK) }

type groupKey struct {
	t  perdure.TenantID
	id perdure.GroupID
}

// A MemberRow says that a chord or group waits for a run.
type MemberRow struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	ID     perdure.GroupID
}

var memberTable = register(&table[MemberRow]{
	name: "members", quiet: true, keys: []string{"tenant", "run_id", "gathering_id"},
	columns: func(c *columns, m *MemberRow) {
		text(c, "tenant", &m.Tenant)
		text(c, "run_id", &m.RunID)
		text(c, "gathering_id", &m.ID)
	},
})

func (m MemberRow) run() runKey { return runKey{m.Tenant, m.RunID} }

// Groups holds chords and groups of runs (table gatherings), and which runs each waits for.
type Groups struct {
	in      *base
	rows    staged[groupKey, perdure.Gathering]
	members stagedOfRuns[MemberRow, MemberRow]
}

func (repo *Groups) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, groupTable)
	openRows(&repo.members.staged, in, memberTable)
}

// Get gives a chord or group, without its members.
func (repo *Groups) Get(t perdure.TenantID, id perdure.GroupID) (perdure.Gathering, bool, error) {
	k := groupKey{t, id}
	if g, ok, known := getRow(&repo.rows, k); known {
		return g, ok, nil
	}
	err := repo.Load(t, []perdure.GroupID{id})
	g, ok, _ := getRow(&repo.rows, k)
	return g, ok, err
}

// GetFull gives a chord or group with its members, as the database has it.
func (repo *Groups) GetFull(t perdure.TenantID, id perdure.GroupID) (perdure.Gathering, bool, error) {
	return groupTable.one(repo.in.sess, "WHERE tenant=? AND id=?", string(t), string(id))
}

// Load reads many chords and groups in few queries.
func (repo *Groups) Load(t perdure.TenantID, ids []perdure.GroupID) error {
	var want []string
	for _, id := range ids {
		if _, _, known := getRow(&repo.rows, groupKey{t, id}); !known {
			want = append(want, string(id))
		}
	}
	return eachPart(repo.in.dialect, want, func(part []string) error {
		given, args := repo.in.dialect.keyed("gatherings", []string{"tenant", "id"}, []string{string(t)}, part)
		err := groupHeads.query(repo.in.sess, given, args, func(g *perdure.Gathering) error {
			absorbRow(&repo.rows, groupKey{t, g.ID}, *g, true)
			return nil
		})
		if err != nil {
			return err
		}
		for _, id := range part {
			absorbRow(&repo.rows, groupKey{t, perdure.GroupID(id)}, perdure.Gathering{}, false)
		}
		return nil
	})
}

// Members gives the runs of a chord or group.
func (repo *Groups) Members(g *perdure.Gathering) ([]perdure.RunID, error) {
	if g.Members != nil {
		return g.Members, nil
	}
	var out []perdure.RunID
	err := repo.in.sess.Query("SELECT members FROM gatherings WHERE tenant=? AND id=?",
		[]any{string(g.Tenant), string(g.ID)}, func(scan func(...any) error) error { return scan(idList{&out}) })
	return out, err
}

// Of gives the ids of the chords and groups that wait for a run.
func (repo *Groups) Of(t perdure.TenantID, run perdure.RunID) ([]perdure.GroupID, error) {
	var out []perdure.GroupID
	err := memberTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)},
		func(m *MemberRow) error {
			if _, _, known := getRow(&repo.members.staged, *m); !known { // the batch may have dropped it
				out = append(out, m.ID)
			}
			return nil
		})
	for m := range rowsOf(&repo.members, runKey{t, run}) {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return out, err
}

// CountOf counts how many chords and groups wait for each of some runs, without the changes of the
// batch.
func (repo *Groups) CountOf(t perdure.TenantID, runs []perdure.RunID) (map[perdure.RunID]int, error) {
	out := make(map[perdure.RunID]int)
	err := eachPart(repo.in.dialect, texts(runs), func(part []string) error {
		given, args := repo.in.dialect.keyed("members", []string{"tenant", "run_id"}, []string{string(t)}, part)
		return repo.in.sess.Query("SELECT run_id, count(*) FROM members "+given+" GROUP BY run_id", args,
			func(scan func(...any) error) error {
				var id perdure.RunID
				var n int
				err := scan(&id, &n)
				out[id] = n
				return err
			})
	})
	return out, err
}

// Ringing gives chords and groups whose alarm has passed: their deadline has passed, or work on
// them is left.
func (repo *Groups) Ringing(limit int) ([]perdure.Gathering, error) {
	out, err := repo.ringing("", nil, limit)
	if err != nil || len(out) < limit {
		return out, err
	}
	// More than one sweep can handle: take some of each tenant.
	due, err := repo.in.tx.dueTenants("gatherings", "")
	if err != nil || len(due) < 2 {
		return out, err
	}
	out = nil
	for _, t := range due {
		part, err := repo.ringing("tenant=? AND ", []any{string(t)}, max(1, limit/len(due)))
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// ringing reads chords and groups whose alarm has passed, restricted by a condition.
func (repo *Groups) ringing(where string, args []any, limit int) (out []perdure.Gathering, err error) {
	err = groupHeads.query(repo.in.sess,
		fmt.Sprintf("WHERE "+where+"alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id LIMIT %d",
			limit),
		append(args, int64(repo.in.Now)), func(g *perdure.Gathering) error {
			k := groupKey{g.Tenant, g.ID}
			absorbRow(&repo.rows, k, *g, true)
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= repo.in.Now {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// Open pages through all open chords and groups, after one of them, for the watchdog's patrol.
func (repo *Groups) Open(t perdure.TenantID, id perdure.GroupID, limit int) ([]perdure.Gathering, error) {
	var out []perdure.Gathering
	err := groupHeads.query(repo.in.sess,
		fmt.Sprintf("WHERE state='open' AND (tenant,id)>(?,?) ORDER BY tenant, id LIMIT %d", limit),
		[]any{string(t), string(id)}, func(g *perdure.Gathering) error {
			k := groupKey{g.Tenant, g.ID}
			absorbRow(&repo.rows, k, *g, true)
			// A batch may have closed it.
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.State == perdure.GatheringOpen {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// A GroupFilter selects groups that callers created. Empty fields select all.
type GroupFilter struct {
	// State is one of GroupStates, or GroupEnded.
	State  perdure.GatheringState
	Before perdure.GroupID // the cursor: only older ones
	Limit  int
	Rows   int // how many gatherings a page examines; zero: groupRows
}

// groupRows bounds how many gatherings a page of groups examines: chords are among them.
const groupRows = 5000

// A GroupPage is a page of a list of groups, which have no members there.
type GroupPage struct {
	Groups []perdure.Gathering
	// Next is the last gathering that was examined, if there may be more: the Before of the next page.
	Next perdure.GroupID
	// Cut says that the page ended because of the rows that it examined, at Next.
	Cut bool
}

// Page reads a page of the groups that a tenant's callers created, newest first. It reads the columns
// that stand before the members. If few of many gatherings match, a page may be empty and still have
// a Next.
func (repo *Groups) Page(t perdure.TenantID, f GroupFilter) (p GroupPage, err error) {
	f.Rows = cmp.Or(f.Rows, groupRows)
	among, state, args := "WHERE tenant=?", "", []any(nil)
	switch f.State {
	case "":
	case perdure.GroupEnded:
		state = " AND state<>'open'"
	case perdure.GatheringOpen:
		among += " AND state='open'" // not an argument, so that the partial index of open ones is used
	default:
		state, args = " AND state=?", []any{string(f.State)}
	}
	before := cmp.Or(string(f.Before), "~") // greater than every id
	count, last := 0, perdure.GroupID("")
	err = repo.in.sess.Query("SELECT count(*), coalesce(min(id),'') FROM (SELECT id FROM gatherings "+among+
		" AND id<? ORDER BY id DESC"+atMost+") AS part", []any{string(t), before, int64(f.Rows)},
		func(scan func(...any) error) error { return scan(&count, &last) })
	if err != nil || count == 0 {
		return p, err
	}
	if p.Cut = count == f.Rows; p.Cut {
		p.Next = last
	}
	err = repo.in.sess.Query("SELECT id, mode, on_losers, state, created_at, coalesce(alarm_at,0), ended_at, total, "+
		"ended, ok FROM gatherings "+among+" AND id<? AND id>=? AND kind='group'"+state+" ORDER BY id DESC"+atMost,
		slices.Concat([]any{string(t), before, string(last)}, args, []any{int64(f.Limit)}),
		func(scan func(...any) error) error {
			g := perdure.Gathering{Tenant: t, Kind: perdure.GatheringGroup}
			err := scan(&g.ID, &g.Mode, &g.OnLosers, &g.State, &g.CreatedAt, &g.AlarmAt, &g.EndedAt, &g.Total, &g.Ended,
				&g.OK)
			validateGroup(&g)
			p.Groups = append(p.Groups, g)
			return err
		})
	if n := len(p.Groups); n == f.Limit {
		p.Next, p.Cut = p.Groups[n-1].ID, false
	}
	return p, err
}

// HasEnded tells whether DropEnded would remove something.
func (repo *Groups) HasEnded(t perdure.TenantID, before perdure.Instant) (some bool, err error) {
	err = repo.in.sess.Query("SELECT 1 FROM gatherings WHERE tenant=? AND id<? AND kind='group' AND state<>'open' "+
		"AND ended_at<=? LIMIT 1",
		[]any{string(t), perdure.FirstID(before), int64(before)}, func(func(...any) error) error {
			some = true
			return nil
		})
	return some, err
}

// Put stages a chord or group. Its version is incremented when the batch is written.
func (repo *Groups) Put(g perdure.Gathering) { putRow(&repo.rows, groupKey{g.Tenant, g.ID}, g) }

// AddMember stages that a chord or group waits for a run.
func (repo *Groups) AddMember(m MemberRow) { putOfRun(&repo.members, m, m) }

// DropMembers stages that a chord or group no longer waits for some runs.
func (repo *Groups) DropMembers(g *perdure.Gathering, runs []perdure.RunID) error {
	for _, run := range runs {
		m := MemberRow{Tenant: g.Tenant, RunID: run, ID: g.ID}
		putOfRun(&repo.members, m, m)
		repo.members.byKey[m].exists = false
	}
	return eachPart(repo.in.dialect, texts(runs), func(part []string) error {
		some, args := repo.in.dialect.anyOf("run_id", part)
		addRows(&repo.in.tx.later, statement{"DELETE FROM members WHERE tenant=? AND gathering_id=? AND " + some,
			append([]any{string(g.Tenant), string(g.ID)}, args...), anyNumber})
		return nil
	})
}

// DropEnded stages the removal of groups that ended before an instant, at most limit.
func (repo *Groups) DropEnded(t perdure.TenantID, before perdure.Instant, limit int) {
	addRows(&repo.in.tx.later, statement{"DELETE FROM gatherings WHERE tenant=? AND id IN (SELECT id FROM gatherings " +
		"WHERE tenant=? AND id<? AND kind='group' AND state<>'open' AND ended_at<=? " +
		fmt.Sprintf("ORDER BY id LIMIT %d)", limit),
		[]any{string(t), string(t), perdure.FirstID(before), int64(before)}, anyNumber})
}
