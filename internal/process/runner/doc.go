// Package runner executes a command as a run of class process, in a small process that outlives
// whoever started it: the caller's shell, and the server.
//
// # The process-runner
//
// [Start] starts this program once more, as a process-runner in a session of its own, and passes it a
// [Job] over a pipe: nothing of it is in arguments or files. [Main] is that process. It
//
//   - leases the run by its id, or the next run of a queue, and takes the lock of the job's folder;
//   - starts the command, with files as its standard output and standard error, and with a copy of
//     the lock;
//   - writes the sentinel, sends heartbeats, copies the output to the run's log, and takes cancel
//     requests, each in a goroutine of its own, so that none waits for another;
//   - writes the result file when the command has ended, and sends it.
//
// It reports to its starter over a second pipe, see [Report]. Both pipes may break.
//
// # Output
//
// The command writes to files, not to a pipe, so that it waits for nothing but the disk, and a killed
// runner loses nothing. The offsets of package jobdir make each byte count once. The files
// are read through descriptors that stay open: they work without the folder, too.
//
// # Process ids
//
// A process id is in signal.go only, for signals to the command and its descendants. It is never
// stored, sent or compared with one that was seen before; a test looks for it.
//
// # Pool
//
// [Pool] executes runs that were submitted elsewhere. It has one process-runner at a time that waits
// for a run, and starts the next one when that has begun. A slot is a lock on a file, which the
// process-runner holds, so that the slots of a pool that was started again are taken as long as its
// former jobs go on.
//
// # Where to start reading
//
// run.go has the life of a job from its lease on. start.go makes the folder and starts the command,
// end.go writes and sends the result. signal.go has processes, output.go the copying of output,
// facts.go the events of engines, server.go the calls of the server, pool.go the pool.
package runner
