package httpd

import (
	"fmt"
	"strings"
	"testing"
)

// defect is the outcome of an execution that fails by a fault of the code.
const defect = `"outcome":{"type":"fail","error":{"code":"panic","message":"it broke"},"defect":true}`

// held makes a run that is on hold. It has a queue of its own, so that other calls do not lease it.
func (w *world) held() string {
	w.t.Helper()
	w.start(`{"kind":"agent","queue":"held"}`)
	g := w.lease("w", `,"start":true,"queues":["held"],"build":"v1"`)
	w.commits(g, defect)
	return g["run_id"].(string)
}

// pollHeld gives how many runs a build gets.
func (w *world) pollHeld(build string) int {
	w.t.Helper()
	more := ""
	if build != "" {
		more = `,"build":"` + build + `"`
	}
	polled := w.do("POST", "/api/v1/workers/w/poll", `{"slots":5,"wait":"0s","start":true,"queues":["held"]`+more+`}`)
	return len(polled.is(200)["runs"].([]any))
}

func TestHeldRunIsShownAndGoesToAnotherBuild(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.held()
	run := w.get(runs + "/" + id).is(200)
	hold, _ := run["hold"].(obj)
	if hold == nil || run["state"] != "queued" || run["attempt"] != 1.0 || hold["code"] != "panic" ||
		hold["count"] != 1.0 ||
		hold["message"] != "it broke" || fmt.Sprint(hold["builds"]) != "[v1]" || hold["since"] == nil ||
		hold["until"] == nil ||
		hold["next_at"] == nil {
		t.Errorf("run %s: %v, want it queued and held by v1", id, run)
	}
	if got := w.get(runs + "/" + id + "/activity").is(200)["hold"]; got == nil {
		t.Error("the activity of a held run has no hold")
	}
	events := w.events(id)
	last := events[len(events)-1]
	if data := last["data"].(obj); last["type"] != "run:held" || data["code"] != "panic" || data["build"] != "v1" {
		t.Errorf("last event of run %s: %v, want run:held of v1", id, last)
	}
	for _, x := range []struct {
		build string
		want  int
	}{{"v1", 0}, {"", 0}, {"v2", 1}} {
		if got := w.pollHeld(x.build); got != x.want {
			t.Errorf("build %q gets %d runs, want %d", x.build, got, x.want)
		}
	}
	if hold := w.get(runs + "/" + id).is(200)["hold"].(obj); hold["next_at"] != nil {
		t.Errorf("hold of a run that is tried: %v, want no next_at", hold)
	}
	w.do("POST", runs+"/"+id+"/release-hold", "").refuses(409, "wrong_state")
}

func TestHoldIsReleasedOrGivenUp(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.held()
	if run := w.do("POST", runs+"/"+id+"/release-hold", "").is(200); run["hold"] != nil || run["state"] != "queued" {
		t.Errorf("run %s after its release: %v, want it queued and not on hold", id, run)
	}
	if got := w.pollHeld("v1"); got != 1 {
		t.Errorf("the build that held the run gets %d runs after the release, want 1", got)
	}
	w.do("POST", runs+"/"+id+"/dead-letter", "").refuses(409, "wrong_state")
	w.do("POST", runs+"/nobody/dead-letter", "").refuses(404, "not_found")

	id = w.held()
	run := w.do("POST", runs+"/"+id+"/dead-letter", "").is(200)
	if run["state"] != "failed" || run["error"].(obj)["code"] != "panic" || run["hold"] != nil {
		t.Errorf("run %s that was given up: %v, want it failed with panic", id, run)
	}
	w.get("/api/v1/dlq/" + id).is(200)
}

// Followers of a run that is on hold are told that the hold was released, and by which key.
func TestFeedTellsOfAReleasedHold(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.held()
	v := w.view(false)
	v.say(`{"type":"watch","id":"one","of":"runs","ids":["%s"],"events":true}`, id)
	v.until(func() bool { return v.rows["one"][id]["hold"] != nil })
	w.do("POST", runs+"/"+id+"/release-hold", "").is(200)
	v.until(func() bool { return v.rows["one"][id]["hold"] == nil })
	events := w.events(id)
	last := events[len(events)-1]
	if by := last["data"].(obj)["by"]; last["type"] != "run:hold_released" || by == nil || by == "" {
		t.Errorf("last line of run %s after its release = %v, want run:hold_released with the key", id, last)
	}
}

func TestDefectAndBuildAreChecked(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	w.commit(g, `"outcome":{"type":"fail","error":{"code":"x"},"defect":true,"retryable":false}`).refuses(400,
		"invalid")
	w.commit(g, `"outcome":{"type":"complete","defect":true}`).refuses(400, "invalid")
	w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"0s","build":"%s"}`, strings.Repeat("x", 201)).
		refuses(400, "invalid")
}
