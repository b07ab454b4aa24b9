// Package journal has the journal of an agent: its format, and the rules of a replay. It needs no worker
// and no server, so the rules are tested without either. Package agent is the only caller.
//
//   - frame.go, step.go, digest.go, branch.go: the format of entries, digests and keys.
//   - record.go: the facts of the journal.
//   - cursor.go: how far an execution has come in it, and the things that it has not asked for.
//   - reports.go: messages and lines that an agent wrote outside of steps.
//   - named.go: the times and ids that an agent was given.
//   - inbox.go: items that have come and are not in the journal yet.
//   - writer.go: the additions of an execution, in batches.
//
// Nothing here locks. The caller has a mutex of its own.
package journal
