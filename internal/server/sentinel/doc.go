// Package sentinel watches the processes of a workspace from the server's side.
//
// A process is a run whose command is executed by a runner, a program of its own that outlives the
// server. It leaves files in a folder (package jobdir): a sentinel that it replaces every 30 s, a
// lock, and at the end a result. The monitor reads them. Only the server that is configured with the
// workspace does that; heartbeats over HTTP count on any node.
//
// # How it works
//
// [Monitor.Scan] looks at all folders, a scan every 15 s. A [Look] is its view of a folder: epoch
// and count of a sentinel with a valid MAC, whether the lock is held, whether there is a result. A
// [Memory] keeps what was seen before and judges, without any I/O:
//
//   - the count rose: a sign of life;
//   - the lock is free and there is a result: the output that is missing in the run's log is copied,
//     then the result is committed as it is (adopt.go);
//   - the lock is free twice and there is no result: the process is gone, its run is lost;
//   - the lock is held and the count stands still: nothing. The watchdog finds the run stale, then dead.
//
// [Monitor.Recover] is the first scan after the server's start (recover.go). Processes that may have
// outlived the server are watched: they are not given up before reattach_window is over. Clean-up is in
// clean.go, what the admin API shows in report.go.
//
// # What it trusts
//
// Nothing but the MAC, whose key the command does not have. A command can write anything into the
// workspace, also into the folders of others. A file that is not what it should be is set aside and
// reported. No link is followed, and nothing outside of the workspace is moved or removed.
//
// # Costs
//
// A scan lists all folders, but reads only those of live runs. The monitor pauses at least ten times as
// long as a scan took. Every list that it keeps in memory is bounded.
package sentinel
