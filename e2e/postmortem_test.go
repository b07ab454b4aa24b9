package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/tcpline"
	"github.com/perdure/perdure/internal/wire/session"
)

const (
	callerWaits = 2 * time.Second
	workTakes   = 6 * time.Second
	workSteps   = 20
)

// diskChecker is a worker process. It takes one run, works on it for a while, reports its progress,
// and answers in the thread. It goes on while the server is away, and prints what it does.
func diskChecker(url, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client.New(url, key, client.Options{})
	polled, err := session.Of(c).Poll(ctx, "disk-checker",
		api.Poll{Slots: 1, Start: true, Wait: perdure.Duration(20 * time.Second)})
	if err != nil {
		return err
	}
	if len(polled.Runs) != 1 {
		return errors.New("nothing to do")
	}
	g := polled.Runs[0]
	for i := range workSteps {
		time.Sleep(workTakes / workSteps) // its work
		step := perdure.Commit{ID: fmt.Sprint("step-", i), RunID: g.RunID, Epoch: g.Epoch,
			Events: []perdure.Emitted{{Type: "x:step", Data: client.JSON(i)}}}
		if _, err := session.Of(c).Commit(ctx, "disk-checker", step); err != nil {
			return err
		}
		fmt.Println("step", i)
	}
	last := perdure.Commit{ID: "answer", RunID: g.RunID, Epoch: g.Epoch,
		Messages: []perdure.Message{{Role: "assistant", Content: client.JSON("cube has 42 GB left")}},
		Outcome:  &perdure.Outcome{Type: perdure.OutcomeComplete, Result: client.JSON(map[string]int{"free_gb": 42})}}
	if _, err := session.Of(c).Commit(ctx, "disk-checker", last); err != nil {
		return err
	}
	fmt.Println("answered")
	return nil
}

// startChecker starts the worker, and returns its output.
func startChecker(t *testing.T, n *node) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PERDURE_CHECKER=http://"+n.addr, "PERDURE_CHECKER_KEY="+n.key)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return bufio.NewScanner(out)
}

// says waits until the worker has printed a line.
func says(t *testing.T, out *bufio.Scanner, what string) {
	t.Helper()
	for out.Scan() {
		if out.Text() == what {
			return
		}
	}
	t.Fatalf("the worker did not print %q", what)
}

// A caller asks for the disk space of a machine. The work takes longer than the caller waits, its
// connection breaks, and the server dies. The caller still gets the answer.
func TestAnswerSurvivesTimeoutDisconnectAndServerKill(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", pgtest.New(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, append(store(t), "--webhook-allow", "127.0.0.0/8")...)
			postMortem(t, n)
		})
	}
}

func postMortem(t *testing.T, n *node) {
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Within)
	defer cancel()
	c := client.New("http://"+n.addr, n.key, client.Options{})
	thread, err := c.CreateThread(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := newSink(t, n, thread.ThreadID)
	worker := startChecker(t, n)

	begin := time.Now()
	deferred := ask(t, n, thread.ThreadID)
	id := deferred.RunID

	// The caller attaches, and its connection breaks. Then the server dies.
	way := tcpline.New(t, n.addr)
	events, ended := make(chan api.Event, 1000), make(chan error, 1)
	go func() {
		ended <- gather(ctx, client.New("http://"+way.Addr(), n.key, client.Options{}), id, events)
	}()
	var got []api.Event
	until := func(typ perdure.LineType, data string) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if got = append(got, e); e.Type == typ && string(e.Data) == data {
					return
				}
			case <-ctx.Done():
				t.Fatalf("event %s %s did not arrive; %d others did", typ, data, len(got))
			}
		}
	}
	until("x:step", "8")
	way.Set(tcpline.State{Cut: true})
	n.kill(syscall.SIGKILL)
	n.start()
	says(t, worker, "step 10") // the worker went on
	way.Set(tcpline.State{})
	says(t, worker, "answered")
	if took := time.Since(begin); took < workTakes {
		t.Errorf("the work took %s, want at least %s", took, workTakes)
	}

	// The stream has reconnected by itself, and has every event.
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-ctx.Done():
		t.Fatal("the stream did not end in time")
	}
	close(events)
	for e := range events {
		got = append(got, e)
	}
	everyEventOnce(t, c, id, got)
	run, err := c.Get(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if run.State != perdure.Completed || run.Attempt != 1 || run.Epoch != 1 || string(run.Result) != `{"free_gb":42}` {
		t.Errorf("run = %+v, want completed with the answer in attempt 1 under epoch 1", run)
	}
	conversation(t, c, thread.ThreadID, deferred)
	told.ended(ctx, t, id)
}

