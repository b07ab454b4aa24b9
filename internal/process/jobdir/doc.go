// Package jobdir has the files of a process that runs as a job: their names, their formats, and
// reading them without trust.
//
// A runner (package runner) writes them, and the server that is configured with the workspace
// (package sentinel) reads them. Both need only this package, so that neither imports the other.
//
// # Layout
//
// A workspace is a folder. The job with the id ID, which is the id of its run, has the folder
// {workspace}/jobs/ID:
//
//	.sentinel.json  the runner's heartbeat, replaced every 30 s
//	.lock           locked by the runner and its command for as long as either lives
//	.result.json    the last commit of the run, written when the command has ended
//	.stdin          the command's standard input, if it has any
//	stdout.log      what the command wrote, from its first byte
//	stderr.log
//	runner.log      the runner's own messages
//	.terminal       a named pipe that takes the size of the command's terminal, if it has one
//
// All other files are the command's.
//
// # What a file proves
//
// A process id is in none of them, and decides nothing: ids are used again. A lock that is free
// proves that runner and command are gone, because the kernel releases it with the last of them. A
// counter that moves proves that the runner lives. Times in a file are for people; a clock may be
// wrong.
//
// The command can write to the folder too, and to those of its neighbours. So sentinel and result
// carry a MAC. Its key is the token of the grant, which the runner keeps in memory and the server can
// derive again. A file without a valid MAC, a link, a pipe, or a file that is too large is reported
// as a [BadFile] and is not used.
//
// # Output
//
// The files are the truth about output, and the run's log gets a copy of them. [Dir.NextOutput] makes
// the next commit from the offsets that are already in the log, so that a runner and a server that
// takes over write the same bytes at most once.
package jobdir
