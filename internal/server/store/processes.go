package store

import "github.com/perdure/perdure"

// A process is a run of the class process. The name of its folder is its id, without its tenant, so
// that these queries go over all tenants. Each has a partial index of its own.

// Processes reads the runs that are processes. It stages nothing: Runs does.
type Processes struct{ in *base }

func (repo *Processes) open(in *base) { repo.in = in }

// ofProcesses is the condition of the partial indexes.
const ofProcesses = "WHERE class='process' AND "

// Get gives the process of an id, of whatever tenant. ok is false if there is none.
func (repo *Processes) Get(id perdure.RunID) (r perdure.Run, ok bool, err error) {
	err = runTable.query(repo.in.sess, ofProcesses+"id=? ORDER BY id, tenant LIMIT 1", []any{string(id)},
		func(found *perdure.Run) error {
			r, ok = *found, true
			return nil
		})
	return r, ok, err
}

// Of gives those of the ids that are processes, in few queries.
func (repo *Processes) Of(ids []perdure.RunID) (out []perdure.Run, err error) {
	err = eachPart(repo.in.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.dialect.keyed("runs", []string{"id"}, nil, part)
		return runTable.query(repo.in.sess, given+" AND class='process'", args, func(r *perdure.Run) error {
			out = append(out, *r)
			return nil
		})
	})
	return out, err
}

// Failed gives failed processes of all tenants, newest first, before one of them. It
// examines at most PageRows processes. next is the last of those, if there may be more.
func (repo *Processes) Failed(
	before perdure.RunID, limit int,
) (out []perdure.Run, next perdure.RunID, err error) {
	if before == "" {
		before = "~" // greater than every id
	}
	count, last := 0, perdure.RunID("")
	err = repo.in.sess.Query("SELECT count(*), coalesce(min(id),'') FROM (SELECT id FROM runs "+ofProcesses+
		"id<? ORDER BY id DESC"+atMost+") AS part", []any{string(before), int64(PageRows)},
		func(scan func(...any) error) error { return scan(&count, &last) })
	if err != nil || count == 0 {
		return nil, "", err
	}
	if count == PageRows {
		next = last
	}
	out, err = runTable.list(repo.in.sess, ofProcesses+"id<? AND id>=? AND state='failed' ORDER BY id DESC"+atMost,
		[]any{string(before), string(last), int64(limit)})
	if len(out) == limit {
		next = out[limit-1].ID
	}
	return out, next, err
}

// Ages gives the leased processes of all tenants in the order of their ids: with their tenant,
// kind, activity, state and last sign of life, and nothing else.
func (repo *Processes) Ages(limit int) (out []perdure.Run, err error) {
	err = repo.in.sess.Query("SELECT tenant, id, kind, activity, state, seen_at FROM runs "+ofProcesses+
		"alarm_at IS NOT NULL AND state IN ('dispatched','running') ORDER BY id, tenant"+atMost, []any{int64(limit)},
		func(scan func(...any) error) error {
			var r perdure.Run
			err := scan(&r.Tenant, &r.ID, &r.Kind, &r.Activity, &r.State, &r.SeenAt)
			r.Options.Process = true
			out = append(out, r)
			return err
		})
	return out, err
}
