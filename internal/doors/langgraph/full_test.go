package langgraph_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
)

// A tenant has as many streams as it may. Who joins a run is refused and can try again. A run that was
// just started has its answer begin at once and go on once there is room: a refusal would have the
// caller start another run.
func TestAnswerWaitsForRoomForItsStream(t *testing.T) {
	w := newWorld(t)
	w.kinds()
	th := w.thread()
	asleep := w.get("POST", "/threads/"+th+"/runs", hello("sleeper"))["run_id"].(string)
	limit := func(n int64) {
		t.Helper()
		if _, err := admin.New(w.Client()).ChangeTenant(w.Ctx, embedded.DefaultTenant,
			api.ChangeTenant{Limits: &perdure.TenantLimitChanges{MaxStreams: &n}}); err != nil {
			t.Fatal(err)
		}
	}
	limit(1)
	held := w.open("GET", "/threads/"+th+"/runs/"+asleep+"/stream", "")
	defer held.Body.Close()
	for _, how := range []string{"stream", "join"} {
		if status, text, h := w.do("GET", "/threads/"+th+"/runs/"+asleep+"/"+how, nil); status != 429 ||
			h.Get("Retry-After") == "" {
			t.Errorf("%s without room for a stream = %d %s, want 429 with Retry-After", how, status, text)
		}
	}
	body := `{"assistant_id":"echo","input":{"messages":[{"role":"user","content":"hi"}]}}`
	var answers []*http.Response
	for _, how := range []string{"stream", "wait"} {
		res := w.open("POST", "/threads/"+w.thread()+"/runs/"+how, body)
		defer res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s of a new run without room = %d, want 200 at once", how, res.StatusCode)
		}
		answers = append(answers, res)
	}
	limit(10)
	for _, res := range answers {
		if text := w.read(res); !strings.Contains(text, "42") {
			t.Errorf("the answer that waited for room = %s, want that of the run", text)
		}
	}
}
