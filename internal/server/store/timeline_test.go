package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// place makes a place with a record.
func place(at, system string, timeline int64, r *timelineRecord) pg.Place {
	pl := pg.Place{At: at, System: system, Timeline: timeline, Has: true, Clock: 1_800_000_000_000_000}
	if r != nil {
		text, err := json.Marshal(map[string]string{metaTimeline: encode(*r)})
		if err != nil {
			panic(err)
		}
		pl.Record = string(text)
	}
	return pl
}

func rec(system string, timeline int64, id string, replaces ...string) *timelineRecord {
	return &timelineRecord{System: system, Timeline: timeline, ID: id, Replaces: replaces}
}

// The first start of a store makes the table of the record. Its session goes on when another one has written
// the record meanwhile, unless that was at another server.
func TestFirstRecordEndsNoSessionOfItsServer(t *testing.T) {
	for _, x := range []struct {
		name  string
		after pg.Place
		ends  bool
	}{
		{"the same server", place("a:1", "s", 1, rec("s", 1, "x")), false},
		{"the same server at another address", place("b:1", "s", 1, rec("s", 1, "x")), false},
		{"its standby, promoted", place("b:1", "s", 2, rec("s", 2, "x")), true},
		{"another server", place("b:1", "q", 1, rec("q", 1, "x")), true},
		{"another server without a table", pg.Place{At: "b:1", System: "q", Timeline: 1}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			tl, err := newTimelines(&Store{log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			admit := func(pl pg.Place) int64 {
				t.Helper()
				n, err := tl.admit(pl, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := admit(pg.Place{At: "a:1", System: "s", Timeline: 1})
			if again := admit(pg.Place{At: "a:1", System: "s", Timeline: 1}); again != before {
				t.Errorf("admission of the same server = %d, want %d", again, before)
			}
			if after := admit(x.after); (after != before) != x.ends {
				t.Errorf("admissions = %d, then %d; the first session ends: want %t", before, after, x.ends)
			}
		})
	}
}

func TestOldPrimariesAndOtherDatabasesAreRefused(t *testing.T) {
	for _, x := range []struct {
		name  string
		known *timelineRecord // nil: the node has seen nothing
		at    pg.Place
		want  error
		says  string
	}{
		{"a new store", nil, place("a:1", "s", 1, nil), nil, ""},
		{"the store that was seen", rec("s", 1, "x"), place("a:1", "s", 1, rec("s", 1, "x")), nil, ""},
		{"its standby, just promoted", rec("s", 1, "x"), place("b:1", "s", 2, rec("s", 1, "x")), nil, ""},
		{"its standby, already used", rec("s", 1, "x"), place("b:1", "s", 2, rec("s", 2, "y", "x")), nil, ""},
		{"two failovers were missed", rec("s", 1, "x"), place("c:1", "s", 3, rec("s", 3, "z", "x", "y")), nil, ""},
		{"the old primary is back", rec("s", 2, "y", "x"), place("a:1", "s", 1, rec("s", 1, "x")), pg.ErrOld,
			"PostgreSQL at a:1 is an old primary and is not used: its timeline is 1"},
		{"an old primary from before there were records", rec("s", 2, "y"), place("a:1", "s", 1, nil), pg.ErrOld,
			"a:1"},
		{"two standbys were promoted, and this is the other", rec("s", 2, "y", "x"),
			place("c:1", "s", 2, rec("s", 1, "x")), pg.ErrOther, "two standbys were promoted"},
		{"the same, and both were used", rec("s", 2, "y", "x"), place("c:1", "s", 2, rec("s", 2, "z", "x")),
			pg.ErrOther, "two standbys were promoted"},
		{"another database", rec("s", 1, "x"), place("d:1", "other", 7, rec("other", 7, "q")), pg.ErrOther,
			"PostgreSQL at d:1 is another database: its system identifier is other"},
		{"an empty one", rec("s", 1, "x"), place("d:1", "other", 1, nil), pg.ErrOther, "another database"},
		{"a dump, for a node that has seen nothing", nil, place("d:1", "other", 1, rec("s", 3, "x")), pg.ErrOther,
			"if it is right: perdure failover accept"},
		{"a dump that was accepted", rec("s", 3, "x"), place("d:1", "other", 1, rec("other", 1, "q", "x")), nil, ""},
		{"the server before, after a dump was accepted", rec("other", 1, "q", "x"),
			place("a:1", "s", 3, rec("s", 3, "x")), pg.ErrOther, "a:1"},
		{"a server that is behind its own store", nil, place("a:1", "s", 2, rec("s", 3, "x")), pg.ErrOld, "a:1"},
	} {
		tl := &timelines{}
		if x.known != nil {
			tl.known = *x.known
		}
		err := tl.judge(x.at)
		if x.want == nil && err != nil || x.want != nil && (!errors.Is(err, x.want) ||
			!strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %v with %q", x.name, err, x.want, x.says)
		}
	}
}

func TestNewestOfSeveralPrimaries(t *testing.T) {
	old, promoted := place("a", "s", 1, rec("s", 1, "x")), place("b", "s", 2, rec("s", 1, "x"))
	used := place("c", "s", 2, rec("s", 2, "y", "x"))
	restored := place("d", "other", 1, rec("other", 1, "q", "y"))
	for _, x := range []struct {
		name  string
		a, b  pg.Place
		newer bool
	}{
		{"a promoted standby", promoted, old, true},
		{"of two promoted standbys the one that was used", used, promoted, true},
		{"a restored one that was accepted in place of another", restored, used, true},
		{"a database that has nothing to do with the other", place("e", "z", 9, nil), used, false},
	} {
		if got := newerPlace(x.a, x.b); got != x.newer {
			t.Errorf("%s: newer = %t, want %t", x.name, got, x.newer)
		}
		if x.newer && newerPlace(x.b, x.a) {
			t.Errorf("%s: the other one is newer too, want one", x.name)
		}
	}
}

// TestFloorIsAboveEveryGrantedEpoch: whatever the clocks of the servers say, and whatever of earlier
// failovers is lost.
func TestFloorIsAboveEveryGrantedEpoch(t *testing.T) {
	tl := &timelines{}
	first := tl.settle(place("a", "s", 1, nil), stored{})
	if first.Floor != 0 || first.Failovers != 0 {
		t.Errorf("floor of a store's first use = %d after %d failovers, want none", first.Floor, first.Failovers)
	}
	tl.known = first
	second := tl.settle(place("b", "s", 2, nil), stored{timelineRecord: first})
	if second.Floor < 1<<37 || second.Failovers != 1 || len(second.Replaces) != 1 || !second.Unsure {
		t.Errorf("record after a failover = %+v, want a floor above all epochs", second)
	}
	tl.known = second
	late := place("c", "s", 3, nil)
	late.Clock = 1_577_836_800_000_000 // a clock that is behind by years
	third := tl.settle(late, stored{timelineRecord: first})
	if third.Floor < second.Floor+floorMargin {
		t.Errorf("floor = %d by a clock that is behind, and after a failover that the server knows nothing of; want "+
			"at least %d", third.Floor, second.Floor+floorMargin)
	}
	restored := tl.settle(place("c", "s", 3, nil), stored{timelineRecord: first, generation: 3})
	if restored.Floor <= FirstEpoch(3, 0) {
		t.Errorf("floor of a store that was restored 3 times = %d, want above the epochs of its restores, %d",
			restored.Floor, FirstEpoch(3, 0))
	}
}

// TestAcceptedServerIsFollowed: nodes that have seen any of the servers before use the accepted one
// and refuse those.
func TestAcceptedServerIsFollowed(t *testing.T) {
	// A dump from before two failovers: the node has seen the second of them.
	later := rec("s", 3, "z", "x", "y")
	later.Floor, later.Failovers = 1<<52, 2
	at := place("d:1", "other", 1, rec("s", 1, "x"))
	r, err := recordOf(at)
	if err != nil {
		t.Fatal(err)
	}
	accepted := (&timelines{known: *later}).accept(at, r)
	if accepted.Floor < later.Floor+floorMargin || !accepted.Unsure || accepted.Failovers != 3 {
		t.Errorf("record = %+v, want a floor above %d, 3 failovers, unsure", accepted, later.Floor)
	}
	now := place("d:1", "other", 1, &accepted)
	for name, known := range map[string]*timelineRecord{"nothing": {}, "the store of the dump": rec("s", 1, "x"),
		"the first failover": rec("s", 2, "y", "x"), "the second": later} {
		if err := (&timelines{known: *known}).judge(now); err != nil {
			t.Errorf("a node that has seen %s: %v, want that it follows", name, err)
		}
	}
	last := place("c:1", "s", 3, later)
	if err := (&timelines{known: accepted}).judge(last); !errors.Is(err, pg.ErrOther) {
		t.Errorf("the server before = %v, want %v", err, pg.ErrOther)
	}
	if !newerPlace(now, last) || newerPlace(last, now) {
		t.Error("the accepted server is not newer than the one before, want that it is")
	}
}

func TestTimelineThatWasSeenIsKept(t *testing.T) {
	s := &Store{log: slog.New(slog.DiscardHandler)}
	s.opt.TimelineFile = filepath.Join(t.TempDir(), "timeline.json")
	open := func() *timelines {
		t.Helper()
		tl, err := newTimelines(s)
		if err != nil {
			t.Fatal(err)
		}
		return tl
	}
	tl := open()
	r := rec("s", 2, "y", "x")
	r.Floor = 77
	before, err := tl.seen(place("b", "s", 2, r), *r)
	if err != nil || s.floor.Load() != 77 {
		t.Fatalf("seen = %d, %v with floor %d; want no error and floor 77", before, err, s.floor.Load())
	}
	if err := open().judge(place("a:1", "s", 1, rec("s", 1, "x"))); !errors.Is(err, pg.ErrOld) {
		t.Errorf("the old primary, after a restart of the node = %v, want %v", err, pg.ErrOld)
	}
	s.floor.Store(0)
	if open(); s.floor.Load() != 77 {
		t.Errorf("floor after a restart of the node = %d, want 77", s.floor.Load())
	}
	next := rec("s", 3, "z", "x", "y")
	if after, err := tl.seen(place("c", "s", 3, next), *next); err != nil || after <= before {
		t.Errorf("number of the next admission = %d, %v, want above %d", after, err, before)
	}
	if err := os.WriteFile(s.opt.TimelineFile, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open().judge(place("a:1", "s", 1, rec("s", 1, "x"))); err != nil {
		t.Errorf("a node with a damaged hint = %v, want as one without a hint", err)
	}
}

// TestReplacedServersRunsLeaveTheCache: a version of a run that was lost may be used again.
func TestReplacedServersRunsLeaveTheCache(t *testing.T) {
	s := &Store{log: slog.New(slog.DiscardHandler)}
	s.cache.floor = &s.floor
	tl := &timelines{s: s, log: s.log}
	k := func(i int) runKey { return runKey{"t", perdure.RunID(fmt.Sprint(i))} }
	run := cachedRun{Run: perdure.Run{Version: 3, State: perdure.Running}}
	s.cache.put(k(1), run, s.floor.Load())
	r := rec("s", 2, "y")
	r.Floor = 1 << 40
	if _, err := tl.seen(place("b", "s", 2, r), *r); err != nil {
		t.Fatal(err)
	}
	s.cache.put(k(2), run, 0) // by a batch that was written before
	for i := 1; i <= 2; i++ {
		if s.cache.has(k(i)) {
			t.Errorf("run %d of the server before is cached, want none", i)
		}
	}
}
