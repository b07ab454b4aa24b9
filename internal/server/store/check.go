package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// An Invariant is a statement about the data that holds after every commit. Query gives the rows
// that violate it. {runs} and {events} stand for the tables, restricted to some runs when only
// those are checked, and {now} for the view's instant.
type Invariant struct {
	ID        string // its name in reports and docs
	Statement string
	Query     string
}

const terminal = "('completed','failed','timeout','cancelled')"
const ends = "('run:completed','run:failed','run:timed_out','run:cancelled')"

// Invariants are those that SQL can check.
var Invariants = []Invariant{
	{"S5", "a run has exactly one terminal line if it has ended, and none before",
		"SELECT r.id, r.state FROM {runs} r WHERE (SELECT count(*) FROM {events} e WHERE e.tenant=r.tenant " +
			"AND e.run_id=r.id AND e.type IN " + ends + ") <> " +
			"CASE WHEN r.state IN " + terminal + " THEN 1 ELSE 0 END"},
	{"S5", "nothing changes a run's state after its terminal line",
		"SELECT a.run_id, b.type FROM {events} a JOIN {events} b ON b.tenant=a.tenant AND b.run_id=a.run_id " +
			"AND b.seq>a.seq WHERE a.type IN " + ends +
			" AND b.type IN ('run:dispatched','run:started','run:suspended','run:resumed'," +
			"'run:retrying','run:reclaimed','run:held')"},
	{"S6", "the epochs of a run's grants strictly increase: one holder per epoch",
		"SELECT a.run_id, b.epoch FROM {events} a JOIN {events} b ON b.tenant=a.tenant AND b.run_id=a.run_id " +
			"AND b.seq>a.seq WHERE a.type='run:dispatched' AND b.type='run:dispatched' AND b.epoch<=a.epoch"},
	{"S8", "a line never bears a lower epoch than the one before it",
		"SELECT a.run_id, b.seq FROM {events} a JOIN {events} b ON b.tenant=a.tenant AND b.run_id=a.run_id " +
			"AND b.seq=a.seq+1 WHERE b.epoch<a.epoch"},
	{"S11", "no deadline ends a run early",
		"SELECT r.id, r.deadline_at FROM {runs} r WHERE r.state='timeout' AND r.finished_at<r.deadline_at " +
			"AND r.rest LIKE '%\"code\":\"deadline_exceeded\"%'"},
	{"S12", "every live run is watched, and not later than its deadline by more than the spare",
		"SELECT r.id, r.state FROM {runs} r WHERE r.state NOT IN " + terminal +
			" AND (r.alarm_at IS NULL OR r.alarm_at<=0 OR (r.alarm_at>r.deadline_at+3600000000 " +
			"AND r.alarm_at>{now}+3600000000))"},
	{"S14", "a run's log is dense: its lines are 1 to seq",
		"SELECT r.id, r.seq FROM {runs} r WHERE r.seq <> (SELECT count(*) FROM {events} e WHERE e.tenant=r.tenant " +
			"AND e.run_id=r.id) " +
			"OR r.seq <> (SELECT coalesce(max(e.seq),0) FROM {events} e WHERE e.tenant=r.tenant AND e.run_id=r.id)"},
	{"S14", "a run's journal is dense",
		"SELECT r.id, r.journal_seq FROM {runs} r WHERE r.journal_seq>0 AND r.journal_seq <> (SELECT count(*) " +
			"FROM journal j WHERE j.tenant=r.tenant AND j.run_id=r.id)"},
	{"S16", "every notification is about a line of its run",
		"SELECT o.run_id, o.seq FROM {runs} r JOIN outbox o ON o.tenant=r.tenant AND o.run_id=r.id " +
			"WHERE NOT EXISTS (SELECT 1 FROM {events} e WHERE e.tenant=o.tenant AND e.run_id=o.run_id " +
			"AND e.seq=o.seq AND e.type=o.type)"},
	{"S16", "every notification has a webhook that it is for",
		"SELECT o.run_id, o.target FROM {runs} r JOIN outbox o ON o.tenant=r.tenant AND o.run_id=r.id " +
			"WHERE o.target<>'run' " +
			"AND NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.tenant=o.tenant AND w.id=o.target)"},
	{"S16", "a notification has an alarm exactly while it is pending",
		"SELECT o.run_id, o.state FROM {runs} r JOIN outbox o ON o.tenant=r.tenant AND o.run_id=r.id " +
			"WHERE (o.state='pending') <> (o.alarm_at IS NOT NULL)"},
	{"S16", "what was delivered was taken by its receiver",
		"SELECT o.run_id, o.seq FROM {runs} r JOIN outbox o ON o.tenant=r.tenant AND o.run_id=r.id " +
			"WHERE o.state='delivered' AND NOT EXISTS (SELECT 1 FROM webhook_attempts a " +
			"WHERE a.tenant=o.tenant AND a.run_id=o.run_id AND a.seq=o.seq AND a.target=o.target " +
			"AND a.status BETWEEN 200 AND 299)"},
	{"S16", "a notification has its run, and so has every attempt to send it, or both are on their way out",
		"SELECT o.run_id, o.target FROM (SELECT tenant, run_id, target FROM outbox UNION ALL " +
			"SELECT tenant, run_id, target FROM webhook_attempts) o " +
			"WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant=o.tenant AND r.id=o.run_id) " +
			"AND NOT EXISTS (SELECT 1 FROM removals x WHERE x.tenant=o.tenant AND x.kind='run' AND x.id=o.run_id)"},
	{"S16", "an event that waits for its fan-out is a line of its run",
		"SELECT f.run_id, f.seq FROM {runs} r JOIN fanouts f ON f.tenant=r.tenant AND f.run_id=r.id " +
			"WHERE NOT EXISTS (SELECT 1 FROM {events} e WHERE e.tenant=f.tenant AND e.run_id=f.run_id " +
			"AND e.seq=f.seq AND e.type=f.type)"},
	{"S16", "an event that waits for its fan-out has no notification beyond what was fanned out",
		"SELECT f.run_id, o.target FROM {runs} r JOIN fanouts f ON f.tenant=r.tenant AND f.run_id=r.id " +
			"JOIN outbox o ON o.tenant=f.tenant AND o.run_id=f.run_id AND o.seq=f.seq " +
			"JOIN webhooks w ON w.tenant=o.tenant AND w.id=o.target WHERE (w.scope='run' AND o.target=f.own) " +
			"OR (w.scope<>'run' AND o.target>f.after)"},
	{"S16", "an event that waits for its fan-out has its run, or is on its way out with it",
		"SELECT f.run_id, f.seq FROM fanouts f WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant=f.tenant " +
			"AND r.id=f.run_id) " +
			"AND NOT EXISTS (SELECT 1 FROM removals x WHERE x.tenant=f.tenant AND x.kind='run' AND x.id=f.run_id)"},
	{"S18", "a dead letter is of a run that ended",
		"SELECT d.run_id, d.cause FROM dead_letters d JOIN {runs} r ON r.tenant=d.tenant AND r.id=d.run_id " +
			"WHERE r.state NOT IN ('failed','timeout')"},
	{"S19", "no more attempts are lost in a row than the run may lose",
		"SELECT r.id, r.strikes FROM {runs} r WHERE r.strikes>r.max_attempts OR (r.state NOT IN " + terminal +
			" AND r.strikes>=r.max_attempts)"},
	{"P1", "a leased run has an epoch, and one that is not leased has no lease",
		"SELECT r.id, r.state FROM {runs} r WHERE (r.state IN ('dispatched','running') AND (r.epoch<1 " +
			"OR r.lease_until=0)) OR (r.state NOT IN ('dispatched','running') AND r.lease_until<>0)"},
	{"P2", "an open children wait counts the ends of its children, neither more nor less",
		"SELECT r.id, w.id FROM {runs} r JOIN waits w ON w.tenant=r.tenant AND w.run_id=r.id WHERE w.state='open' " +
			"AND w.type='children' AND w.ended <> " +
			"(SELECT count(*) FROM runs c WHERE c.tenant=w.tenant AND c.parent_id=w.run_id AND c.parent_id<>'' " +
			"AND c.alarm_at IS NULL AND w.targets LIKE '%' || c.id || '%')"},
	{"P3", "no suspended run sleeps on nothing",
		"SELECT r.id, r.state FROM {runs} r WHERE r.state='suspended' AND NOT EXISTS (SELECT 1 FROM waits w " +
			"WHERE w.tenant=r.tenant AND w.run_id=r.id AND w.named=1 AND w.state='open')"},
	{"P4", "an ended run has no open wait",
		"SELECT r.id, w.id FROM {runs} r JOIN waits w ON w.tenant=r.tenant AND w.run_id=r.id WHERE r.state IN " +
			terminal + " AND w.state='open'"},
	{"P5", "a run's counts of open waits and items are right",
		"SELECT r.id, r.waits_open FROM {runs} r WHERE r.waits_open <> (SELECT count(*) FROM waits w " +
			"WHERE w.tenant=r.tenant AND w.run_id=r.id AND w.state='open') " +
			"OR r.inbox_open <> (SELECT count(*) FROM inbox i WHERE i.tenant=r.tenant AND i.run_id=r.id " +
			"AND i.status IN ('pending','processing')) " +
			"OR r.inbox_seq-r.inbox_from <> (SELECT count(*) FROM inbox i WHERE i.tenant=r.tenant AND i.run_id=r.id)"},
	{"P6", "an item was handed over under an epoch that its run has had, and nothing is handed over under none",
		"SELECT r.id, i.seq FROM {runs} r JOIN inbox i ON i.tenant=r.tenant AND i.run_id=r.id WHERE i.epoch>r.epoch " +
			"OR (i.status='processing' AND i.epoch<1)"},
	{"P7", "a thread's active run is live and on it, and no other run of the thread is active",
		"SELECT t.id, t.active FROM threads t WHERE t.active<>'' AND NOT EXISTS (SELECT 1 FROM runs r " +
			"WHERE r.tenant=t.tenant AND r.id=t.active AND r.thread_id=t.id AND r.turn=1 AND r.alarm_at IS NOT NULL)"},
	{"P7", "a run that is active on a thread is the thread's active run",
		"SELECT r.id, r.thread_id FROM {runs} r WHERE r.turn=1 AND NOT EXISTS (SELECT 1 FROM threads t " +
			"WHERE t.tenant=r.tenant AND t.id=r.thread_id AND t.active=r.id)"},
	{"P8", "nobody waits for a thread that is free",
		"SELECT r.id, r.thread_id FROM {runs} r JOIN threads t ON t.tenant=r.tenant AND t.id=r.thread_id " +
			"WHERE r.turn=2 AND r.alarm_at IS NOT NULL AND t.active=''"},
	{"P9", "a thread's messages are 1 to seq",
		"SELECT t.id, t.seq FROM threads t WHERE t.seq <> (SELECT count(*) FROM messages m WHERE m.tenant=t.tenant " +
			"AND m.thread_id=t.id)"},
	{"P10", "no open chord or group whose runs have all ended, unless a chord is telling their results",
		"SELECT g.id, g.kind FROM gatherings g WHERE g.state='open' AND (g.kind<>'chord' OR g.alarm_at IS NULL) " +
			"AND NOT EXISTS (SELECT 1 FROM members m JOIN runs r ON r.tenant=m.tenant AND r.id=m.run_id " +
			"WHERE m.tenant=g.tenant AND m.gathering_id=g.id AND r.alarm_at IS NOT NULL)"},
	{"P11", "a child of an ended run that may not outlive it is asked to stop, or will be",
		"SELECT c.id, c.state FROM {runs} c JOIN runs p ON p.tenant=c.tenant AND p.id=c.parent_id " +
			"WHERE c.parent_id<>'' AND c.alarm_at IS NOT NULL AND p.alarm_at IS NULL AND p.cascade=0 " +
			"AND c.rest NOT LIKE '%\"on_parent_end\":\"continue\"%' AND c.rest NOT LIKE '%\"requested_at\"%'"},
	{"P12", "a run that is claimable is queued, or was granted and not heard from",
		"SELECT r.id, r.state FROM {runs} r WHERE r.ready=1 AND (r.state NOT IN ('queued','dispatched','running') " +
			"OR r.heard=1 OR r.turn>1)"},
	{"P12", "a retry is claimable only with the whole of the journal that it begins with",
		"SELECT r.id, r.copy_to FROM {runs} r WHERE r.journal_seq<r.copy_to AND (r.ready=1 " +
			"OR r.state NOT IN ('queued','completed','failed','timeout','cancelled'))"},
	{"P13", "one continuation per chord",
		"SELECT c.continuation_of, count(*) FROM runs c JOIN gatherings g ON g.tenant=c.tenant " +
			"AND g.id=c.continuation_of AND g.kind='chord' " +
			"WHERE c.continuation_of<>'' AND c.input LIKE '%\"trigger\":\"chord\"%' " +
			"GROUP BY c.tenant, c.continuation_of HAVING count(*)>1"},
	{"P14", "content is there for every reference",
		"SELECT b.owner, b.hash FROM blob_refs b WHERE NOT EXISTS (SELECT 1 FROM blobs x WHERE x.tenant=b.tenant " +
			"AND x.hash=b.hash)"},
	{"P15", "an approval is open exactly while its wait is, and every approval wait has one",
		"SELECT r.id, w.id FROM {runs} r JOIN waits w ON w.tenant=r.tenant AND w.run_id=r.id " +
			"WHERE w.type='approval' AND NOT EXISTS " +
			"(SELECT 1 FROM approvals a WHERE a.tenant=w.tenant AND a.run_id=w.run_id AND a.wait_id=w.id " +
			"AND (a.state='open') = (w.state='open'))"},
	{"P16", "an artifact has its bytes, all of them",
		"SELECT a.run_id, a.name FROM artifacts a LEFT JOIN contents k ON k.tenant=a.tenant AND k.hash=a.hash " +
			"WHERE k.size IS NULL OR k.size<>a.size OR a.size <> (SELECT coalesce(sum(length(c.data)),0) " +
			"FROM chunks c WHERE c.tenant=k.tenant AND c.upload=k.upload)"},
	{"P16", "bytes are an artifact's, or on their way out",
		"SELECT k.hash, k.upload FROM contents k WHERE NOT EXISTS (SELECT 1 FROM artifacts a " +
			"WHERE a.tenant=k.tenant AND a.hash=k.hash)"},
	{"P16", "every chunk is of such bytes, or of an upload that is swept if it does not become any",
		"SELECT DISTINCT c.tenant, c.upload FROM chunks c WHERE (c.tenant, c.upload) NOT IN (SELECT tenant, upload " +
			"FROM contents) " +
			"AND NOT EXISTS (SELECT 1 FROM removals x WHERE x.tenant=c.tenant AND x.kind='upload' AND x.id=c.upload)"},
	{"P17", "what is on its way out is nowhere else",
		"SELECT x.kind, x.id FROM removals x WHERE EXISTS (SELECT 1 FROM runs r WHERE x.kind='run' " +
			"AND r.tenant=x.tenant AND r.id=x.id) " +
			"OR EXISTS (SELECT 1 FROM threads t WHERE x.kind='thread' AND t.tenant=x.tenant AND t.id=x.id) " +
			"OR EXISTS (SELECT 1 FROM contents k WHERE x.kind='upload' AND k.tenant=x.tenant AND k.upload=x.id)"},
	{"P18", "an entry in the index of metadata is of a run that is there",
		"SELECT m.run_id, m.name FROM run_metadata m WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant=m.tenant " +
			"AND r.id=m.run_id)"},
	{"P19", "the next instant of a schedule is later than the last one that it has fired",
		"SELECT s.name, s.next_at FROM schedules s WHERE s.next_at>0 AND s.next_at<=s.last_at"},
	{"P21", "a unique key that is taken has its run",
		"SELECT u.key, u.run_id FROM unique_runs u WHERE u.run_id<>'' AND (u.until_at=0 OR u.until_at>{now}) " +
			"AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant=u.tenant AND r.id=u.run_id)"},
	{"P19", "a schedule with a next instant that is neither paused nor deleted has an alarm",
		"SELECT s.name, s.next_at FROM schedules s WHERE s.next_at>0 AND s.paused_at=0 AND s.deleted_at=0 " +
			"AND s.alarm_at IS NULL"},
}

