package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
)

// A terminal keeps the output, and calls a function when the program prints a certain line.
type terminal struct {
	at   string
	then func()

	mu  sync.Mutex
	out strings.Builder
}

func (t *terminal) Write(p []byte) (int, error) {
	if string(p) == t.at {
		t.then()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Write(p)
}

func (t *terminal) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.String()
}

// startAndWait starts the run over HTTP, which is there already, and waits for its end. It returns when
// the request is sent. status gets that of the answer, or 0.
func startAndWait(t *testing.T, url, dir string, status chan<- int) {
	t.Helper()
	secret, err := os.ReadFile(filepath.Join(dir, embedded.KeyFile))
	if err != nil {
		t.Error(err)
	}
	sent := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) }})
	body := client.JSON(api.StartRun{Submission: countToFive, Wait: perdure.Duration(time.Hour)})
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/api/v1/runs", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		status <- 0
		return
	}
	req.Header = http.Header{"Authorization": {"Bearer " + strings.TrimSpace(string(secret))},
		"Content-Type": {"application/json"}, "Idempotency-Key": {key}}
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		res.Body.Close()
		status <- res.StatusCode
	}()
	<-sent
}

// Ctrl-C comes in the third step. A caller that waits for the run over HTTP gets a deferral. The worker
// hands the run back, and the next start continues with it, in the same attempt.
func TestProgramContinuesAfterRestart(t *testing.T) {
	dir, status := t.TempDir(), make(chan int, 1)
	ctx, press := context.WithCancel(t.Context())
	first := &terminal{at: "3\n"}
	first.then = func() {
		url, _, _ := strings.Cut(first.String(), "\n")
		startAndWait(t, url, dir, status)
		press()
	}
	if err := run(ctx, dir, "127.0.0.1:0", 300*time.Millisecond, first); err != nil {
		t.Fatalf("first start: %v, after\n%s", err, first)
	}
	if got := <-status; got != http.StatusAccepted {
		t.Errorf("status of the caller that waits = %d, want %d, because the run goes on", got, http.StatusAccepted)
	}
	second := new(terminal)
	if err := run(t.Context(), dir, "127.0.0.1:0", time.Millisecond, second); err != nil {
		t.Fatalf("second start: %v, after\n%s", err, second)
	}
	// The third step is repeated unless it was over by then.
	const stopped, end = "stopped; the next start goes on\n", "5\ncompleted \"counted\" in attempt 1\n"
	if out := first.String(); !strings.Contains(out, "\n1\n2\n3\n") || !strings.HasSuffix(out, stopped) {
		t.Errorf("output of the first start:\n%s\nwant three steps, and that it was stopped", out)
	}
	if out := second.String(); strings.Contains(out, "\n2\n") || !strings.HasSuffix(out, end) {
		t.Errorf("output of the second start:\n%s\nwant it to continue after step 2 and to complete in attempt 1", out)
	}
}
