package journal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// entries returns journal entries of lines: a key, a space and a value.
func entries(lines ...string) (out []api.JournalEntry) {
	for _, line := range lines {
		key, value, _ := strings.Cut(line, " ")
		out = append(out, api.JournalEntry{Key: key, Value: json.RawMessage(value)})
	}
	return out
}

// load reads a journal.
func load(t *testing.T, firstEpoch int64, lines ...string) (*Record, *Cursor) {
	t.Helper()
	r, at, err := Load(entries(lines...), firstEpoch)
	if err != nil {
		t.Fatal(err)
	}
	return r, at
}

// An execution may begin something new when it has asked for all that is recorded in its branch.
func TestBeginFindsWhatWasNotAskedFor(t *testing.T) {
	const (
		a     = `a#1 {"ok":1}`
		b     = `b#1 {"ok":2}`
		aside = `s#1 {"aside":true,"ok":3}`
		item  = `p#1/0 {"aside":true,"ok":3}`
		left  = `left#1//a#1 {"ok":1}`
		begun = `_frame:1.1 {"branches":["left#1"]}`
		kid   = `_frame:1.2 {"spawned":{"kid#1":"d"}}`
		over  = `_frame:1.3 {"in":[{"seq":1,"type":"signal","wait":"signal:go#1"}]}`
		join  = `_frame:1.4 {"in":[{"seq":2,"type":"wait","wait":"join:all:00#1"}]}`
		named = `_frame:1.5 {"now":{"t#1":1},"uuid":{"u#1":"x"}}`
		saga  = `_saga:trip#1 {"ok":true}`
		fails = `_saga:trip#1 {"error":{"code":"c","message":"m"}}`
	)
	for _, row := range []struct {
		name    string
		journal []string
		visits  string // things, with commas between
		branch  string
		missed  string
		left    string // what is left at the end
	}{
		{"an empty journal", nil, "", "", "", ""},
		{"all is asked for", []string{a, b}, "step a#1,step b#1", "", "", ""},
		{"in another order", []string{a, b}, "step b#1,step a#1", "", "", ""},
		{"one is not", []string{a, b}, "step a#1", "", "step b#1", "step b#1"},
		{"the first is not", []string{a, b}, "step b#1", "", "step a#1", "step a#1"},
		{"another is asked for", []string{a}, "step c#1", "", "step a#1", "step a#1"},
		{"an item of a Parallel", []string{item}, "", "", "step p#1/0", "step p#1/0"},
		{"a goroutine of an earlier release", []string{aside}, "", "", "", "step s#1"},
		{"a child", []string{kid}, "", "", "spawn kid#1", "spawn kid#1"},
		{"a wait that is over", []string{over}, "", "", "wait signal:go#1", "wait signal:go#1"},
		{"the wait of a join", []string{join}, "", "", "", ""},
		{"a time", []string{named}, "UUID u#1", "", "time t#1", "time t#1"},
		{"a saga that succeeded", []string{saga}, "", "", "saga trip#1", "saga trip#1"},
		{"a saga that failed", []string{fails}, "", "", "", ""},
		{"a branch that is gone", []string{begun, left}, "", "", "branch left#1", "branch left#1"},
		{"another branch does not count", []string{begun, left}, "branch left#1", "", "", "step left#1//a#1"},
		{"in the branch it counts", []string{begun, left}, "branch left#1", "left#1//", "step left#1//a#1",
			"step left#1//a#1"},
		{"the branch does not mind others", []string{begun, left, b}, "branch left#1,step left#1//a#1", "left#1//", "",
			"step b#1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, at := load(t, 0, row.journal...)
			for _, thing := range strings.Split(row.visits, ",") {
				at.Visit(thing)
			}
			if got := at.Begin(row.branch); got != row.missed {
				t.Errorf("missed when branch %q begins something = %q, want %q", row.branch, got, row.missed)
			}
			if got := at.Left(); got != row.left {
				t.Errorf("left at the end = %q, want %q", got, row.left)
			}
			if !at.Past(row.branch) || at.Replaying(row.branch) {
				t.Error("something new has begun, and the branch is still replaying")
			}
		})
	}
}

