package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A program that is stopped takes its children with it. The test is in real time, as a process has no
// other.
func TestStoppedProgramLeavesNoChildren(t *testing.T) {
	tool, err := Shell(ShellOptions{Interpreter: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	pid := func() string {
		text, _ := os.ReadFile(file)
		return strings.TrimSpace(string(text))
	}
	line := command{Command: "echo begun; sleep 600 & echo $! >" + file + "; wait"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		text, err := tool.(*shell).run(ctx, line)
		if err == nil || !strings.Contains(text, "begun") {
			t.Errorf("output = %q (error %v), want what was printed before the end, and an error", text, err)
		}
	}()
	eventually.True(t, "the program has started its child", func() bool { return pid() != "" })
	cancel()
	<-done
	eventually.True(t, "the child has ended", func() bool {
		line, err := os.ReadFile("/proc/" + pid() + "/cmdline")
		return err != nil || len(line) == 0
	})
}

func TestOutputIsBounded(t *testing.T) {
	o := &output{}
	for range 3 {
		if n, err := o.Write(make([]byte, maxOutput/2)); n != maxOutput/2 || err != nil {
			t.Fatalf("write = %d, %v; want %d and no error", n, err, maxOutput/2)
		}
	}
	if o.Len() != maxOutput || !strings.HasSuffix(o.String(), "bytes more were not kept)") {
		t.Errorf("output has %d bytes, want %d and a note", o.Len(), maxOutput)
	}
}

// A child whose worker was lost may or may not have had its effect.
func TestLostChildHasAnUnknownOutcome(t *testing.T) {
	for code, want := range map[perdure.Code]string{
		perdure.CodeAttemptsExhausted: outcomeUnknown, perdure.CodeFailed: "error: failed: no",
	} {
		err := agent.ErrTaskFailed{State: perdure.Failed, Failure: perdure.Failure{Code: code, Message: "no"}}
		if got := errorText(err); got != want {
			t.Errorf("%s: the model is told %q, want %q", code, got, want)
		}
	}
}
