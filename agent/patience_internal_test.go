package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// Pauses double from the first to the longest, however many there are.
func TestPausesOfARetry(t *testing.T) {
	t.Parallel()
	busy := errors.New("busy")
	for _, row := range []struct {
		retry Retry
		n     int
		want  time.Duration // -1: no further try
	}{
		{Retry{}, 0, -1}, {Retry{Attempts: 1}, 0, -1}, {Retry{Attempts: 2}, 0, time.Second},
		{Retry{Attempts: 2}, 1, -1},
		{Retry{Attempts: 9}, 3, 8 * time.Second}, {Retry{Attempts: 9}, 6, time.Minute},
		{Retry{Attempts: 1 << 30}, 1 << 20, time.Minute},
		{Retry{Attempts: 9, First: time.Hour}, 0, time.Minute},
		{Retry{Attempts: 9, First: time.Hour, Max: 1 << 62}, 5, 32 * time.Hour},
		{Retry{Attempts: 1 << 30, First: 1, Max: 1 << 62}, 1 << 20, 1 << 62},
	} {
		pause, ok := row.retry.again(row.n, busy)
		if !ok {
			pause = -1
		}
		if pause != row.want {
			t.Errorf("%+v after failure %d: pause %s, want %s", row.retry, row.n, pause, row.want)
		}
	}
	if _, ok := (&Retry{Attempts: 5}).again(0, perdure.Permanent(busy)); ok {
		t.Error("a permanent error is tried again")
	}
}
