// Package journal has the journal of an agent: its format, and the rules of a replay. It needs no worker
// and no server, so the rules are tested without either. Package agent is the only caller.
//
//   - frame.go, step.go, digest.go, branch.go: the format of entries, digests and keys.
//   - record.go: what the journal says.
//   - cursor.go: how far an execution has come in it, and what it has not asked for.
//   - reports.go: messages and lines that an agent wrote outside of steps.
//   - named.go: the times and ids that an agent was given.
//   - inbox.go: what has come and is not in the journal yet.
//   - writer.go: what an execution adds, in batches.
//
// Nothing here locks. The caller has a mutex of its own.
package journal
