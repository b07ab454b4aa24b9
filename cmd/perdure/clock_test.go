package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

const wrongBy = 2 * time.Hour

// onceWrong creates the data of a server that was started once with a clock two hours ahead. Under
// that clock a queued run ended, one was leased, and one began to wait.
func onceWrong(t *testing.T) (dir string, ended, leased, waits perdure.RunID) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	right := perdure.At(time.Now()).Add(-time.Minute)
	at := right
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db"),
		Hooks: store.Hooks{Clock: func() perdure.Instant {
			return at
		}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	do := func(op kernel.Op) {
		t.Helper()
		if err := e.Step(at, op)[0]; err != nil {
			t.Fatalf("%T at %s: %v", op, at, err)
		}
	}
	dog := watchdog.New(e, nil)
	submit := func(kind string, timeout time.Duration) perdure.RunID {
		t.Helper()
		op := &life.Submit{Tenant: "default",
			Submission: perdure.Submission{Kind: kind, Class: perdure.Agent, Timeout: perdure.Duration(timeout)}}
		do(op)
		return op.Run.ID
	}
	claim := func(kind string) perdure.Run {
		t.Helper()
		op := &dispatch.Claim{Tenant: "default", Worker: "w", Slots: 1, Start: true, Kinds: []string{kind}}
		do(op)
		if len(op.Grants) != 1 {
			t.Fatalf("%s: %d grants, want 1", kind, len(op.Grants))
		}
		return op.Grants[0].Run
	}
	ended, leased, waits = submit("short", 30*time.Minute), submit("leased", 24*time.Hour),
		submit("waits", 24*time.Hour)
	do(dog.Pass())
	at = right.Add(wrongBy)
	do(dog.Pass())
	g := claim("leased")
	do(&life.Heartbeat{Tenant: "default", Worker: "w",
		Beats: []life.BeatOf{{Lease: life.Lease{RunID: g.ID, Epoch: g.Epoch}}}})
	g = claim("waits")
	do(&life.Commit{Tenant: "default", Worker: "w", Commit: perdure.Commit{ID: "c", RunID: g.ID, Epoch: g.Epoch,
		Waits:   []perdure.WaitSpec{{ID: "nap", Type: perdure.WaitTimer, Timeout: perdure.Duration(10 * time.Minute)}},
		Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}}})
	return dir, ended, leased, waits
}

