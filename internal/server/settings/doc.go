// Package settings is the configuration of a server: one table with a row for each setting, and
// everything that is derived from the table.
//
// # How it works
//
// Config.Table has the rows: name, default, bounds and help, with a pointer to the value. A file in
// TOML, the environment and flags set values by name, in that order, and the last one counts.
// "perdure config check" prints the rows, and docs/configuration.md is printed from them.
//
// A new setting is a field of embedded.Options or perdure.Policy, and a row in Config.Table or in
// Policy.Settings. An operator chooses the names of kinds and activities, so their thresholds have
// no rows: see liveness.go.
//
// # What it is not
//
// The package decides nothing at run time. Checks of single values are in the rows. Checks that
// need several values, or look at files, are Validate of embedded.Options and of perdure.Policy.
//
// # Where to start reading
//
//   - table.go: the rows.
//   - load.go: the order of file, environment and flags.
//   - value.go: how a text becomes a value. print.go: how a value becomes a text.
//
// # Invariants
//
//   - A setting has one name, from which those of its flag and its variable are derived.
//   - A name that does not exist is an error.
//   - No password is printed.
package settings
