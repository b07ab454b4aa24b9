// Package reads has what people and pages ask: runs, threads, kinds, tenants, processes, dead
// letters, history.
//
// A read is a method of a noun (Runs, Threads, Kinds …). It looks at one snapshot of the store,
// changes nothing and waits for no batch.
//
// # Where to start reading
//
// reads.go lists the nouns; query.go has most of what is read of a run.
package reads
