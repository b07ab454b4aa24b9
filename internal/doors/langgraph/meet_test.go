package langgraph_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A meeting carries calls of the API. Answers to some of them wait until two are there.
type meeting struct {
	http.RoundTripper
	at   string // part of the path
	mu   sync.Mutex
	seen int
	two  chan struct{}
}

func (m *meeting) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := m.RoundTripper.RoundTrip(r)
	if !strings.Contains(r.URL.Path, m.at) {
		return res, err
	}
	m.mu.Lock()
	if m.seen++; m.seen == 2 {
		close(m.two)
	}
	m.mu.Unlock()
	select {
	case <-m.two:
	case <-r.Context().Done():
	}
	return res, err
}

// Of two first calls with one thread id, which both find that there is no such thread, one creates it. The other
// is refused, or gets that thread if it asks for it.
func TestTwoFirstCallsWithOneThreadID(t *testing.T) {
	s := servertest.Open(t, embedded.Options{})
	for ifExists, want := range map[string][]int{"": {200, 409}, "raise": {200, 409}, "do_nothing": {200, 200}} {
		set, err := doors.NewSet([]*doors.Door{langgraph.Door(langgraph.Options{})}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		set.Connect(&meeting{RoundTripper: s.Transport(), at: "/by-name/", two: make(chan struct{})})
		t.Cleanup(set.Close)
		var got []int
		var ids []string
		var mu sync.Mutex
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				body := fmt.Sprintf(`{"thread_id":"mine%s","if_exists":%q}`, ifExists, ifExists)
				r := httptest.NewRequestWithContext(s.Ctx, "POST", "/doors/langgraph/threads", strings.NewReader(body))
				r.Header.Set("X-Api-Key", s.Key())
				h, _, _ := set.Find("/doors/langgraph/threads")
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, r)
				text, _ := io.ReadAll(rec.Body) // never fails
				mu.Lock()
				defer mu.Unlock()
				got, ids = append(got, rec.Code), append(ids, string(text))
			})
		}
		both.Wait()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("two first calls with if_exists %q = %v, want %v: %v", ifExists, got, want, ids)
		}
		for _, text := range ids {
			if !strings.Contains(text, `"thread_id":"mine`+ifExists+`"`) && !strings.Contains(text, `name_taken`) {
				t.Errorf("if_exists %q = %s, want the thread or name_taken", ifExists, text)
			}
		}
	}
}

// A call that is posted again with the caller's idempotency key gets the run of the first one, also on a thread
// that is busy with it. Runs of a batch are runs of their own.
func TestCallWithKeyIsPostedAgain(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	one := hello("sleeper")
	for path, body := range map[string]any{"/runs": one, "/threads/" + w.thread() + "/runs": one,
		"/runs/batch": []object{hello("sleeper"), hello("sleeper")}} {
		var ids [][]string
		for _, key := range []string{"k", "k", "l"} {
			_, text, _ := w.do("POST", path, body, "Idempotency-Key", key+path)
			ids = append(ids, regexp.MustCompile(`"run_id":"[^"]*"`).FindAllString(text, -1))
		}
		first, again, other := ids[0], ids[1], ids[2]
		slices.Sort(first)
		slices.Sort(again)
		if len(first) == 0 || !slices.Equal(first, again) || len(slices.Compact(slices.Clone(first))) != len(again) {
			t.Errorf("POST %s with one key = %v and %v, want the same runs", path, first, again)
		}
		if onThread := strings.HasPrefix(path, "/threads/"); onThread != (len(other) == 0) {
			t.Errorf("POST %s with another key = %v", path, other)
		}
		for _, id := range other {
			if slices.Contains(first, id) {
				t.Errorf("POST %s with another key = %v, want runs other than %v", path, other, first)
			}
		}
	}
}

// A call with a key answers several interrupts at once.
func TestCallWithKeyAnswersSeveralInterrupts(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	at := "/threads/" + w.thread() + "/runs/wait"
	resume := object{}
	for _, asked := range w.get("POST", at, hello("signals"))["__interrupt__"].([]any) {
		i := asked.(object)
		resume[i["id"].(string)] = "to " + i["value"].(object)["name"].(string)
	}
	status, text, _ := w.do("POST", at, object{"assistant_id": "signals", "command": object{"resume": resume}},
		"Idempotency-Key", "k")
	if status != 200 || !strings.Contains(text, `"a":"to a"`) || !strings.Contains(text, `"b":"to b"`) {
		t.Errorf("answers to %v with a key = %d %s, want both taken", resume, status, text)
	}
}
