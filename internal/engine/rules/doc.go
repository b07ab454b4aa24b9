// Package rules has what a tenant says about its runs: kinds, paused queues, limits and signatures.
//
// It says what holds. Whether a run is accepted is decided in life, and whether it is granted in
// dispatch.
//
// # Where to start reading
//
// kind.go, pause.go, sign.go, live.go and tenant.go, one for each; then kind_cache.go, place.go,
// rules.go.
package rules
