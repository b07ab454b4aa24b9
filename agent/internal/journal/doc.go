// Package journal has the parts of an agent's journal that need no worker and no server: their
// form in an entry, and how a replay uses them. Package agent is the only caller.
//
//   - reports.go: messages and lines that an agent wrote outside of steps.
//   - named.go: the times and ids that an agent was given.
//
// Nothing here locks. The caller has a mutex of its own.
package journal
