// Package adaptor understands what agent programs write, so that a process that runs as a job has a
// session, streamed text, tool calls and a count of tokens.
//
// # Engines are data
//
// An engine is a JSON file: rules that say which line of output means what, and how a session is
// continued. Files of the engines generic, claude-code, codex and gemini are in the program. A user's
// folder can have others, and its files come first, so that a change of an agent's format needs no
// new release. The format is in [Engine].
//
// # How it works
//
// [Load] finds an engine and returns an [Adaptor] for one process. [Adaptor.Parse] gets each line of
// the process's standard output and returns the facts that it states: a [Session], a [Text], a
// [ToolStarted], a [ToolEnded], a [Usage], a [Status] or an [End]. A line that is no JSON object, or
// that no rule matches, states nothing. [Adaptor.Continue] makes the command that goes on with a
// session.
//
// # What it is not
//
// It changes no output: the raw bytes are stored by others as they are. It trusts none of them
// either. A line is at most [MaxLine] bytes, values are cut, wrong types are ignored, and a session
// id has no form that could be an option of a command.
//
// # Where to start reading
//
// engine.go has the format of the files and its checks, parse.go the rules at work, scan.go the
// reading of JSON. The folder scripted has an agent for tests that speaks claude-code's format.
package adaptor