// ask starts the run and waits for two seconds. The answer is 202 with the address of the run.
func ask(t *testing.T, n *node, thread perdure.ThreadID) (deferred api.Run) {
	t.Helper()
	begin := time.Now()
	res, b, err := exchange(n.http, n.key, "POST", fmt.Sprintf("http://%s/api/v1/threads/%s/runs", n.addr, thread),
		"ask", obj{
			"kind": "check-disk", "input": "cube", "wait": callerWaits.String(),
			"messages": []obj{{"role": "user", "content": "check disk space on cube"}}})
	if err != nil || res.StatusCode != 202 {
		t.Fatalf("answer to the caller = %v %s (error %v), want 202", res, b, err)
	}
	if waited := time.Since(begin); waited < callerWaits || waited > 30*time.Second {
		t.Errorf("the caller waited for %s, want %s to 30 s", waited, callerWaits)
	}
	if err := json.Unmarshal(b, &deferred); err != nil {
		t.Fatal(err)
	}
	if deferred.Status != perdure.StatusDeferred || !deferred.State.Live() ||
		deferred.AttachURL != "/api/v1/runs/"+string(deferred.RunID)+"/stream" || deferred.Message == "" {
		t.Errorf("answer to the caller = %s, want a deferred run", b)
	}
	return deferred
}

// everyEventOnce compares the streamed events with the log.
func everyEventOnce(t *testing.T, c *client.Client, id perdure.RunID, got []api.Event) {
	t.Helper()
	page, err := c.EventPage(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, page.Events) {
		t.Errorf("streamed events: %v\nwant the log: %v", got, page.Events)
	}
	seen := map[perdure.LineType]int{}
	for i, e := range got {
		if seen[e.Type]++; e.Seq != int64(i+1) || e.Attempt != 1 {
			t.Errorf("streamed event = %+v, want number %d in attempt 1", e, i+1)
		}
	}
	if seen["x:step"] != workSteps || seen[perdure.LineDeferred] == 0 || seen[perdure.LineReattached] == 0 ||
		seen[perdure.LineCompleted] != 1 || seen[perdure.LineReclaimed]+seen[perdure.LineRetrying] != 0 {
		t.Errorf("events by type = %v, want all steps, a deferral, a reattachment, 1 end and no retry", seen)
	}
}

// gather follows a run to its end, and sends its events to a channel.
func gather(ctx context.Context, c *client.Client, id perdure.RunID, to chan<- api.Event) error {
	for e, err := range c.Stream(ctx, id, 0) {
		if err != nil {
			return err
		}
		to <- e
	}
	return nil
}

// conversation checks the thread: the question, the notice that it takes longer, and the answer.
func conversation(t *testing.T, c *client.Client, id perdure.ThreadID, deferred api.Run) {
	t.Helper()
	page, err := c.Messages(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for _, m := range page.Messages {
		messages = append(messages, string(m.Role)+": "+string(m.Content))
	}
	if len(messages) != 3 || messages[0] != `user: "check disk space on cube"` ||
		!strings.HasPrefix(messages[1], "system: ") || messages[2] != `assistant: "cube has 42 GB left"` {
		t.Fatalf("messages of the thread = %q, want a question, a notice and an answer", messages)
	}
	var meta struct {
		Status    string        `json:"status"`
		RunID     perdure.RunID `json:"run_id"`
		AttachURL string        `json:"attach_url"`
	}
	if err := json.Unmarshal(page.Messages[1].Metadata, &meta); err != nil ||
		meta.Status != perdure.StatusDeferred || meta.RunID != deferred.RunID || meta.AttachURL != deferred.AttachURL {
		t.Errorf("the second message says %s", page.Messages[1].Metadata)
	}
}

// A sink is a receiver of webhooks.
type sink struct {
	secret string
	got    chan message
}

type message struct {
	header http.Header
	body   []byte
}

// newSink registers a receiver for the runs of a thread.
func newSink(t *testing.T, n *node, thread perdure.ThreadID) *sink {
	t.Helper()
	s := &sink{got: make(chan message, 100)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.got <- message{r.Header, b}
	}))
	t.Cleanup(srv.Close)
	var made struct {
		Secret string `json:"secret"`
	}
	if status := n.insist("POST", "/api/v1/webhooks", "", obj{"url": srv.URL + "/hook", "thread_id": thread},
		&made); status != 201 || made.Secret == "" {
		t.Fatalf("the webhook: %d", status)
	}
	s.secret = made.Secret
	return s
}

// ended waits for the notification of the end of a run, and verifies its signature.
func (s *sink) ended(ctx context.Context, t *testing.T, id perdure.RunID) {
	t.Helper()
	v, err := standard.NewWebhook(s.secret)
	if err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case m := <-s.got:
			if err := v.Verify(m.body, m.header); err != nil {
				t.Fatalf("the signature of %s: %v", m.body, err)
			}
			var told struct {
				Type string `json:"type"`
				Data struct {
					RunID perdure.RunID `json:"run_id"`
				} `json:"data"`
			}
			if err := json.Unmarshal(m.body, &told); err != nil || told.Data.RunID != id {
				t.Fatalf("webhook %s: %v, want one about run %s", m.body, err, id)
			}
			m.body[len(m.body)-2] ^= 1
			if v.Verify(m.body, m.header) == nil {
				t.Error("the signature is valid for another body, want an error")
			}
			if perdure.LineType(told.Type) == perdure.LineCompleted {
				return
			}
		case <-ctx.Done():
			t.Fatal("no notification of the end arrived in time")
		}
	}
}