// A name that is removed takes off all its things, in whichever branch, and the branches of that name.
func TestRemovedNamesAreNotExpected(t *testing.T) {
	lines := []string{`_frame:1.1 {"branches":["left#1"],"spawned":{"kid#1":"d"}}`, `a#1 {"ok":1}`, `a#2 {"ok":1}`,
		`left#1//a#1 {"ok":1}`, `left#1//deep#1//b#1 {"ok":1}`,
		`_frame:1.2 {"in":[{"seq":1,"type":"signal","wait":"left#1//signal:go#1"}]}`}
	for names, want := range map[string]string{
		"":                          "branch left#1",
		"unknown":                   "branch left#1",
		"left":                      "spawn kid#1",
		"left kid":                  "step a#1",
		"left kid a":                "",
		"kid a go deep":             "branch left#1",
		"kid a signal:go deep left": "",
	} {
		_, at := load(t, 0, lines...)
		for _, name := range strings.Fields(names) {
			at.Remove(name)
		}
		if got := at.Left(); got != want {
			t.Errorf("left after %q are removed = %q, want %q", names, got, want)
		}
	}
}

// A key tells its branch.
func TestBranchOfKey(t *testing.T) {
	for key, want := range map[string]string{
		"a#1": "", "left#1//a#1": "left#1//", "left#1//deep#12//a#1": "left#1//deep#12//", "left#1//p#1/0": "left#1//",
		"a//b#1": "", "http://x#1": "", "left#1//signal:go#1": "left#1//", "left#1//": "left#1//", "": "",
	} {
		if got := BranchOf(key); got != want {
			t.Errorf("branch of %q = %q, want %q", key, got, want)
		}
	}
	if got, want := InBranch("race:", "left#1//join:any#1"), "left#1//race:join:any#1"; got != want {
		t.Errorf("id in the branch = %q, want %q", got, want)
	}
	if parentOf("left#1//deep#2//") != "left#1//" || parentOf("left#1//") != "" {
		t.Errorf("parents = %q and %q", parentOf("left#1//deep#2//"), parentOf("left#1//"))
	}
}

// Signals are taken once and the oldest first, by the wait that they came for, or by the next one of
// their name. One that lost gives back.
func TestInboxGivesEachSignalOnce(t *testing.T) {
	signal := func(seq int64, name, wait string) perdure.Item {
		return perdure.Item{Seq: seq, Type: perdure.ItemSignal, Name: name, WaitID: wait, Data: perdure.Value(`1`)}
	}
	r, at := load(t, 0)
	w := NewWriter(r, at, 2)
	in := NewInbox(w)
	in.Read([]perdure.Item{signal(1, "go", ""), signal(2, "go", "signal:go#1"), signal(3, "stop", "")})
	in.Read([]perdure.Item{signal(3, "stop", ""), signal(4, "go", "")}) // a branch asks at the same time
	take := func(id, name string) int64 {
		if i := in.Take(id, perdure.ItemSignal, name, nil); i != nil {
			return i.Seq
		}
		return 0
	}
	var got []int64
	for _, id := range []string{"signal:go#1", "signal:go#1", "signal:go#2", "signal:go#3", "signal:go#4"} {
		got = append(got, take(id, "go"))
	}
	got = append(got, take("signal:stop#1", "stop"))
	if want := "[2 2 1 4 0 3]"; fmt.Sprint(got) != want {
		t.Errorf("signals taken = %v, want %s", got, want)
	}
	in.Read([]perdure.Item{signal(5, "go", "signal:go#4")})
	in.GiveBack(w.Batch(10), "signal:go#4")
	if !r.Closed("signal:go#4") || take("signal:go#5", "go") != 5 {
		t.Error("a signal that came for a wait that lost was not given back")
	}
}

