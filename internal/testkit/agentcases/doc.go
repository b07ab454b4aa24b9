// Package agentcases has edits and misuses of agents as rows: the code, the outcome, and a sentence
// for the page. A test of package agent executes each row. docgen prints the tables of
// docs/agents.md and docs/misuses.md from the same rows, so the pages say what was executed.
//
// # Edits
//
// An [Edit] is a line of the page. It has one or more cases: the same kind of edit, tried on different
// things. The agents of a [Case] are scripts, a word for each call of package agent; script.go has the
// words. Each case is executed four times:
//
//   - a run that waits before the place of the edit while the build changes. It has to go on as a run that
//     begins under the new build;
//   - a run that is past it, and waits behind it. It goes on with the recorded results, or it is held
//     before an effect. Then the build before comes back, and the run has to end as if nothing had been;
//   - a run under the build before, and one under the build after it, to compare with.
//
// # Misuses
//
// A [Misuse] is an agent that does something that it must not do, and what becomes of it. See misuse.go.
//
// # Invariants
//
//   - No outcome is silent: a run is right, or held, or fails with a code, or one of the two tools finds
//     the mistake (perdurevet, agenttest), and the test executes that tool.
//   - The text of a hold says what to do.
package agentcases
