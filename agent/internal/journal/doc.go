// Package journal has the parts of an agent's journal that need no worker and no server: what they
// look like in an entry, and what a replay does with them. Package agent is the only caller.
//
//   - reports.go: messages and lines that an agent wrote outside of steps.
//   - named.go: the times and ids that an agent was given.
//
// Nothing here locks. The caller has a mutex of its own.
package journal
