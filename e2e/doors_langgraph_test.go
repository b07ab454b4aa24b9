package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// langgraphVersions are the SDKs in clients/package.json.
var langgraphVersions = []string{"1.12", "1.15", "2.0"}

// The SDK of the LangGraph Platform gets every answer whole and once, and each run is executed once: whatever
// is cut or killed in between.
func TestLangGraphClients(t *testing.T) {
	for _, store := range []string{"SQLite", "PostgreSQL"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := []string{"--doors", "langgraph"}
			if store == "PostgreSQL" {
				args = append(args, "--store", pgtest.New(t))
			}
			w := newDoorWorld(t, newNode(t, args...), "langgraph", langgraphVersions)
			var apps []string
			if store == "SQLite" { // the store makes no difference to their calls
				apps = []string{"apps"}
			}
			whole := w.each("whole", apps...)
			if len(apps) > 0 {
				w.langgraphTabs()
			}
			w.langgraphReset()
			for v, facts := range whole {
				list := facts()
				n := slices.IndexFunc(list, func(f obj) bool { return f["frames"] != nil })
				if len(apps) > 0 {
					w.langgraphApps(v, list[n+2:])
				}
				w.langgraphRest(v, list[:n])
				w.langgraphCuts(v, list[n])
				w.mu.Lock()
				posts := w.posts["reset-"+v]
				w.mu.Unlock()
				if want := lostAnswer[v]; list[n+1]["reset"] != want.text || posts != want.posts {
					t.Errorf("langgraph %s that has lost an answer = %v after %d posts, want %v", v, list[n+1], posts,
						want)
				}
			}
			w.langgraphAway(syscall.SIGKILL)
			w.langgraphExecutions(len(apps) * len(tabVersions))
		})
	}
}

// tabVersions are those whose useStream is tried.
var tabVersions = []string{"1.12", "1.15"}

// langgraphTabs lets the runs go on whose callers have closed their tabs.
func (w *doorWorld) langgraphTabs() {
	for _, v := range tabVersions {
		eventually.True(w.t, "the tab of langgraph "+v+" is closed", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.calls["closed-"+v] > 0
		})
		close(w.gate("paused tab " + v))
	}
}

// langgraphApps checks what is built on the SDK: the calls of useStream, whose closed tab ends no run though it
// asks for that, and the tools of deepagents.
func (w *doorWorld) langgraphApps(v string, facts []obj) {
	var want []string
	if slices.Contains(tabVersions, v) {
		want = append(want, `{"again":"`+alphabet+`","answer":"`+alphabet+`","asked":"cancel","history":1,`+
			`"queued":["pending","interrupted"],"status":"success","told":true}`)
	}
	if v == "1.15" {
		want = append(want, `{"cancelled":"interrupted","checked":"running","found":"found: Paris",`+
			`"listed":["running"],"lists":["success","cancelled"],"updated":true}`)
	}
	if len(facts) != len(want) {
		w.t.Fatalf("langgraph %s told %d facts of apps, want %d", v, len(facts), len(want))
	}
	for i, f := range facts {
		if got, _ := json.Marshal(f); string(got) != want[i] {
			w.t.Errorf("langgraph %s = %s, want %s", v, got, want[i])
		}
	}
}

// lostAnswer is what a version does that has lost the answer to a call which waits: 1.12 posts again.
var lostAnswer = map[string]struct {
	text  string
	posts int
}{"1.12": {"the answer", 2}, "1.15": {"an error", 1}, "2.0": {"an error", 1}}

// langgraphReset lets the runs go on whose callers have lost the answer, once all have posted as often as they do.
func (w *doorWorld) langgraphReset() {
	for _, v := range w.versions {
		eventually.True(w.t, "langgraph "+v+" has lost its answer", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.executed["gated reset "+v] > 0 && w.posts["reset-"+v] >= lostAnswer[v].posts
		})
		close(w.gate("gated reset " + v))
	}
}