func TestStoreWithClockAheadCanBeReset(t *testing.T) {
	dir, ended, leased, waits := onceWrong(t)
	_, err := embedded.Open(embedded.Options{Dir: dir})
	if err == nil {
		t.Fatal("the server started two hours behind its store's clock, want an error")
	}
	has(t, err.Error(), "refusing to start", "lies 1h5", "perdure clock reset --yes --data "+dir,
		"perdure backup FILE --stopped --data "+dir)

	// Commands that only read work with any clock.
	copied := filepath.Join(t.TempDir(), "backup")
	mustRun(t, 0, "backup", copied, "--stopped", "--data", dir)
	text, _ := mustRun(t, 0, "fsck", "--stopped", "--data", dir)
	has(t, text, "0 violations")

	// Without --yes nothing is changed.
	for _, args := range [][]string{{"clock"}, {"clock", "reset"}} {
		text, _ := mustRun(t, 0, append(args, "--data", dir)...)
		has(t, text, "1h5", "1 runs have ended", string(ended), "short", "timeout", "deadline_exceeded",
			"Nothing was changed", "reset --yes --data "+dir)
	}
	mustRun(t, 2, "clock", "--yes", "--data", dir)
	mustRun(t, 2, "clock", "rest", "--data", dir)
	if _, err := embedded.Open(embedded.Options{Dir: dir}); err == nil {
		t.Fatal("the clock was set back without --yes, want it unchanged")
	}

	text, _ = mustRun(t, 0, "clock", "reset", "--yes", "--json", "--data", dir)
	var report struct {
		Reset bool
		Moved int
		Ended []struct {
			RunID perdure.RunID `json:"run_id"`
		}
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || !report.Reset || report.Moved != 2 ||
		len(report.Ended) != 1 || report.Ended[0].RunID != ended {
		t.Errorf("clock reset printed %s (%v), want 2 live runs moved and %s ended", text, err, ended)
	}
	text, _ = mustRun(t, 0, "clock", "--data", dir)
	has(t, text, "nothing to set back")
	text, _ = mustRun(t, 0, "fsck", "--stopped", "--data", dir)
	has(t, text, "0 violations")
	afterReset(t, dir, leased, waits)
}

// afterReset checks that no live run waits for the time of the wrong clock.
func afterReset(t *testing.T, dir string, leased, waits perdure.RunID) {
	t.Helper()
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db")})
	if err != nil {
		t.Fatalf("after the reset: %v", err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := s.Now()
	p := e.Policy()
	get := func(id perdure.RunID) perdure.Run {
		t.Helper()
		d, err := e.Runs.Get(context.Background(), "default", id)
		if err != nil {
			t.Fatal(err)
		}
		return d.Run
	}
	if r := get(leased); r.LeaseUntil > now.Add(p.Lease) || r.SeenAt > now || r.AlarmAt > now.Add(p.Lease) {
		t.Errorf("leased: lease until %s, seen at %s, alarm at %s, want nothing beyond a lease from %s", r.LeaseUntil,
			r.SeenAt, r.AlarmAt, now)
	}
	if r := get(waits); r.WaitAt > now.Add(10*time.Minute) || r.WaitAt < now || r.AlarmAt != r.WaitAt {
		t.Errorf("waits: until %s, alarm at %s, want within ten minutes of %s", r.WaitAt, r.AlarmAt, now)
	}
	// The watchdog treats the reset as a gap: rules that judge by silence wait for one lease.
	dog := watchdog.New(e, nil)
	sweep := func(at perdure.Instant) {
		t.Helper()
		if err := e.Step(at, dog.Pass())[0]; err != nil {
			t.Fatal(err)
		}
	}
	sweep(now)
	if r := get(leased); r.State != perdure.Running {
		t.Errorf("leased: %s after the first sweep, want running: its worker may still send a sign of life", r.State)
	}
	for at := now; at <= now.Add(p.Lease); at = at.Add(time.Second) {
		sweep(at)
	}
	sweep(now.Add(p.Lease + time.Second))
	if r := get(leased); r.State != perdure.Queued {
		t.Errorf("leased: %s after a lease of silence, want queued", r.State)
	}
}

// A clock that was ahead by a year leaves no schedule silent, no limit closed and no key taken for a year.
func TestClockResetFreesSchedulesAndLimits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	right := perdure.At(time.Now()).Add(-time.Minute)
	at := right
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db"),
		Hooks: store.Hooks{Clock: func() perdure.Instant { return at }}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	do := func(op kernel.Op) {
		t.Helper()
		if err := e.Step(at, op)[0]; err != nil {
			t.Fatalf("%T at %s: %v", op, at, err)
		}
	}
	submit := func(sub perdure.Submission) perdure.Run {
		t.Helper()
		op := &life.Submit{Tenant: "default", Submission: sub}
		do(op)
		return op.Run
	}
	plan := func(name string, paused bool) {
		t.Helper()
		do(&life.PutSchedule{Tenant: "default", Name: name, Paused: &paused,
			Plan:       schedule.Plan{Every: perdure.Duration(15 * time.Minute)},
			Submission: perdure.Submission{Kind: name}})
	}
	pass := func() {
		t.Helper()
		for range 3 {
			do(watchdog.New(e, nil).Pass())
		}
	}
	claim := func(kind string) int {
		t.Helper()
		op := &dispatch.Claim{Tenant: "default", Worker: "w", Slots: 10, Start: true, Kinds: []string{kind}}
		do(op)
		return len(op.Grants)
	}
	limited := perdure.Submission{Kind: "limited", Limits: []string{"hourly"}, Timeout: perdure.Duration(2 * time.Hour)}
	shut := perdure.Submission{Kind: "shut", Limits: []string{"shut"}, Timeout: perdure.Duration(2 * time.Hour)}
	plan("before", false)
	hourly := &perdure.LimitRate{Count: 1, Per: perdure.Duration(time.Hour)}
	do(&life.PutLimit{Tenant: "default", Name: "hourly", Values: perdure.LimitValues{Rate: hourly}})
	do(&life.PutLimit{Tenant: "default", Name: "shut", Values: perdure.LimitValues{Concurrency: 1}})
	at = right.Add(365 * 24 * time.Hour)
	pass()
	plan("during", false)
	plan("asleep", true)
	submit(limited)
	if n := claim("limited"); n != 1 {
		t.Fatalf("%d runs are granted at the rate, want 1", n)
	}
	submit(limited)
	do(&life.CloseLimit{Tenant: "default", Name: "shut", Until: at.Add(time.Hour)})
	submit(shut)
	submit(perdure.Submission{Kind: "once", Unique: &perdure.Unique{Key: "k", While: perdure.UniqueFor,
		For: perdure.Duration(time.Hour)}})
	fired := func(name string) int64 {
		t.Helper()
		var n int64
		if err := s.View(t.Context(), func(v *store.View) error {
			row, _, err := v.Schedules.Get("default", name)
			n = row.Fired
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	wrongly := fired("before")
	s.Close()

	mustRun(t, 0, "clock", "reset", "--yes", "--data", dir)
	text, _ := mustRun(t, 0, "fsck", "--stopped", "--data", dir)
	has(t, text, "0 violations")
	at = right.Add(2 * time.Minute)
	if s, err = store.Open(store.Options{Path: filepath.Join(dir, "perdure.db"),
		Hooks: store.Hooks{Clock: func() perdure.Instant { return at }}}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if e, err = engine.New(s, engine.Options{}); err != nil {
		t.Fatal(err)
	}
	pass()
	plan("asleep", false)
	for range 16 {
		at = at.Add(time.Minute)
		pass()
	}
	if got := [3]int64{fired("before") - wrongly, fired("during"), fired("asleep")}; got != [3]int64{1, 1, 1} {
		t.Errorf("16 minutes after the reset the schedules have fired %d times, want once each", got)
	}
	for range 50 {
		at = at.Add(time.Minute)
		pass()
	}
	if a, b := claim("limited"), claim("shut"); a != 1 || b != 1 {
		t.Errorf("an hour after the reset %d runs are granted at the rate and %d at the closed limit, want 1 and 1",
			a, b)
	}
	again := &life.Submit{Tenant: "default", Submission: perdure.Submission{Kind: "once",
		Unique: &perdure.Unique{Key: "k", While: perdure.UniqueFor, For: perdure.Duration(time.Hour)}}}
	if do(again); again.Existing {
		t.Error("an hour after the reset the unique key is still taken")
	}
}

func TestStartLogsHowLongTheServerWasAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	at := time.Now().Add(-3 * time.Hour)
	open := func(clock func() time.Time) string {
		t.Helper()
		var log bytes.Buffer
		s, err := embedded.Open(embedded.Options{Dir: dir, Clock: clock,
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	const line = "start after an absence"
	if text := open(func() time.Time { return at }); strings.Contains(text, line) {
		t.Errorf("start of a new store logs %s, want nothing about an absence", text)
	}
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db"),
		Hooks: store.Hooks{Clock: func() perdure.Instant {
			return perdure.At(at)
		}}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, timeout := range []time.Duration{time.Hour, 2 * time.Hour, 24 * time.Hour} {
		if err := e.Step(perdure.At(at),
			&life.Submit{Tenant: "default",
				Submission: perdure.Submission{Kind: "k", Class: perdure.Agent,
					Timeout: perdure.Duration(timeout)}})[0]; err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	text := open(nil)
	if strings.Count(text, line) != 1 || !strings.Contains(text, "away=3h0m") ||
		!strings.Contains(text, "runs_past_deadline=2") {
		t.Errorf("the start logs %s, want one line: away for 3h, 2 runs past their deadline", text)
	}
}
