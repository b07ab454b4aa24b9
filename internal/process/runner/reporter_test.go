package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// The terminal of perdure exec is stopped with Ctrl-S: nobody reads the reports.
func TestStarterThatDoesNotReadHoldsNothingUp(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	p, done := &reporter{pipe: w}, make(chan struct{})
	go func() {
		defer close(done)
		for i := range 1000 {
			p.report(Report{Event: Notice, Message: fmt.Sprint(i, strings.Repeat(" ", 200))})
			p.report(Report{Event: Sending})
		}
	}()
	select {
	case <-done:
	case <-time.After(eventually.Within):
		t.Fatal("a report waits for a starter that does not read")
	}
	// A report that counts is waited for, and those before it are whole.
	go func() {
		p.report(Report{Event: Sent})
		w.Close()
	}()
	n, last := 0, Report{}
	for dec := json.NewDecoder(r); dec.More(); n++ {
		if last = (Report{}); dec.Decode(&last) != nil {
			t.Fatalf("report %d can't be read", n)
		}
	}
	if n < 100 || last.Event != Sent {
		t.Errorf("%d reports came, the last one is %+v; want as many as the pipe takes, and then %s", n, last, Sent)
	}
}

// A loop truncates its output with each line. That is told a few times.
func TestTruncationsThatAreToldAreBounded(t *testing.T) {
	e := forwarder(t, &scriptedServer{}, "")
	var told []string
	e.report = func(r Report) { told = append(told, r.Message) }
	for range 3 * maxTruncations {
		e.output.truncated = append(e.output.truncated, truncation{stream: jobdir.Stderr})
		e.tellTruncated()
	}
	if len(told) != maxTruncations || !strings.Contains(told[len(told)-1], "not told any more") {
		t.Errorf("%d truncations are told: %q; want %d, and that the last one says so", len(told), told, maxTruncations)
	}
	if n := len(e.facts.events); n != maxTruncations {
		t.Errorf("%d events wait, want %d", n, maxTruncations)
	}
}
