//go:build !linux

package confine

import (
	"errors"
	"fmt"
)

// New fails: only Linux has what it takes.
func New(Options) (*Confinement, error) {
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, errors.New("it takes Linux"))
}

// Enter does nothing.
func Enter() {}
