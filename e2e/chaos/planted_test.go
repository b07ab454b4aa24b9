package chaos

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// The instants of hand-made histories are seconds. Both clocks begin at zero.
const second = int64(time.Second)

// at makes an operation of a client or a worker that has one answer.
func at(from, to float64, o Op) Op {
	o.Begin, o.End = int64(from*float64(second)), int64(to*float64(second))
	if o.Answer == unknown && o.Code == "" {
		o.Answer = ok
	}
	return o
}

// line makes a line of a log.
func line(sec float64, epoch int64, t perdure.LineType, data string) Line {
	return Line{At: int64(sec * 1e6), Epoch: epoch, Type: t, Data: data}
}

// sound is a history in which every promise is kept: a worker loses its lease, another one completes the run.
// The first one's result comes too late. A second run ends by its deadline.
func sound() *History {
	clock := new(clocks)
	clock.samples = []sample{{0, 0}}
	lines := func(lines ...Line) []Line {
		for i := range lines {
			lines[i].Seq = int64(i + 1)
		}
		return lines
	}
	run := &StoredRun{Key: "k", Kind: "loop", State: "completed", Result: `"a"`, Epoch: 3, DeadlineAt: 60e6,
		EndedAt: 12e6, Journal: map[string]bool{"book#1": true}, Signals: map[string][]int64{`"a"`: {1}},
		Lines: lines(line(1, 0, perdure.LineCreated, ""), line(2, 1, perdure.LineDispatched, ""),
			line(8, 2, perdure.LineReclaimed, `{"reason":"lease_lost"}`), line(8, 2, perdure.LineRetrying, ""),
			line(9, 3, perdure.LineDispatched, ""), line(12, 3, perdure.LineCompleted, ""))}
	late := &StoredRun{Key: "l", Kind: "stubborn", State: "timeout", Epoch: 2, DeadlineAt: 20e6, EndedAt: 20.5e6,
		Journal: map[string]bool{}, Signals: map[string][]int64{},
		Lines: lines(line(2, 0, perdure.LineCreated, ""), line(3, 1, perdure.LineDispatched, ""),
			line(20.5, 2, perdure.LineTimedOut, `{"error":{"code":"deadline_exceeded"}}`))}
	h := &History{Clocks: clock, Policy: timing, Up: []span{{0, 100 * second}},
		Stored: &Stored{Runs: map[string]*StoredRun{"r": run, "s": late}}, Ops: []Op{
			at(0.9, 1.1, Op{Call: submit, By: "c", Run: "r", Key: "k"}),
			at(1.9, 2.1, Op{Call: submit, By: "c", Run: "s", Key: "l"}),
			at(1.5, 2.2, Op{Call: grant, By: "w1", Run: "r", Epoch: 1}),
			at(2.9, 3.1, Op{Call: grant, By: "w1", Run: "s", Epoch: 1}),
			at(3, 3.1, Op{Call: signal, By: "c", Run: "r", Key: "a", Value: `"a"`}),
			at(5, 5.1, Op{Call: beat, By: "w1", Run: "r", Epoch: 1}),
			at(7, 7.1, Op{Call: read, By: "c", Run: "r", Epoch: 1, State: "running"}),
			at(8.5, 9.1, Op{Call: grant, By: "w2", Run: "r", Epoch: 3}),
			at(9.2, 9.3, Op{Call: effect, By: "w2", Run: "r", Epoch: 3, Key: "r/book#1", State: "book#1",
				Applied: true}),
			at(9.4, 9.5, Op{Call: commit, By: "w2", Run: "r", Epoch: 3, Key: "c1", Keys: []string{"book#1"}}),
			at(10, 10.1, Op{Call: commit, By: "w1", Run: "r", Epoch: 1, Key: "late", State: "complete", Value: `"b"`,
				Answer: refused, Code: "stale_epoch"}),
			// The answer of the first time is lost, and the second time is after the end.
			{Call: commit, By: "w2", Run: "r", Epoch: 3, Key: "c2", State: "complete", Value: `"a"`,
				Begin: 11 * second},
			at(13, 13.1, Op{Call: commit, By: "w2", Run: "r", Epoch: 3, Key: "c2", State: "complete", Value: `"a"`}),
			at(14, 14.1, Op{Call: read, By: "c", Run: "r", Epoch: 3, State: "completed"}),
		}}
	for i, l := range run.Lines {
		h.Ops = append(h.Ops, at(15+float64(i), 15+float64(i), Op{Call: frame, By: "follower", Run: "r", Key: "f",
			Seq: l.Seq, State: string(l.Type), Value: string(rune('a' + i))}))
	}
	return h
}

// find returns the operation with these properties.
func (h *History) find(c call, by string) *Op {
	i := slices.IndexFunc(h.Ops, func(o Op) bool { return o.Call == c && o.By == by })
	return &h.Ops[i]
}

