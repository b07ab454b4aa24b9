package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// A terminal keeps the output, and stops the program at a certain line, like Ctrl-C.
type terminal struct {
	strings.Builder
	at    string
	press func()
}

func (t *terminal) Write(p []byte) (int, error) {
	if string(p) == t.at {
		t.press()
	}
	return t.Builder.Write(p)
}

func TestProgramContinuesAfterRestart(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	first := &terminal{at: "3\n", press: cancel}
	if err := run(ctx, dir, 500*time.Millisecond, first); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, after\n%s", err, first)
	}
	second := new(terminal)
	if err := run(t.Context(), dir, time.Millisecond, second); err != nil {
		t.Fatal(err)
	}
	// Ctrl-C comes in the third step, which is repeated unless it was over by then.
	if !strings.HasPrefix(first.String(), "1\n2\n3\n") || strings.Contains(second.String(), "2\n") ||
		!strings.HasSuffix(second.String(), "5\ncompleted \"counted\"\n") {
		t.Errorf("output of the first start:\n%s\nand of the second:\n%s\n"+
			"want the second to continue after step 2 and to complete", first, second)
	}
}
