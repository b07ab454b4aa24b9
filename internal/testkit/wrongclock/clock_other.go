//go:build !amd64

// Package wrongclock makes the clock of this process wrong, for tests. This machine's kind of processor is not one for
// which it can.
package wrongclock

import (
	"errors"
	"time"
)

// Shift returns an error.
func Shift(time.Duration) error { return errors.New("the clock can be made wrong on amd64 alone") }