func TestSoundHistoryHasNoViolation(t *testing.T) {
	h := sound()
	for _, v := range h.check() {
		t.Errorf("%s", v)
	}
	if h.Checked.Leases != 2 || h.Checked.Frames != 6 || h.Checked.Effects != 1 || h.Checked.Acknowledged < 5 {
		t.Errorf("looked at %+v, want both leases, six lines, an effect and five acknowledgements", h.Checked)
	}
}

// Every rule finds the violation that is planted for it.
func TestPlantedViolationsAreFound(t *testing.T) {
	for name, x := range map[string]struct {
		rule, says string
		plant      func(h *History)
	}{
		"a lost run": {"acknowledged", "not in the store", func(h *History) { delete(h.Stored.Runs, "s") }},
		"a lost signal": {"acknowledged", "0 times", func(h *History) {
			h.Stored.Runs["r"].Signals = map[string][]int64{}
		}},
		"a lost step": {"acknowledged", "not in the journal", func(h *History) {
			h.Stored.Runs["r"].Journal = map[string]bool{}
		}},
		"a lost result": {"acknowledged", `result "a" was acknowledged`, func(h *History) {
			h.Stored.Runs["r"].Result = `"b"`
		}},
		"a lost cancel request": {"acknowledged", "cancel request", func(h *History) {
			h.Ops = append(h.Ops, at(4, 4.1, Op{Call: cancel, By: "c", Run: "r"}))
		}},
		"two runs of a key": {"acknowledged", "as run r before", func(h *History) {
			h.Ops = append(h.Ops, at(4, 4.1, Op{Call: submit, By: "c", Run: "s", Key: "k"}))
		}},
		"signals out of order": {"acknowledged", "in this order", func(h *History) {
			h.Ops = append(h.Ops, at(4, 4.1, Op{Call: signal, By: "c", Run: "r", Key: "b", Value: `"b"`}))
			h.Stored.Runs["r"].Signals[`"b"`] = []int64{2}
			h.Stored.Runs["r"].Result = `"b a"`
			for i := range h.Ops {
				if h.Ops[i].Value == `"a"` && h.Ops[i].Call == commit {
					h.Ops[i].Value = `"b a"`
				}
			}
		}},
		"a phantom run": {"phantoms", "nobody submitted", func(h *History) {
			r := *h.Stored.Runs["s"]
			r.Key = "ghost"
			h.Stored.Runs["x"] = &r
		}},
		"a phantom child": {"phantoms", "nobody spawned", func(h *History) {
			r := *h.Stored.Runs["s"]
			r.Parent, r.JournalKey = "r", "job#1"
			h.Stored.Runs["x"] = &r
		}},
		"a phantom step": {"phantoms", "recorded by nobody", func(h *History) {
			h.Stored.Runs["r"].Journal["book#2"] = true
		}},
		"a phantom result": {"phantoms", "sent by nobody", func(h *History) {
			for i := range h.Ops {
				if h.Ops[i].Key == "c2" {
					h.Ops[i].State = "fail"
				}
			}
		}},
		"a doubled signal": {"phantoms", "2 times", func(h *History) {
			h.Stored.Runs["r"].Signals[`"a"`] = []int64{1, 2}
		}},
		"a doubled run": {"phantoms", "has another run", func(h *History) {
			r := *h.Stored.Runs["s"]
			h.Stored.Runs["x"] = &r
		}},
		"a stale result that was accepted": {"log", "did not hold", func(h *History) {
			h.Stored.Runs["r"].Lines[5].Epoch = 1
		}},
		"a stale commit that was accepted": {"leases", "no order", func(h *History) {
			o := h.find(commit, "w1")
			o.Answer, o.Code = ok, ""
		}},
		"an epoch that was granted twice": {"log", "granted before", func(h *History) {
			h.Stored.Runs["r"].Lines[4].Epoch = 1
		}},
		"two holders at once": {"leases", "no order", func(h *History) {
			h.Ops = append(h.Ops, at(9.6, 9.7, Op{Call: beat, By: "w1", Run: "r", Epoch: 1}))
		}},
		"a holder that was refused": {"leases", "no order", func(h *History) {
			h.Ops = append(h.Ops, at(9.6, 9.7, Op{Call: beat, By: "w2", Run: "r", Epoch: 3, Answer: refused,
				Code: "stale_epoch"}))
		}},
		"a grant that is repeated though its holder was heard from": {"leases", "no order", func(h *History) {
			r := h.Stored.Runs["r"]
			r.Lines[2] = Line{Seq: 3, At: 8e6, Epoch: 2, Type: perdure.LineDispatched}
		}},
		"an old state that was read": {"leases", "no order", func(h *History) {
			h.Ops = append(h.Ops, at(16, 16.1, Op{Call: read, By: "c", Run: "r", Epoch: 3, State: "running"}))
		}},
		"a lease that was taken away early": {"thefts", "before its end", func(h *History) {
			h.find(beat, "w1").Begin = 6 * second
			h.find(beat, "w1").End = 6*second + 1
		}},
		"a gap in a log": {"log", "want line 3", func(h *History) {
			r := h.Stored.Runs["r"]
			r.Lines = slices.Delete(r.Lines, 2, 3)
		}},
		"a line after the end": {"log", "follows the end", func(h *History) {
			r := h.Stored.Runs["r"]
			r.Lines = append(r.Lines, Line{Seq: 7, At: 13e6, Epoch: 4, Type: perdure.LineDispatched})
		}},
		"a run without an end": {"log", "has not ended", func(h *History) {
			r := h.Stored.Runs["s"]
			r.Lines = r.Lines[:2]
		}},
		"a gap in a stream": {"streams", "a gap", func(h *History) {
			i := slices.IndexFunc(h.Ops, func(o Op) bool { return o.Call == frame && o.Seq == 3 })
			h.Ops = slices.Delete(h.Ops, i, i+1)
		}},
		"a repetition in a stream": {"streams", "a repetition", func(h *History) {
			i := slices.IndexFunc(h.Ops, func(o Op) bool { return o.Call == frame && o.Seq == 3 })
			h.Ops = slices.Insert(h.Ops, i, h.Ops[i])
		}},
		"a stream that differs from the log": {"streams", "in the log", func(h *History) {
			h.find(frame, "follower").State = "run:started"
		}},
		"a line that differs for two followers": {"streams", "another one", func(h *History) {
			h.Ops = append(h.Ops, at(30, 30, Op{Call: frame, By: "follower", Run: "r", Key: "g", Seq: 1,
				State: string(perdure.LineCreated), Value: "other"}))
		}},
		"a stream that stops early": {"streams", "did not go on", func(h *History) {
			h.Ops = h.Ops[:len(h.Ops)-1]
		}},
		"a late end": {"deadlines", "after its deadline", func(h *History) { h.Stored.Runs["s"].end(22.2) }},
		"a late end after a short gap": {"deadlines", "after its deadline", func(h *History) {
			h.Up = []span{{0, 19 * second}, {22 * second, 100 * second}}
			h.Stored.Runs["s"].end(25.2)
		}},
		"an early timeout": {"deadlines", "before its deadline", func(h *History) { h.Stored.Runs["s"].end(19.9) }},
		"a run with one attempt that was executed twice": {"effects", "executed twice", func(h *History) {
			for _, from := range []float64{4, 5} {
				h.Ops = append(h.Ops, at(from, from, Op{Call: execute, By: "w1", Run: "s", Epoch: 1, Once: true}))
			}
		}},
		"an effect that happened twice": {"effects", "happened twice", func(h *History) {
			o := *h.find(effect, "w2")
			h.Ops = append(h.Ops, at(9.35, 9.36, o))
		}},
		"a step with two keys": {"effects", "two keys", func(h *History) {
			o := *h.find(effect, "w2")
			o.Key = "r/other"
			h.Ops = append(h.Ops, at(9.35, 9.36, o))
		}},
		"a recorded step that was executed again": {"effects", "executed again", func(h *History) {
			o := *h.find(effect, "w2")
			o.Applied = false
			h.Ops = append(h.Ops, at(9.6, 9.7, o))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			x.plant(h)
			found := h.check()
			if !slices.ContainsFunc(found, func(v violation) bool {
				return v.Rule == x.rule && strings.Contains(v.Text, x.says)
			}) {
				t.Errorf("found %v, want a violation of %s with %q", found, x.rule, x.says)
			}
		})
	}
}

