package timer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Hour) {
			t.Error("Sleep = false, want true: the context has not ended")
		}
		if took := time.Since(began); took != time.Hour {
			t.Errorf("Sleep took %s, want %s", took, time.Hour)
		}
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if Sleep(ctx, time.Hour) {
			t.Error("Sleep = true, want false: the context ended first")
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("Sleep took %s, want %s", took, time.Minute)
		}
	})
}
