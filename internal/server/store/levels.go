package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/wire/release"
)

// Releases of the nodes on one store.
//
// The release before works on the schema of this one, so that nodes are replaced one after the other.
// It does not know what this release has added. A node of it would grant a run against a limit that it
// can't see. A call that it would not honour is refused while such a node is connected: see kernel.Feature.
//
// On PostgreSQL each connection of a node names its release. A node looks at all of them when it
// starts, every levelEvery, and more often while one is older. SQLite has a single node.
//
// The row metaLevel is the newest release to which the store has belonged alone. A node that is older
// says so when it starts: the store may hold what it does not know.

// metaLevel is the row of meta with the newest release that was alone on the store.
const metaLevel = "level"

const (
	// levelEvery is the interval at which a node looks which releases are connected, and levelSoon
	// that while an older one is.
	levelEvery = 5 * time.Second
	levelSoon  = time.Second
)

// A level is what a node knows of the releases on its store.
type level struct {
	older atomic.Pointer[string] // the oldest release before this one that is connected; nil: none
	hook  func() string          // of tests
	// recorded is the row metaLevel when the store was opened.
	recorded string
}

// A Release is a release whose nodes or commands are connected to PostgreSQL.
type Release struct {
	Version     string `json:"version"`
	Tool        bool   `json:"tool,omitempty"` // commands that work on the store directly
	Connections int    `json:"connections"`
}

// releases asks PostgreSQL which releases are connected, the oldest first.
func releases(sess Conn) (out []Release, err error) {
	err = sess.Query("SELECT split_part(application_name,' ',1), count(*) FROM pg_stat_activity "+
		"WHERE datname=current_database() AND application_name LIKE 'perdure%/%' GROUP BY 1", nil,
		func(scan func(...any) error) error {
			var name string
			var n int64
			err := scan(&name, &n)
			program, version, _ := strings.Cut(name, "/")
			out = append(out, Release{Version: version, Tool: program != pg.NodeProgram, Connections: int(n)})
			return err
		})
	slices.SortFunc(out, func(a, b Release) int {
		switch {
		case release.Older(a.Version, b.Version):
			return -1
		case release.Older(b.Version, a.Version):
			return 1
		}
		return strings.Compare(a.Version, b.Version)
	})
	return out, err
}

// OlderNode gives the oldest release before this one of which a node is connected, or nothing.
func (s *Store) OlderNode() string {
	if s.level.hook != nil {
		return s.level.hook()
	}
	if v := s.level.older.Load(); v != nil {
		return *v
	}
	return ""
}

// OlderNode gives the oldest release before this one of which a node is connected, or nothing.
func (tx *Tx) OlderNode() string { return tx.s.OlderNode() }

// lookAtReleases looks which releases are connected. While PostgreSQL does not answer, the last answer
// counts.
func (s *Store) lookAtReleases() error {
	list, err := releases(s.locks.observer)
	if err != nil {
		return err
	}
	var older *string
	if i := slices.IndexFunc(list, func(r Release) bool { return !r.Tool }); i >= 0 &&
		release.Older(list[i].Version, release.Version) {
		older = &list[i].Version
	}
	if was := s.level.older.Swap(older); older != nil && was == nil {
		s.log.Warn("a node of an older release is connected: what it does not know is refused meanwhile", "release",
			*older)
	} else if older == nil && was != nil {
		s.log.Info("no node of an older release is connected any more")
	}
	return nil
}

// openLevel looks for the first time which releases are connected, and records it if this one is alone.
func (s *Store) openLevel(p *pg.Server) error {
	if err := s.lookAtReleases(); err != nil {
		return err
	}
	known, err := levelOf(s.locks.observer)
	if err != nil {
		return err
	}
	s.level.recorded = known
	s.tellLevel(known)
	if s.opt.AsIs || s.level.older.Load() != nil || !release.Older(known, release.Version) {
		return nil
	}
	w := p.Writer(pg.WriterOptions{Timeout: writeTimeout})
	defer w.Close()
	if err := w.Begin(); err != nil {
		return err
	}
	if err := writeMeta(w, map[string]string{metaLevel: release.Version}); err != nil {
		return errors.Join(err, w.Rollback())
	}
	s.level.recorded = release.Version
	return w.Commit()
}

// followReleases looks from time to time which releases are connected, and records it when this one is
// alone for the first time. It looks at the standbys as well.
func (s *Store) followReleases() {
	known, looked := s.level.recorded, time.Now()
	for {
		if s.level.older.Load() == nil && release.Older(known, release.Version) &&
			s.Do(context.Background(), levelOp{}) == nil {
			known = release.Version
		}
		pause := levelEvery
		if s.level.older.Load() != nil {
			pause = levelSoon
		}
		s.pause(pause)
		select {
		case <-s.done:
			return
		default:
			_ = s.lookAtReleases() // PostgreSQL is away: the next look will do
			if time.Since(looked) >= standbysEvery {
				looked = time.Now()
				s.lookAtStandbys()
			}
		}
	}
}

// A levelOp records that this release is alone on the store.
type levelOp struct{}

func (levelOp) Needs() []Ref { return nil }

func (levelOp) Do(tx *Tx) error {
	known, err := tx.Meta.Get(metaLevel)
	if err == nil && release.Older(known, release.Version) {
		tx.Meta.Set(metaLevel, release.Version)
	}
	return err
}

// settleLevel records that this release is alone on a SQLite file.
func (s *Store) settleLevel(sess Conn) error {
	known, err := levelOf(sess)
	if err != nil {
		return err
	}
	if s.tellLevel(known); s.opt.AsIs || !release.Older(known, release.Version) {
		return nil
	}
	return writeMeta(sess, map[string]string{metaLevel: release.Version})
}

// tellLevel says that the store belonged to a newer release.
func (s *Store) tellLevel(known string) {
	if known != "" && release.Older(release.Version, known) {
		s.log.Warn("the store was used by a newer release: what that has added does not work on this node", "newer",
			known, "release", release.Version)
	}
}

// levelOf reads the newest release that was alone on a store.
func levelOf(sess Conn) (v string, err error) {
	err = sess.Query("SELECT value FROM meta WHERE name=?", []any{metaLevel},
		func(scan func(...any) error) error { return scan(&v) })
	return v, err
}