// An execution's additions are read back by the next one as they were.
func TestWrittenJournalIsReadBack(t *testing.T) {
	r, at := load(t, 0)
	w := NewWriter(r, at, 3)
	in := NewInbox(w)
	w.Branch("left#1")
	w.Step("left#1//a#1", json.RawMessage(`{"ok":1}`), true)
	w.Spawn(perdure.Spawn{Key: "kid#1", Kind: "kid"}, "digest")
	w.Version("v", 2)
	w.Time("t#1", time.UnixMicro(5))
	w.UUID("u#1", "id")
	w.Due("after:1#1", time.UnixMicro(7))
	w.Winner("join:any:00#1", &Winner{First: []string{"kid#1"}}, 1)
	w.Cancel("kid#1")
	w.Expire("left#1//sleep:5#1")
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	in.Read([]perdure.Item{
		{Seq: 1, Type: perdure.ItemChild, Name: "kid#1", From: "run", Outcome: "completed", Data: perdure.Value(deep)}})
	w.Report(at.At(""), Digest("hello"), 5, func(p *perdure.Commit) {})
	var lines []api.JournalEntry
	for {
		b, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			break
		}
		for _, e := range b.Part.Journal {
			lines = append(lines, api.JournalEntry{Key: e.Key, Value: e.Value})
		}
		if done, refused := w.Answered(b, &api.CommitResult{}); len(done) != 1 || refused {
			t.Errorf("an answer ends %d batches, refused = %v, want 1 and false", len(done), refused)
		}
	}
	again, back, err := Load(lines, 0)
	if err != nil {
		t.Fatal(err)
	}
	v, _ := again.Version("v")
	due, _ := again.Due("after:1#1")
	if v != 2 || due.UnixMicro() != 7 || again.Winner("join:any:00#1") == nil || !again.Cancelled("kid#1") ||
		again.Wait("left#1//sleep:5#1") == nil || again.ChildID("kid#1") != "run" {
		t.Errorf("the journal %v is read back as %+v", lines, again)
	}
	if got := string(again.Data(again.End("kid#1"))); got != deep {
		t.Errorf("data of the child = %.50s, want the nested arrays", got)
	}
	if !back.Reports.Made(Message, Start, Digest("hello")) {
		t.Error("the report is not read back")
	}
	for _, thing := range []string{"branch left#1", "step left#1//a#1", "spawn kid#1", "time t#1", "UUID u#1",
		"wait left#1//sleep:5#1"} {
		if !back.Visit(thing) {
			t.Errorf("%s is not expected", thing)
		}
	}
	if missed := back.Left(); missed != "" {
		t.Errorf("left = %q, want nothing", missed)
	}
}

// A child that the server refuses is taken out of its commit, and of the waits for it.
func TestRefusedChildIsDropped(t *testing.T) {
	r, at := load(t, 0)
	w := NewWriter(r, at, 4)
	w.Spawn(perdure.Spawn{Key: "kid#1", Kind: "kid"}, "digest")
	b := w.Suspend([]perdure.WaitSpec{{ID: "join:all:00#1", Type: perdure.WaitChildren, Keys: []string{"kid#1"}}},
		[]string{"join:all:00#1"}, func(perdure.WaitType) bool { return false })
	if next, err := w.Next(); next != b || err != nil {
		t.Fatalf("next batch = %v, %v", next, err)
	}
	refusal := &api.Refusal{Code: perdure.CodeThreadBusy, Field: "children[0].thread_id", Detail: "busy"}
	if done, _ := w.Answered(b, &api.CommitResult{Error: refusal}); len(done) > 0 || !w.More() {
		t.Fatal("the commit is not sent again")
	}
	if !r.Refused("kid#1") || at.Unread() == nil || len(b.Part.Children) > 0 {
		t.Errorf("refused = %v, unread = %v, children = %v", r.Refused("kid#1"), at.Unread(), b.Part.Children)
	}
	if on := b.Part.Outcome.Waits; len(on) != 1 || !strings.HasPrefix(on[0], AgainPrefix) {
		t.Errorf("the run waits for %v, want a wait that ends at once", on)
	}
}

// A retry takes what has ended in its original, and begins the rest anew.
func TestRetryDropsWhatItsOriginalHadNotEnded(t *testing.T) {
	r, _ := load(t, 5, `_frame:2.1 {"spawned":{"kid#1":"a","kid#2":"b"},"opened":["signal:go#1"]}`,
		`_frame:2.2 {"in":[{"seq":1,"type":"child","name":"kid#1","run":"r","outcome":"completed"}]}`,
		`_token:callback:paid#1 "old"`)
	if !r.Inherited("kid#1") || r.Inherited("kid#2") || r.Opened("signal:go#1") {
		t.Errorf("inherited = %v and %v, opened = %v, want true, false, false", r.Inherited("kid#1"),
			r.Inherited("kid#2"), r.Opened("signal:go#1"))
	}
	if _, ok := r.Entry("_token:callback:paid#1"); ok {
		t.Error("the token of the original is kept")
	}
}
