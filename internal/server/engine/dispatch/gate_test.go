package dispatch

import (
	"bytes"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// gateNow is the instant of the tests of the gate.
const gateNow = perdure.Instant(1_700_000_000_000_000)

// Every reason why a run waits, with what people read.
func TestReasonsToWait(t *testing.T) {
	pauses := map[string]perdure.QueuePause{"slow": {At: gateNow.Add(-time.Hour), Until: gateNow.Add(time.Hour)},
		"over": {At: gateNow.Add(-time.Hour), Until: gateNow.Add(-time.Minute)}}
	paused := rules.Pauses{Queues: pauses, Kinds: pauses}
	polls := &Serving{polls: []servedPoll{{live: true, WorkerPoll: perdure.WorkerPoll{Queues: []string{"slow",
		"default", "over"}, Kinds: []string{"job"}}}}}
	hold := &perdure.Hold{Since: gateNow.Add(-time.Minute), NextAt: gateNow.Add(time.Minute), At: gateNow,
		Builds: []string{"6", "7"}, Failure: perdure.Failure{Code: "panic"}}
	ready := perdure.Run{State: perdure.Queued, Queue: "default", Kind: "job", Ready: true,
		ReadyAt: gateNow.Add(-time.Second)}
	with := func(change func(*perdure.Run)) perdure.Run {
		r := ready
		change(&r)
		return r
	}
	later := func(r *perdure.Run) { r.Ready, r.ReadyAt = false, gateNow.Add(time.Minute) }
	asked := perdure.Cancel{RequestedAt: gateNow}
	seen := make(map[perdure.WaitReason]bool)
	for name, x := range map[string]struct {
		c     conditions
		build string
		run   perdure.Run
		want  perdure.WaitingFor // no reason: it may be granted
		taken perdure.WaitReason // then this says why nobody has taken it
	}{
		"it may be granted": {run: ready, taken: perdure.WaitingNoFreeSlot},
		"no key": {c: conditions{unverified: true, Paused: paused}, run: ready,
			want: perdure.WaitingFor{Reason: perdure.WaitingNoSigner, Text: rules.NoSignerText}},
		"no key, also to clean up": {c: conditions{unverified: true}, run: with(func(r *perdure.Run) {
			r.Cancel, r.StartedAt = asked, gateNow
		}), want: perdure.WaitingFor{Reason: perdure.WaitingNoSigner, Text: rules.NoSignerText}},
		"paused": {c: conditions{Paused: paused}, run: with(func(r *perdure.Run) { r.Queue = "slow" }),
			want: perdure.WaitingFor{Reason: perdure.WaitingQueuePaused, Since: gateNow.Add(-time.Hour),
				Until: gateNow.Add(time.Hour), Text: "queue slow has been paused since 2023-11-14T21:13:20Z"}},
		"paused before it is held": {c: conditions{Paused: paused}, build: "8", run: with(func(r *perdure.Run) {
			later(r)
			r.Queue, r.Hold = "slow", hold
		}), want: perdure.WaitingFor{Reason: perdure.WaitingQueuePaused, Since: gateNow.Add(-time.Hour),
			Until: gateNow.Add(time.Hour), Text: "queue slow has been paused since 2023-11-14T21:13:20Z"}},
		"a paused kind": {c: conditions{Paused: paused}, run: with(func(r *perdure.Run) { r.Kind = "slow" }),
			want: perdure.WaitingFor{Reason: perdure.WaitingKindPaused, Since: gateNow.Add(-time.Hour),
				Until: gateNow.Add(time.Hour), Text: "kind slow has been paused since 2023-11-14T21:13:20Z"}},
		"the pause of the kind is over": {c: conditions{Paused: paused}, run: with(func(r *perdure.Run) {
			r.Kind = "over"
		}), taken: perdure.WaitingUnserved},
		"the pause is over": {c: conditions{Paused: paused}, run: with(func(r *perdure.Run) { r.Queue = "over" }),
			taken: perdure.WaitingNoFreeSlot},
		"clean-up waits for no pause": {c: conditions{Paused: paused}, run: with(func(r *perdure.Run) {
			r.Queue, r.Cancel, r.StartedAt = "slow", asked, gateNow
		}), taken: perdure.WaitingNoFreeSlot},
		"behind another": {run: with(func(r *perdure.Run) { r.Ready, r.Turn = false, perdure.TurnWaiting }),
			want: perdure.WaitingFor{Reason: perdure.WaitingThreadBusy, Text: "behind another run of its thread"}},
		"a copy": {run: with(func(r *perdure.Run) { r.Ready, r.CopyTo = false, 9 }),
			want: perdure.WaitingFor{Reason: perdure.WaitingCopying,
				Text: "the journal of the run that it retries is being copied"}},
		"held": {run: with(func(r *perdure.Run) {
			later(r)
			r.Hold = hold
		}), want: perdure.WaitingFor{Reason: perdure.WaitingHeld, Since: hold.Since, Until: hold.NextAt,
			Text: "held: build 7 has a defect (panic); another build may take it at once"}},
		"held by this build": {build: "7", run: with(func(r *perdure.Run) {
			later(r)
			r.Hold = hold
		}), want: perdure.WaitingFor{Reason: perdure.WaitingHeld, Since: hold.Since, Until: hold.NextAt,
			Text: "held: build 7 has a defect (panic); another build may take it at once"}},
		"held, and another build asks": {build: "8", run: with(func(r *perdure.Run) {
			later(r)
			r.Hold = hold
		}), taken: perdure.WaitingNoFreeSlot},
		"later": {run: with(later), want: perdure.WaitingFor{Reason: perdure.WaitingNotBefore,
			Until: gateNow.Add(time.Minute), Text: "not before 2023-11-14T22:14:20Z"}},
		"at a limit": {run: with(func(r *perdure.Run) {
			r.Ready, r.Options.Limits = false, &perdure.LimitUse{Names: []string{"shop"}, Key: "a"}
			r.Limited = &perdure.Limited{At: perdure.LimitRef{Limit: "shop", Key: "a"}, Since: gateNow}
		}), want: perdure.WaitingFor{Reason: perdure.WaitingLimit, Since: gateNow,
			Text: "blocked by limit shop (key a)", Limits: []perdure.WaitingAtLimit{{
				LimitRef: perdure.LimitRef{Limit: "shop", Key: "a"}, Since: gateNow}}}},
		"its own runner": {run: with(func(r *perdure.Run) {
			r.Queue, r.Kind, r.Options.Process = perdure.LocalQueue, perdure.ExecKind, true
		}), taken: perdure.WaitingOwnRunner},
		"unserved": {run: with(func(r *perdure.Run) { r.Kind = "other" }), taken: perdure.WaitingUnserved},
	} {
		t.Run(name, func(t *testing.T) {
			x.c.now = gateNow
			why := x.c.grantable(&x.run, x.build)
			if x.taken == "" {
				seen[x.want.Reason] = true
				if why == nil || !reflect.DeepEqual(*why, x.want) {
					t.Errorf("got %+v, want %+v", why, x.want)
				}
				return
			}
			if why != nil {
				t.Fatalf("got %+v, want that it may be granted", why)
			}
			if seen[x.taken] = true; polls.unattended(&x.run).Reason != x.taken {
				t.Errorf("nobody has taken it: %+v, want the reason %s", polls.unattended(&x.run), x.taken)
			}
		})
	}
	for _, x := range reasons {
		if !seen[x.reason] {
			t.Errorf("the reason %s has no case", x.reason)
		}
	}
	if len(seen) != len(reasons)+3 {
		t.Errorf("the cases have the reasons %v, want those of the reasons, and three of runs that may be granted",
			slices.Collect(maps.Keys(seen)))
	}
}

// The page has the reasons, in the order of the gate.
func TestPageHasReasonsInOrder(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/waiting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ = bytes.Cut(page, []byte("| reason |"))
	want := make([]string, 0, len(reasons)+3)
	for _, x := range reasons {
		want = append(want, string(x.reason))
	}
	for _, x := range []perdure.WaitReason{perdure.WaitingOwnRunner, perdure.WaitingUnserved,
		perdure.WaitingNoFreeSlot} {
		want = append(want, string(x))
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			got = append(got, name)
		}
		if len(got) > 0 && !strings.HasPrefix(line, "|") {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/waiting.md has the reasons %v, want %v", got, want)
	}
}

// A reader whose snapshot is older than a pause has no queue granted from that is paused.
func TestReaderOfOldSnapshotHidesNoPause(t *testing.T) {
	// A store in memory has one connection: there a reader never sees what is older than the last write.
	s, err := store.Open(store.Options{Path: t.TempDir() + "/perdure.db", Reserve: 1,
		Hooks: store.Hooks{Clock: func() perdure.Instant { return 1000 }}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	e := engineOver(t, s, doorbell.Silent{})
	op := submit("job")
	do(t, e, op)
	err = e.Store().View(t.Context(), func(v *store.View) error {
		r, _, err := v.Runs.Get("a", op.Run.ID)
		if err != nil {
			return err
		}
		do(t, e, &rules.PauseQueue{Tenant: "a", Queue: "default"})
		waits := WaitReader{Engine: e, DB: &v.Records}
		_, err = waits.WaitingFor(&r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	claim := poll()
	if do(t, e, claim); len(claim.Grants) > 0 {
		t.Errorf("a poll got %d runs of a paused queue, want none", len(claim.Grants))
	}
}
