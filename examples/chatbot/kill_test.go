package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/worker"
)

// TestMain makes the test binary a worker too, so that a test can kill one.
func TestMain(m *testing.M) {
	if url := os.Getenv("CHATBOT_URL"); url != "" {
		fmt.Fprintln(os.Stderr, work(url, os.Getenv("CHATBOT_KEY"), os.Getenv("CHATBOT_MODEL")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// work runs a worker of the chatbot, with one more tool, until the process is killed or the test has
// ended.
func work(url, key, model string) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		io.Copy(io.Discard, os.Stdin) // the test has the other end
	}()
	w := worker.New(client.New(url, key, client.Options{}), worker.Options{DrainTimeout: -1})
	Model{BaseURL: model + "/v1", Name: "m", Key: "secret"}.register(w)
	worker.Handle(w, "forecast", func(ctx context.Context, in struct{ City string }) (string, error) {
		req, err := http.NewRequestWithContext(ctx, "GET", model+"/forecast", nil)
		if err != nil {
			return "", err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return string(text) + " in " + in.City, err
	})
	return w.Run(ctx)
}

const (
	counting = "Count to three."
	raining  = "Will it rain in Delft?"
)

// A slowModel answers two questions. Its first answer to counting stops in the middle, and the first
// forecast does not come, until their callers are gone.
type slowModel struct {
	left, forecasts chan struct{} // get a value when the caller of counting is gone, and for each forecast

	mu    sync.Mutex
	asked map[string]int // how often each message was the last one of a request
}

func newSlowModel() *slowModel {
	return &slowModel{left: make(chan struct{}, 1), forecasts: make(chan struct{}, 10), asked: make(map[string]int)}
}

// times counts a request, and returns how many there were with the same last message.
func (m *slowModel) times(last string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[last]++
	return m.asked[last]
}

func (m *slowModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/forecast" {
		n := m.times("forecast")
		m.forecasts <- struct{}{}
		if n == 1 {
			<-r.Context().Done()
			return
		}
		io.WriteString(w, "rain")
		return
	}
	var in struct{ Messages []Message }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	last := in.Messages[len(in.Messages)-1].Content
	n := m.times(last)
	switch last {
	case counting:
		say(w, `{"role":"assistant","content":""}`, `{"content":"One, "}`)
		if n == 1 {
			<-r.Context().Done()
			m.left <- struct{}{}
			return
		}
		say(w, `{"content":"two, "}`, `{"content":"three."}`)
	case raining:
		say(w, `{"content":"Let me look. "}`,
			`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"forecast",`+
				`"arguments":"{\"city\":\"Delft\"}"}}]}`)
	case "rain in Delft":
		say(w, `{"content":"Take an umbrella."}`)
	default:
		say(w, `{"content":"Yes."}`)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// A world is a server on a socket, and a model. Its workers are processes.
type world struct {
	*servertest.Server
	model      *slowModel
	modelURL   string
	lastWorker *exec.Cmd
}

func newWorld(t *testing.T) *world {
	t.Helper()
	policy := perdure.DefaultPolicy()
	// A killed worker is noticed soon.
	policy.Lease, policy.DispatchedRetry, policy.BackoffBase = 2*time.Second, time.Second, 10*time.Millisecond
	model := newSlowModel()
	endpoint := httptest.NewServer(model)
	t.Cleanup(endpoint.Close)
	w := &world{Server: servertest.Listen(t, embedded.Options{Policy: &policy}), model: model, modelURL: endpoint.URL}
	t.Cleanup(w.kill)
	return w
}

// startWorker starts a worker process.
func (w *world) startWorker() {
	w.T.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHATBOT_URL="+w.URL, "CHATBOT_KEY="+w.Key(), "CHATBOT_MODEL="+w.modelURL)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process
		w.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	w.lastWorker = cmd
}

// kill kills the worker, as kill -9 does.
func (w *world) kill() {
	if w.lastWorker != nil {
		w.lastWorker.Process.Kill()
		w.lastWorker.Wait()
		w.lastWorker = nil
	}
}

// ask starts a turn on a thread, or on a new one.
func (w *world) ask(thread perdure.ThreadID, question string) (perdure.RunID, perdure.ThreadID) {
	w.T.Helper()
	if thread == "" {
		made, err := w.C.CreateThread(w.T.Context(), nil)
		if err != nil {
			w.T.Fatal(err)
		}
		thread = made.ThreadID
	}
	return w.Start(perdure.Submission{Kind: "chat", ThreadID: thread,
		Messages: []perdure.Message{{Role: "user", Content: client.JSON(question)}}}), thread
}

// watch shows a run's text as a chat window does. It calls do once when the text is shown. It returns the
// text at the run's end, and how often a text was begun again.
func (w *world) watch(id perdure.RunID, shown string, do func()) (end string, again int) {
	w.T.Helper()
	var text client.Text
	for e, err := range w.C.Stream(w.T.Context(), id, 0) {
		if err != nil {
			w.T.Fatal(err)
		}
		if text.Add(&e) {
			again++
		}
		if do != nil && text.String() == shown {
			do()
			do = nil
		}
	}
	if do != nil {
		w.T.Fatalf("run %s: text at the end = %q, which never was %q", id, &text, shown)
	}
	return text.String(), again
}

// checkThread compares the messages of a thread.
func (w *world) checkThread(id perdure.ThreadID, want ...string) {
	w.T.Helper()
	page, err := w.C.Messages(w.T.Context(), id, 0)
	if err != nil {
		w.T.Fatal(err)
	}
	var got []string
	for _, m := range page.Messages {
		var text string
		if err := json.Unmarshal(m.Content, &text); err != nil {
			w.T.Fatal(err)
		}
		got = append(got, string(m.Role)+": "+text)
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		w.T.Errorf("messages of thread %s = %q, want %q", id, got, want)
	}
}

// The user stops an answer while it streams. The call of the model ends too, the thread says in plain
// words that the run was cancelled, and the next turn is answered.
func TestAnswerIsCancelledMidStream(t *testing.T) {
	w := newWorld(t)
	w.startWorker()
	run, thread := w.ask("", counting)
	text, _ := w.watch(run, "One, ", func() {
		ended, err := w.C.Cancel(t.Context(), run, "stopped by the user", time.Minute)
		if err != nil || ended.State != perdure.Cancelled || ended.Cancel.AckedAt == 0 {
			t.Errorf("cancelled run = %+v (error %v), want it cancelled by its worker", ended, err)
		}
		<-w.model.left
	})
	if text != "One, " {
		t.Errorf("text of the cancelled run = %q, want what was streamed before", text)
	}
	w.checkThread(thread, "user: "+counting, "system: This run was cancelled: stopped by the user")

	next, _ := w.ask(thread, "Are you there?")
	if text, _ := w.watch(next, "", nil); text != "Yes." {
		t.Errorf("answer to the next question = %q, want %q", text, "Yes.")
	}
}

// A worker is killed while it streams one answer, and while the tool of another conversation is under
// way in it. The next worker continues both. Each answer is shown once, and a recorded answer of the
// model is not requested again.
func TestWorkerIsKilledMidStream(t *testing.T) {
	w := newWorld(t)
	w.startWorker()
	rain, rainThread := w.ask("", raining)
	<-w.model.forecasts
	count, countThread := w.ask("", counting)
	text, again := w.watch(count, "One, ", func() {
		w.kill()
		w.startWorker()
	})
	if text != "One, two, three." || again != 1 {
		t.Errorf("text = %q, begun again %d times; want the answer once, begun again 1 time", text, again)
	}
	w.checkThread(countThread, "user: "+counting, "assistant: One, two, three.")

	if text, again = w.watch(rain, "", nil); text != "Let me look. Take an umbrella." || again != 0 {
		t.Errorf("text = %q, begun again %d times; want the two answers, never begun again", text, again)
	}
	w.checkThread(rainThread, "user: "+raining, "assistant: Take an umbrella.")
	w.model.mu.Lock()
	defer w.model.mu.Unlock()
	want := map[string]int{counting: 2, raining: 1, "forecast": 2, "rain in Delft": 1}
	if fmt.Sprint(w.model.asked) != fmt.Sprint(want) {
		t.Errorf("requests to the model = %v, want %v", w.model.asked, want)
	}
}