// end moves the end of a run.
func (r *StoredRun) end(sec float64) { r.Lines[len(r.Lines)-1].At = int64(sec * 1e6) }

// An answer that the rules of SPEC allow is no violation.
func TestAllowedHistoriesHaveNoViolation(t *testing.T) {
	for name, allow := range map[string]func(h *History){
		"a late end while no node could do its work": func(h *History) {
			h.Up = []span{{0, 15 * second}, {40 * second, 100 * second}}
			h.Stored.Runs["s"].end(42.5)
		},
		"a grant that is repeated because its holder was not heard from": func(h *History) {
			r := h.Stored.Runs["r"]
			h.Ops = slices.DeleteFunc(h.Ops, func(o Op) bool { return o.Call == beat || o.Call == frame })
			r.Lines[2] = Line{Seq: 3, At: 8e6, Epoch: 2, Type: perdure.LineDispatched}
			r.Lines[3] = Line{Seq: 4, At: 8.5e6, Epoch: 2, Type: perdure.LineProgress}
		},
		"a step that its former holder executes again": func(h *History) {
			o := *h.find(effect, "w2")
			o.By, o.Epoch, o.Applied = "w1", 1, false
			h.Ops = append(h.Ops, at(9.8, 9.9, o))
		},
		"a commit that is repeated after the lease was lost": func(h *History) {
			o := at(5.5, 5.6, Op{Call: commit, By: "w1", Run: "r", Epoch: 1, Key: "c0"})
			again := at(9.6, 9.7, o)
			o.Answer, o.End = unknown, 0
			h.Ops = append(h.Ops, o, again)
		},
		"calls without an answer": func(h *History) {
			for _, o := range []Op{{Call: beat, By: "w1", Run: "r", Epoch: 1}, {Call: submit, By: "c", Key: "k"},
				{Call: commit, By: "w1", Run: "r", Epoch: 1, Key: "c9", Keys: []string{"book#7"}}} {
				o.Begin = 9 * second
				h.Ops = append(h.Ops, o)
			}
		},
		"a cancel request of a run that has ended": func(h *History) {
			h.Ops = append(h.Ops, at(13, 13.5, Op{Call: cancel, By: "c", Run: "r"}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			allow(h)
			for _, v := range h.check() {
				t.Errorf("%s", v)
			}
		})
	}
}

// The shortest part of a history that does not fit has the operations that contradict each other.
func TestShortestPartOfAViolation(t *testing.T) {
	h := sound()
	h.Ops = append(h.Ops, at(9.6, 9.7, Op{Call: beat, By: "w1", Run: "r", Epoch: 1}))
	for _, v := range h.check() {
		if v.Rule == "leases" && (strings.Count(v.Text, "\n") > 9 || strings.Contains(v.Text, "run:completed") ||
			!strings.Contains(v.Text, "w1       beat")) {
			t.Errorf("the report is\n%s\nwant the heartbeat and the grant before it, and little else", v.Text)
		}
	}
}

// The same seed gives the same plan, and a plan has every fault.
func TestPlanHasEveryFault(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		for _, nats := range []bool{true, false} {
			plan := newPlan(seed, time.Second, nodeCount, workerCount, nats)
			if !slices.Equal(plan, newPlan(seed, time.Second, nodeCount, workerCount, nats)) {
				t.Fatalf("seed %d gives two plans", seed)
			}
			for _, f := range wants(nats) {
				if !slices.ContainsFunc(plan, func(s step) bool { return s.Fault == f }) {
					t.Errorf("the plan of seed %d has no %s", seed, f)
				}
			}
			overlaps := 0
			for i, s := range plan {
				for _, next := range plan[i+1:] {
					if next.At < s.At+s.For {
						overlaps++
					}
				}
			}
			if overlaps < 5 {
				t.Errorf("in the plan of seed %d, %d pairs of faults overlap, want at least 5", seed, overlaps)
			}
		}
	}
}

