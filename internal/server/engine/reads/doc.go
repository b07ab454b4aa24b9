// Package reads answers questions of people and pages about runs, threads, kinds, tenants,
// processes, dead letters and history.
//
// A read is a method of a noun (Runs, Threads, Kinds …). It looks at one snapshot of the store,
// changes nothing and waits for no batch.
//
// # Where to start reading
//
// reads.go lists the nouns; query.go has most reads of a run. The files build on one another: one uses
// names of those before it.
//
//   - tenants_list.go, history.go, kinds_list.go, letters.go, processes.go, health.go, schedules.go,
//     limits.go: tenants and their counts by the minute, kinds, dead letters, processes, the server,
//     schedules, limits.
//   - reads.go: the nouns.
//   - query.go, survey.go, counts.go, activity.go, stopping.go: runs.
//   - entries.go, replay.go, artifacts.go, approvals.go, groups.go, late_results.go, views.go,
//     names.go: parts of a run, and names.
//   - attention.go: what may need a person, and how runs of a kind went.
//   - threads_find.go, threads_list.go, backup.go, watchlog.go: threads, backups, the watchdog's log.
package reads
