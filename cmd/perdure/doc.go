// Command perdure is the program of Perdure, a durable runtime for AI-agent runs.
//
// # What it is for
//
// "perdure serve" runs the server, and "perdure dev" one for trying things out. Most other commands
// call a server through its API, by package client. Some work on a store without a server: keys
// bootstrap, secret, restore, clock, and with --stopped or --store also fsck and backup. "perdure
// demo" shows in a few seconds what Perdure does.
//
// # How it works
//
// main calls run, which finds the command in a table. Each command is a function with its arguments
// and two writers, in a file of its own. It declares its flags (flags) and parses them (parse, or
// parseMixed if flags and arguments may be mixed). Then it connects (connFlags) and prints a table,
// or JSON with --json. Commands with subcommands, such as "perdure keys", list them in a table and
// call dispatch.
//
// Text from agents, workers and tenants may contain escape sequences. Everything that is printed
// goes through the functions of terminal.go.
//
// # What it is not
//
// It contains no logic of the server. Package embedded puts the server together, internal/server/settings
// has the configuration. Packages demo and confine, in the folder internal here, have what "perdure
// demo" runs and how commands of the supervisor's shell are confined. The benchmark is a program of its
// own, cmd/perdure-bench.
//
// # Where to start reading
//
//   - main.go: the table of commands, exit codes, flags.
//   - movedclock.go: the clock of a server for tests, which "perdure dev --clock-from-stdin" moves.
//   - serve.go, starting.go: the life of a server process, and what it answers before it is open.
//   - conn.go: how a command finds its server and its key.
//   - subcommands.go: commands with subcommands, and suggestions for typing errors.
//
// # Invariants
//
//   - Exit codes are part of the interface: see exitCodes and docs/server.md.
//   - Results go to stdout. Everything else goes to stderr.
//   - A command that is called wrongly changes nothing and exits with 2.
//   - A secret is printed once, when it is created.
package main
