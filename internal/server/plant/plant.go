//go:build !plant

// Package plant holds deliberate faults, to show that the simulator finds them. Without the build tag
// "plant" it is a constant false and leaves nothing in the binary; see docs/simulator.md.
package plant

// Is tells whether a fault is planted.
func Is(string) bool { return false }
