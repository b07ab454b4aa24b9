package sim

import (
	"errors"
	"strings"

	"github.com/perdure/perdure/internal/server/store"
)

var (
	errInjected = errors.New("injected: the disk failed")
	errDead     = errors.New("injected: the process is gone")
)

// A session is a node's connection to the database. Statements fail before or after they are
// executed. The process dies in the middle of a transaction, or right after its commit.
type session struct {
	store.Conn
	s    *sim
	n    *node
	open bool   // a transaction is open
	dead bool   // the process has died
	hurt int    // faults injected into the current batch
	kept bool   // the batch was committed although an error was reported
	last string // kind of the last read of the batch
}

// hit draws whether a fault is injected now.
func (c *session) hit(p float64, what string) bool {
	if c.s.faultsStopped || !c.s.fault.chance(p) {
		return false
	}
	c.hurt++
	c.s.injected(what)
	return true
}

// die ends the process. The database rolls back its transaction.
func (c *session) die() error {
	if c.open {
		c.open = false
		_ = c.Conn.Rollback()
	}
	c.dead = true
	return errDead
}

func (c *session) Begin() error {
	if c.dead {
		return errDead
	}
	if c.hit(c.s.cfg.faults.stmtBefore, "statement failed before") {
		return errInjected
	}
	err := c.Conn.Begin()
	c.open = err == nil
	return err
}

func (c *session) Exec(query string, args []any) (int64, error) {
	f := &c.s.cfg.faults
	switch {
	case c.dead:
		return 0, errDead
	case c.hit(f.stmtBefore, "statement failed before"):
		return 0, errInjected
	case c.hit(f.dieInside, "node died inside a transaction"):
		return 0, c.die()
	}
	n, err := c.Conn.Exec(query, args)
	if err == nil && c.hit(f.stmtAfter, "statement failed after") {
		return 0, errInjected
	}
	return n, err
}

func (c *session) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	if c.dead {
		return errDead
	}
	if c.hit(c.s.cfg.faults.stmtBefore/2, "statement failed before") {
		return errInjected
	}
	if c.s.cfg.even {
		// One store may need one statement where another needs several of the same kind.
		if k := kind(query); k != c.last && !c.open {
			if c.last != "" {
				c.n.afterRead()
			}
			c.last = k
		}
		return c.Conn.Query(query, args, row)
	}
	err := c.Conn.Query(query, args, row)
	if err == nil && !c.open {
		c.n.afterRead()
	}
	return err
}

// kind returns the columns and the table of a query, without its condition.
func kind(query string) string {
	what, from, _ := strings.Cut(query, " FROM ")
	table, _, _ := strings.Cut(from, " ")
	return what + " FROM " + table
}

func (c *session) Commit() error {
	f := &c.s.cfg.faults
	switch {
	case c.dead:
		return errDead
	case c.hit(f.commitBefore, "commit failed before"):
		return errInjected
	case c.hit(f.dieCommitting, "node died inside a transaction"):
		return c.die()
	}
	if err := c.Conn.Commit(); err != nil {
		return err
	}
	c.open = false
	switch {
	case c.hit(f.commitAfter, "commit failed after"):
		c.kept = true
		return errInjected
	case c.hit(f.dieAfter, "node died after a commit"):
		c.kept = true
		return c.die()
	}
	return nil
}

func (c *session) Rollback() error {
	if !c.open {
		return nil // the transaction was committed, whatever was reported
	}
	c.open = false
	return c.Conn.Rollback()
}
