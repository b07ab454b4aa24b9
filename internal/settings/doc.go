// Package settings is the configuration of a server: one table with a row for each setting, and
// everything that is derived from the table.
//
// Config.Table has the rows: name, default, bounds and help, with a pointer to the value. A file in
// TOML, the environment and flags give values by name, in that order, and the last one counts.
// "perdure config check" shows the rows, and docs/configuration.md is printed from them.
//
// A new setting is a field of embedded.Options or perdure.Policy, and a row: in Config.Table, or in
// Policy.Settings. The thresholds of kinds and activities have names that an operator chooses, so
// they have no rows: see liveness.go.
//
// The package decides nothing at run time. Checks of single values are in the rows. Checks that need
// several values, or look at files, are Validate of embedded.Options and of perdure.Policy.
package settings
