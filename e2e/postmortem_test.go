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
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/pgtest"
)

const (
	callerWaits = 2 * time.Second
	workTakes   = 6 * time.Second
	workSteps   = 20
)

// diskChecker is a worker process: it takes one run, works on it for a while, telling how far it is, and answers into the
// thread. It goes on whatever becomes of the server, and says what it does on its output.
func diskChecker(url, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client.New(url, key, client.Options{})
	polled, err := c.Poll(ctx, "disk-checker", api.Poll{Slots: 1, Start: true, Wait: perdure.Duration(20 * time.Second)})
	if err != nil {
		return err
	}
	if len(polled.Runs) != 1 {
		return errors.New("nothing to do")
	}
	g := polled.Runs[0]
	for i := range workSteps {
		time.Sleep(workTakes / workSteps) // its work
		step := perdure.Commit{ID: fmt.Sprint("step-", i), RunID: g.RunID, Epoch: g.Epoch, Events: []perdure.Emitted{{Type: "x:step", Data: client.JSON(i)}}}
		if _, err := c.Commit(ctx, "disk-checker", step); err != nil {
			return err
		}
		fmt.Println("step", i)
	}
	last := perdure.Commit{ID: "answer", RunID: g.RunID, Epoch: g.Epoch,
		Messages: []perdure.Message{{Role: "assistant", Content: client.JSON("cube has 42 GB left")}},
		Outcome:  &perdure.Outcome{Type: perdure.OutcomeComplete, Result: client.JSON(map[string]int{"free_gb": 42})}}
	if _, err := c.Commit(ctx, "disk-checker", last); err != nil {
		return err
	}
	fmt.Println("answered")
	return nil
}

// startChecker runs the worker, and gives what it says.
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

// says waits until the worker has said something.
func says(t *testing.T, out *bufio.Scanner, what string) {
	t.Helper()
	for out.Scan() {
		if out.Text() == what {
			return
		}
	}
	t.Fatalf("the worker never said %q", what)
}

// Somebody asks for the disk space of a machine. That takes longer than he waits. His connection breaks, the server dies.
// Nothing of it costs him the answer.
func TestAnAnswerOutlivesTheCallersPatienceHisConnectionAndTheServer(t *testing.T) {
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

	// He attaches, and his connection breaks; then the server dies.
	way := newLine(t, n.addr)
	events, ended := make(chan api.Event, 1000), make(chan error, 1)
	go func() {
		ended <- gather(ctx, client.New("http://"+way.l.Addr().String(), n.key, client.Options{}), id, events)
	}()
	var got []api.Event
	until := func(typ, data string) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if got = append(got, e); e.Type == typ && string(e.Data) == data {
					return
				}
			case <-ctx.Done():
				t.Fatalf("%s %s is not told; %d events were", typ, data, len(got))
			}
		}
	}
	until("x:step", "8")
	way.set(true)
	n.kill(syscall.SIGKILL)
	n.start()
	says(t, worker, "step 10") // the worker did not notice much
	way.set(false)
	says(t, worker, "answered")
	if took := time.Since(begin); took < workTakes {
		t.Errorf("the work took %s only", took)
	}

	// He came back by himself, and has everything.
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-ctx.Done():
		t.Fatal("the stream does not end")
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
		t.Errorf("%+v", run)
	}
	conversation(t, c, thread.ThreadID, deferred)
	told.ended(ctx, t, id)
}

// ask starts the run and waits for two seconds, as a caller does who is then told where to come back to.
func ask(t *testing.T, n *node, thread perdure.ThreadID) (deferred api.Run) {
	t.Helper()
	begin := time.Now()
	res, b, err := exchange(n.http, n.key, "POST", fmt.Sprintf("http://%s/api/v1/threads/%s/runs", n.addr, thread), "ask", obj{
		"kind": "check-disk", "input": "cube", "wait": callerWaits.String(), "messages": []obj{{"role": "user", "content": "check disk space on cube"}}})
	if err != nil || res.StatusCode != 202 {
		t.Fatalf("the caller is told %v %s %v", res, b, err)
	}
	if waited := time.Since(begin); waited < callerWaits || waited > 30*time.Second {
		t.Errorf("the caller waited for %s", waited)
	}
	if err := json.Unmarshal(b, &deferred); err != nil {
		t.Fatal(err)
	}
	if deferred.Status != perdure.StatusDeferred || !deferred.State.Live() || deferred.AttachURL != "/api/v1/runs/"+string(deferred.RunID)+"/stream" || deferred.Message == "" {
		t.Errorf("the caller is told %s", b)
	}
	return deferred
}

// everyEventOnce compares what was streamed with the log.
func everyEventOnce(t *testing.T, c *client.Client, id perdure.RunID, got []api.Event) {
	t.Helper()
	page, err := c.EventPage(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, page.Events) {
		t.Errorf("told: %v\nthe log: %v", got, page.Events)
	}
	seen := map[string]int{}
	for i, e := range got {
		if seen[e.Type]++; e.Seq != int64(i+1) || e.Attempt != 1 {
			t.Errorf("event %d is %+v", i+1, e)
		}
	}
	if seen["x:step"] != workSteps || seen[perdure.LineDeferred] == 0 || seen[perdure.LineReattached] == 0 || seen[perdure.LineCompleted] != 1 || seen[perdure.LineReclaimed]+seen[perdure.LineRetrying] != 0 {
		t.Errorf("%v", seen)
	}
}

// gather follows a run to its end.
func gather(ctx context.Context, c *client.Client, id perdure.RunID, to chan<- api.Event) error {
	for e, err := range c.Stream(ctx, id, 0) {
		if err != nil {
			return err
		}
		to <- e
	}
	return nil
}

// conversation is the question, the word that it takes longer, and the answer.
func conversation(t *testing.T, c *client.Client, id perdure.ThreadID, deferred api.Run) {
	t.Helper()
	page, err := c.Messages(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, m := range page.Messages {
		said = append(said, m.Role+": "+string(m.Content))
	}
	if len(said) != 3 || said[0] != `user: "check disk space on cube"` || !strings.HasPrefix(said[1], "assistant: ") || said[2] != `assistant: "cube has 42 GB left"` {
		t.Fatalf("%q", said)
	}
	var meta struct {
		Status    string        `json:"status"`
		RunID     perdure.RunID `json:"run_id"`
		AttachURL string        `json:"attach_url"`
	}
	if err := json.Unmarshal(page.Messages[1].Metadata, &meta); err != nil || meta.Status != perdure.StatusDeferred || meta.RunID != deferred.RunID || meta.AttachURL != deferred.AttachURL {
		t.Errorf("the second message says %s", page.Messages[1].Metadata)
	}
}

// A sink is where webhooks arrive.
type sink struct {
	secret string
	got    chan message
}

type message struct {
	header http.Header
	body   []byte
}

// newSink is told of what becomes of the runs of a thread.
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
	if status := n.insist("POST", "/api/v1/webhooks", "", obj{"url": srv.URL + "/hook", "thread_id": thread}, &made); status != 201 || made.Secret == "" {
		t.Fatalf("the webhook: %d", status)
	}
	s.secret = made.Secret
	return s
}

// ended waits until the sink is told of the end of a run, and checks who says so, as any receiver would.
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
				t.Fatalf("%s: %v", m.body, err)
			}
			m.body[len(m.body)-2] ^= 1
			if v.Verify(m.body, m.header) == nil {
				t.Error("another body has the same signature")
			}
			if told.Type == perdure.LineCompleted {
				return
			}
		case <-ctx.Done():
			t.Fatal("the webhook does not come")
		}
	}
}
