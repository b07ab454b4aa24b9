package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/server/store/pg"
)

// Losses of a failover of PostgreSQL.
//
// An acknowledged commit survives the loss of the primary if the primary waited for a standby. It does
// if synchronous_standby_names is not empty and synchronous_commit of the session is on or
// remote_apply. Otherwise the last commits may be lost. A node says so at its start, and looks again
// every standbysEvery for its metrics.
//
// An ordinary role may see how many standbys there are, but not whether they are synchronous. The two
// settings say enough: a commit that has to wait for a standby does not return without one.

const (
	// standbysEvery is the interval at which a node looks at the standbys.
	standbysEvery = 10 * time.Second
	// maxStandbys bounds the standbys that are read.
	maxStandbys = 100
)

// A Replication says how PostgreSQL copies commits to its standbys.
type Replication struct {
	Commit   string    `json:"synchronous_commit"`        // of sessions that write
	Waits    string    `json:"synchronous_standby_names"` // empty: a commit waits for no standby
	Standbys []Standby `json:"standbys"`
}

// A Standby is a connection that receives the log of PostgreSQL.
type Standby struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	// State and Sync are those of pg_stat_replication, such as streaming and async. They are empty if
	// the role may not see them.
	State string `json:"state,omitempty"`
	Sync  string `json:"sync,omitempty"`
}

// Loss says why acknowledged commits may be lost when the primary is. It is empty if they can't be.
func (r *Replication) Loss() string {
	switch {
	case len(r.Standbys) == 0 && r.Waits == "":
		return "there is no standby: everything is on one server"
	case r.Waits == "":
		return "no standby is synchronous: the last commits may not have reached one (synchronous_standby_names)"
	case r.Commit == "remote_write":
		return "synchronous_commit is remote_write: a standby may lose what it has not written to its disk yet"
	case r.Commit != "on" && r.Commit != "remote_apply":
		return "synchronous_commit is " + r.Commit + ": a commit waits for no standby"
	}
	return ""
}

// String lists the standbys.
func (r *Replication) String() string {
	if len(r.Standbys) == 0 {
		if r.Waits != "" {
			return "none is connected, and commits wait for " + r.Waits
		}
		return "none"
	}
	var out []string
	for _, s := range r.Standbys {
		state := "its state is hidden (GRANT pg_read_all_stats shows it)"
		if s.Sync != "" {
			state = s.State + ", " + s.Sync
		}
		out = append(out, strings.TrimSpace(s.Name+" "+s.Address)+": "+state)
	}
	return strings.Join(out, "; ")
}

// SyncStates are the states that Count distinguishes. The last one is that of a hidden standby.
var SyncStates = []string{"sync", "quorum", "potential", "async", "hidden"}

// Count gives the number of standbys in a state.
func (r *Replication) Count(sync string) (n int) {
	for _, s := range r.Standbys {
		if cmp.Or(s.Sync, "hidden") == sync {
			n++
		}
	}
	return n
}

// replication asks a server for its standbys.
func replication(sess Conn) (*Replication, error) {
	r := &Replication{Standbys: []Standby{}}
	err := sess.Query("SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')", nil,
		func(scan func(...any) error) error { return scan(&r.Commit, &r.Waits) })
	if err != nil {
		return nil, err
	}
	return r, sess.Query("SELECT coalesce(application_name,''), coalesce(host(client_addr),''), coalesce(state,''), "+
		fmt.Sprintf("coalesce(sync_state,'') FROM pg_stat_replication ORDER BY 1, 2, pid LIMIT %d", maxStandbys), nil,
		func(scan func(...any) error) error {
			var s Standby
			err := scan(&s.Name, &s.Address, &s.State, &s.Sync)
			r.Standbys = append(r.Standbys, s)
			return err
		})
}

// Replication says how PostgreSQL copies commits to its standbys, as far as this node knows. It is nil on
// SQLite.
func (s *Store) Replication() *Replication { return s.replication.Load() }

// lookAtStandbys asks for the standbys. While PostgreSQL does not answer, the last answer counts.
func (s *Store) lookAtStandbys() {
	if r, err := replication(s.locks.observer); err == nil {
		s.replication.Store(r)
	}
}

// openStandbys looks for the first time, and logs one line.
func (s *Store) openStandbys() {
	if s.lookAtStandbys(); s.opt.AsIs || s.opt.Accepting != nil {
		return
	}
	switch r := s.Replication(); {
	case r == nil:
	case r.Loss() != "":
		s.log.Warn("a failover of PostgreSQL may lose acknowledged work", "why", r.Loss(), "standbys", r)
	default:
		s.log.Info("a failover of PostgreSQL loses no acknowledged work", "standbys", r)
	}
}

// StandbysOf asks a PostgreSQL for its standbys. It reads nothing of the store.
func StandbysOf(url string) (*Replication, error) {
	p, err := openTool(url)
	if err != nil {
		return nil, err
	}
	sess := p.Reader(observeTimeout)
	defer sess.Close()
	return replication(sess)
}

// A ServerState is what one of several servers of an address says of itself.
type ServerState struct {
	At   string `json:"at"`
	Note string `json:"note"`
	// Old is set for a server that takes writes although another one has replaced it.
	Old bool `json:"old,omitempty"`
}

// ServersOf asks every server of an address which one it is.
func ServersOf(ctx context.Context, url string) (out []ServerState, err error) {
	p, err := openTool(url)
	if err != nil {
		return nil, err
	}
	places, failed := p.Survey(ctx)
	newest := slices.MaxFunc(append(places, pg.Place{}), func(a, b pg.Place) int {
		return cmp.Compare(a.Timeline, b.Timeline)
	})
	for _, pl := range places {
		x := ServerState{At: pl.At, Note: fmt.Sprintf("the primary, timeline %d", pl.Timeline)}
		switch {
		case pl.Standby:
			x.Note = "a standby"
		case pl.System != newest.System:
			x.Old, x.Note = true, "another database: its system identifier is "+pl.System
		case pl.Timeline < newest.Timeline:
			x.Old, x.Note = true, fmt.Sprintf("an old primary, timeline %d: stop it, and make it a standby of %s",
				pl.Timeline, newest.At)
		}
		out = append(out, x)
	}
	for at, err := range failed {
		out = append(out, ServerState{At: at, Note: "not reached: " + err.Error()})
	}
	slices.SortFunc(out, func(a, b ServerState) int { return strings.Compare(a.At, b.At) })
	return out, nil
}
