//go:build plant

// Package plant holds deliberate faults, to show that the simulator finds them.
package plant

import (
	"os"
	"sync/atomic"
)

var fault atomic.Value

// A process of a test is told by PERDURE_PLANT.
func init() { Set(os.Getenv("PERDURE_PLANT")) }

// Set plants a fault; "" plants none.
func Set(name string) { fault.Store(name) }

// Is tells whether a fault is planted.
func Is(name string) bool { f, _ := fault.Load().(string); return f == name }
