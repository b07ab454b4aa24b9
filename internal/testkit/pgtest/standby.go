package pgtest

import (
	"fmt"
	"path/filepath"
)

// Standbys.
//
// A standby is a copy of a primary by pg_basebackup, which follows it by streaming. A primary waits
// for none of its standbys until WaitsFor says so. A standby that was cut off gets nothing more:
// what the primary commits afterwards is lost when the standby is promoted. The primary is not told
// of a promotion, and goes on if it is started again.

// standbyName is the application_name of every standby, by which a primary waits for it.
const standbyName = "standby"

// Standby makes a copy of a primary that follows it, and waits until it answers. The copy has its
// data where the primary has it.
func (c *Cluster) Standby() (*Cluster, error) {
	s := &Cluster{programs: c.programs, owner: c.owner, password: c.password, source: c}
	return s.begin(filepath.Dir(c.folder.path), func() error {
		from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres password=%s application_name=%s", c.port, c.password,
			standbyName)
		return finish(s.command("pg_basebackup", "-D", s.data(), "-d", from, "--write-recovery-conf",
			"--checkpoint=fast", "--wal-method=stream", "--no-sync", "--no-password"))
	})
}

// WaitsFor has a primary acknowledge a commit when a standby has it on disk, or no longer.
func (c *Cluster) WaitsFor(standby bool) error {
	names := ""
	if standby {
		names = standbyName
	}
	return c.set("synchronous_standby_names", names)
}

// CutOff ends the stream of a standby: it gets nothing more. It returns when no stream is open.
func (c *Cluster) CutOff() error {
	if err := c.set("primary_conninfo", ""); err != nil {
		return err
	}
	return eventually(func() bool {
		n, err := query(c.URL("postgres"), "SELECT count(*) FROM pg_stat_wal_receiver")
		return err == nil && n == "0"
	})
}

// CaughtUp waits until a standby has replayed what its primary has committed so far.
func (c *Cluster) CaughtUp() error {
	at, err := query(c.source.URL("postgres"), "SELECT pg_current_wal_lsn()")
	if err != nil {
		return err
	}
	return eventually(func() bool {
		got, err := query(c.URL("postgres"), "SELECT pg_last_wal_replay_lsn() >= '"+at+"'")
		return err == nil && got == "t"
	})
}

// Promote makes a standby the primary of a new timeline, and waits until it takes writes.
func (c *Cluster) Promote() error {
	return finish(c.command("pg_ctl", "promote", "-D", c.data(), "--wait"))
}

// set changes a setting of the server and waits until it is in force.
func (c *Cluster) set(name, value string) error {
	for _, text := range []string{"ALTER SYSTEM SET " + name + " = '" + value + "'", "SELECT pg_reload_conf()"} {
		if err := execute(c.URL("postgres"), text); err != nil {
			return err
		}
	}
	return eventually(func() bool {
		got, err := query(c.URL("postgres"), "SHOW "+name)
		return err == nil && got == value
	})
}
