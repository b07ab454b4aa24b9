//go:build plant

// Package plant holds deliberate faults, to show that the simulator finds them.
package plant

import "sync/atomic"

var fault atomic.Value

// Set plants a fault; "" plants none.
func Set(name string) { fault.Store(name) }

// Is tells whether a fault is planted.
func Is(name string) bool { f, _ := fault.Load().(string); return f == name }