// A Violation is a row that violates an invariant.
type Violation struct {
	Invariant
	Row string
}

// Check finds violations of invariants: in some runs, or everywhere. It also compares the state of
// each run with its log.
func (v *View) Check(only []perdure.RunID) ([]Violation, error) {
	out, _, err := v.check(only, func() bool { return false })
	return out, err
}

// CheckWithin checks everything within a time limit, and names the invariants that it left out.
// Zero means no limit. A query that has begun is finished, so that a large store may take longer.
func (v *View) CheckWithin(ctx context.Context, within time.Duration) (found []Violation, left []string, err error) {
	begin := time.Now()
	found, left, err = v.check(nil, func() bool { return ctx.Err() != nil || within > 0 && time.Since(begin) > within })
	if err == nil {
		err = ctx.Err()
	}
	return found, left, err
}

// maxPerInvariant bounds how many violations of one invariant are reported.
const maxPerInvariant = 1000

// check runs all checks until over returns true. left names those that did not run.
func (v *View) check(only []perdure.RunID, over func() bool) (out []Violation, left []string, err error) {
	runs, events := "runs", "events"
	if only != nil {
		quoted := make([]string, len(only))
		for i, id := range only {
			quoted[i] = "'" + strings.ReplaceAll(string(id), "'", "''") + "'"
		}
		list := "(" + strings.Join(quoted, ",") + ")"
		runs, events = "(SELECT "+strings.Join(runTable.cols, ",")+" FROM runs WHERE id IN "+list+")",
			"(SELECT "+strings.Join(eventTable.cols, ",")+" FROM events WHERE run_id IN "+list+")"
	}
	for _, inv := range Invariants {
		if over() {
			left = append(left, inv.ID+": "+inv.Statement)
			continue
		}
		q := strings.NewReplacer("{runs}", runs, "{events}", events, "{now}",
			fmt.Sprint(int64(v.Now))).Replace(inv.Query)
		if only != nil && !strings.Contains(inv.Query, "{") {
			continue // not about single runs: left to a check of everything
		}
		n := 0
		err := v.sess.Query(q, nil, func(scan func(...any) error) error {
			var a, b any
			if err := scan(&a, &b); err != nil {
				return err
			}
			out = append(out, Violation{inv, fmt.Sprint(a, " ", b)})
			if n++; n == maxPerInvariant {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return nil, nil, fmt.Errorf("%s, %s: %w", inv.ID, inv.Statement, err)
		}
	}
	folded, err := v.checkHistory(only, over)
	if errors.Is(err, errEnough) {
		left, err = append(left, s4.ID+": "+s4.Statement), nil
	}
	if err != nil {
		return append(out, folded...), left, err
	}
	hidden, err := v.checkMetadata(only, over)
	if errors.Is(err, errEnough) {
		left, err = append(left, p18.ID+": "+p18.Statement), nil
	}
	if err != nil || only != nil {
		return slices.Concat(out, folded, hidden), left, err
	}
	limits, err := v.checkLimits(over)
	if errors.Is(err, errEnough) {
		left, err = append(left, P20.ID+": "+P20.Statement), nil
	}
	return slices.Concat(out, folded, hidden, limits), left, err
}

var s4 = Invariant{ID: "S4", Statement: "a run's state is what its history tells, and its history is legal"}

// checkHistory derives the state of runs from their logs and compares. It gives errEnough when the
// time is over.
func (v *View) checkHistory(only []perdure.RunID, over func() bool) ([]Violation, error) {
	type key struct {
		t  perdure.TenantID
		id perdure.RunID
	}
	states := make(map[key]perdure.State)
	where, args := "", []any(nil)
	if only != nil {
		cond, list := v.dialect.anyOf("id", append(texts(only), ""))
		where, args = " WHERE "+cond, list
	}
	err := v.sess.Query("SELECT tenant, id, state FROM runs"+where, args, func(scan func(...any) error) error {
		var k key
		var s perdure.State
		err := scan(&k.t, &k.id, &s)
		if states[k] = s; len(states)%1024 == 0 && over() {
			return errEnough
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	going := make(map[key]bool) // runs that are being removed
	err = v.sess.Query("SELECT tenant, id FROM removals WHERE kind='run'", nil, func(scan func(...any) error) error {
		var k key
		err := scan(&k.t, &k.id)
		going[k] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Violation
	var cur key
	var log []perdure.Line
	flush := func() {
		if cur == (key{}) {
			return
		}
		if going[cur] {
			return
		}
		if s, ok := perdure.Fold(log); !ok || s != states[cur] {
			out = append(out, Violation{s4,
				fmt.Sprintf("%s is %s, its history says %s (legal: %v)", cur.id, states[cur], s, ok)})
		}
	}
	err = v.sess.Query("SELECT tenant, run_id, type FROM events"+strings.Replace(where, " id ", " run_id ", 1)+
		" ORDER BY tenant, run_id, seq", args, func(scan func(...any) error) error {
		var k key
		var l perdure.Line
		if err := scan(&k.t, &k.id, &l.Type); err != nil {
			return err
		}
		if k != cur {
			flush()
			if cur, log = k, log[:0]; over() || len(out) >= maxPerInvariant {
				return errEnough
			}
		}
		log = append(log, l)
		return nil
	})
	if err == nil {
		flush()
	}
	return out, err
}
