// Package answer writes the answers of doors.
//
// # How it works
//
// An [Answer] is JSON that is written at once, or stays open. An [Open] answer has its headers flushed before
// anything blocks, and a sign of life every few seconds from then on. It ends when the caller hangs up, stops
// reading, or the server shuts down; only a complete one ends cleanly. A [Stream] writes frames as
// server-sent events.
//
// # What it is not
//
// It knows no run and makes no calls: package doors reads the log and decides what is written.
package answer