// langgraphCuts checks streams that were cut at every frame of an answer of more than 30.
func (w *doorWorld) langgraphCuts(v string, f obj) {
	frames, _ := f["frames"].(float64)
	if differ, _ := f["differ"].([]any); frames < 30 || len(differ) > 0 || f["text"] != alphabet ||
		f["answer"] != alphabet || f["posted"] != true || f["postedText"] != alphabet {
		w.t.Errorf("langgraph %s with cut streams = %v, want the same frames after each cut", v, f)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < int(frames); i++ {
		if path := fmt.Sprintf("cut%d-%s", i, v); w.calls[path] < 2 {
			w.t.Errorf("langgraph %s called %s %d times, want a second call after the cut", v, path, w.calls[path])
		}
	}
	if path := "cut20-post-" + v; w.posts[path] != 1 || w.calls[path] < 2 {
		w.t.Errorf("langgraph %s posted %d times in %d calls, want one run that it attaches to again", v,
			w.posts[path], w.calls[path])
	}
}

// langgraphRest checks threads, interrupts, cancels and refusals, which no version posts again.
func (w *doorWorld) langgraphRest(v string, facts []obj) {
	want := []string{`{"copied":true,"found":[true],"taken":409,"thread":true}`,
		`{"action":{"to":"Ada"},"after":"idle","answer":"paid: true","state":true,"thread":"interrupted",` +
			`"title":"Pay?"}`,
		`{"busy":422,"cancelled":"interrupted"}`,
		`{"alone":"` + alphabet + `","kinds":["gated","letters","paused","pays","researches","stuck","tools"],` +
			`"refused":[404,404,401]}`}
	for i, f := range facts {
		if got, _ := json.Marshal(f); string(got) != want[i] {
			w.t.Errorf("langgraph %s = %s, want %s", v, got, want[i])
		}
	}
	if len(facts) != len(want) {
		w.t.Errorf("langgraph %s told %d facts, want %d", v, len(facts), len(want))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, n := range map[string]int{"taken-": 1, "busy-": 1, "refused-": 3} {
		if w.posts[path+v] != n {
			w.t.Errorf("langgraph %s posted %s%d times, want %d: no refusal is posted again", v, path, w.posts[path+v],
				n)
		}
	}
}

// langgraphAway ends the server while clients follow streams, and while they wait.
func (w *doorWorld) langgraphAway(sig syscall.Signal) {
	mode := fmt.Sprintf("signal%d", sig)
	facts := w.each("away", mode)
	for _, v := range w.versions {
		eventually.True(w.t, "the stream of langgraph "+v+" has begun", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.frames[mode+"stream-"+v] > 3
		})
	}
	restart := func() {
		back := make(chan struct{})
		w.mu.Lock()
		w.back = back
		w.mu.Unlock()
		w.n.kill(sig)
		w.n.start()
		close(back)
	}
	restart()
	for _, v := range w.versions {
		close(w.gate("paused " + mode + " " + v))
	}
	for _, v := range w.versions {
		eventually.True(w.t, "the run that langgraph "+v+" waits for", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.executed["gated "+mode+" "+v] > 0 && w.answers[mode+"wait-"+v] > 0
		})
	}
	restart()
	for _, v := range w.versions {
		close(w.gate("gated " + mode + " " + v))
		want := []string{`{"answer":"` + alphabet + `","same":true,"text":"` + alphabet + `"}`,
			`{"answer":"the answer","broke":true,"messages":["` + mode + `"],"runs":1}`}
		for i, f := range facts[v]() {
			if got, _ := json.Marshal(f); string(got) != want[i] {
				w.t.Errorf("langgraph %s, %s = %s, want %s", v, mode, got, want[i])
			}
		}
		w.mu.Lock()
		if stream, wait := w.posts[mode+"stream-"+v], w.posts[mode+"wait-"+v]; stream != 1 || wait != 1 {
			w.t.Errorf("langgraph %s, %s posted %d streams and %d waits, want one each", v, mode, stream, wait)
		}
		w.mu.Unlock()
	}
}

// langgraphExecutions checks that each run was executed once.
func (w *doorWorld) langgraphExecutions(more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, n := range w.executed {
		if n != 1 {
			w.t.Errorf("%q was executed %d times, want once", name, n)
		}
	}
	if want := 6*len(w.versions) + more; len(w.executed) != want {
		w.t.Errorf("%d runs were executed, want %d: %v", len(w.executed), want, w.executed)
	}
}