// A history that is read from a file has the operations without an answer, and survives a cut-off line.
func TestHistoryOfKilledProcess(t *testing.T) {
	path := t.TempDir() + "/history"
	r := openRecorder(t, path)
	done := r.begin(Op{Call: beat, Run: "r", Epoch: 1}, Op{Call: beat, Run: "s", Epoch: 2})
	r.begin(Op{Call: commit, Run: "r", Epoch: 1})
	done(Op{Call: beat, Run: "r", Epoch: 1, Answer: ok}, Op{Call: beat, Run: "s", Epoch: 2, Answer: refused})
	r.file.WriteString(`{"op":"com`)
	got, err := readHistory(path)
	if err != nil || len(got) != 3 || got[0].Answer != ok || got[1].Answer != refused ||
		got[2].Answer != unknown || got[0].End == 0 || got[2].End != 0 || got[2].Begin == 0 {
		t.Errorf("history = %v (%v), want an accepted and a refused heartbeat, and a commit without an answer", got,
			err)
	}
}

// A lease that a heartbeat could not extend, because its row was locked, is neither renewed nor lost.
func TestLockedLeaseIsNotRenewed(t *testing.T) {
	ops := []Op{{Call: beat, Run: "r", Epoch: 1}, {Call: beat, Run: "s", Epoch: 2}}
	lost([]byte(`{"lost":[],"cancel":[],"later":[{"run_id":"s","epoch":2,"error":{"code":"unavailable"}}]}`), ops)
	if ops[0].Answer != ok || ops[1].Answer != refused || ops[1].aboutLease() {
		t.Errorf("heartbeats = %v, want the first accepted, and the second refused without news of its lease", ops)
	}
}

// openRecorder makes a recorder with a file.
func openRecorder(t *testing.T, path string) *recorder {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &recorder{file: file}
}
