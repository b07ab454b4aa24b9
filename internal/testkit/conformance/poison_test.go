package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// poisons is how many runs kill the worker that leases them.
func poisons(few int) int {
	if os.Getenv("PERDURE_TEST_FULL") != "" {
		return 25_000
	}
	return few
}

// plague is a world full of runs that nobody survives.
type plague struct {
	*crowded
	n       int
	healthy int
	most    int // actions of one pass

	bystanders []*bystander // healthy runs of the same kind, in the same queue
}

// A bystander is a healthy run among the poisonous ones, which nothing but its input tells apart.
type bystander struct {
	id     perdure.RunID
	older  int // poisonous runs that were there before it
	since  perdure.Instant
	passed int // grants of others since then
	waited time.Duration
	done   bool
}

// join submits a healthy run behind the poisonous ones that are there.
func (p *plague) join(older int) {
	p.t.Helper()
	r := p.submit(perdure.Submission{Kind: "poison", Class: perdure.Agent, Input: json.RawMessage(`"healthy"`)})
	p.bystanders = append(p.bystanders, &bystander{id: r.ID, older: older, since: p.Now})
}

// hands is how many runs are granted between two sweeps: there are fewer workers than work.
func (p *plague) hands() int { return p.n / 5 }

// step lets a pass of the watchdog happen, and then a while go by.
func (p *plague) step(d time.Duration) {
	p.t.Helper()
	for {
		op := p.W.Pass()
		p.do(op)
		p.most = max(p.most, len(op.Actions))
		if !op.More {
			break
		}
	}
	// Beside all that somebody has work of another kind, which is granted with the first poll.
	r := p.submit(perdure.Submission{Kind: "healthy"})
	g := p.takeKind("healthy")
	p.check(g.Run.ID == r.ID, "%s was taken", g.Run.ID)
	p.complete(g, `1`)
	p.healthy++
	p.Now = p.Now.Add(d)
}

// take polls until there is nothing left, or all hands are full. A healthy run completes; the poisonous ones are
// given to each.
func (p *plague) take(start bool, each func([]dispatch.Grant)) {
	p.t.Helper()
	p.join(p.n)
	for free := p.hands(); free > 0; {
		op := &dispatch.Claim{Tenant: tenant, Worker: "dies", Kinds: []string{"poison"},
			Slots: min(free, dispatch.MaxSlots), Start: start}
		p.do(op)
		if len(op.Grants) == 0 {
			return
		}
		free -= len(op.Grants)
		each(slices.DeleteFunc(op.Grants, p.completes))
	}
}

// completes ends a run that is healthy, and has the healthy ones count a grant that is another's.
func (p *plague) completes(g dispatch.Grant) bool {
	p.t.Helper()
	if g.Run.Input == `"healthy"` {
		p.beat(g)
		p.complete(g, `1`)
	}
	healthy := false
	for _, b := range p.bystanders {
		switch {
		case b.id == g.Run.ID:
			b.done, b.waited, healthy = true, p.Now.Sub(b.since), true
		case !b.done:
			b.passed++
		}
	}
	return healthy
}

// served checks that every healthy run among the poisonous ones has completed, and that it waited for no more
// than those before it: each of them is delivered so many times at most.
func (p *plague) served(deliveries int) {
	p.t.Helper()
	var longest time.Duration
	var share float64
	for i, b := range p.bystanders {
		p.check(b.done, "healthy run %d of %d, behind %d poisonous ones, has not completed", i+1, len(p.bystanders),
			b.older)
		p.check(b.passed <= deliveries*b.older+i,
			"healthy run %d: %d grants went before it, want at most %d of each of %d runs", i+1, b.passed, deliveries,
			b.older)
		longest, share = max(longest, b.waited), max(share, float64(b.passed)/float64(b.older))
	}
	first := p.bystanders[0]
	p.t.Logf("the healthy run amid them waited %s for %d grants with %d runs before it; of %d behind them the "+
		"longest waited %s, and for %.2f grants of each run before it at most",
		first.waited, first.passed, first.older, len(p.bystanders)-1, longest, share)
}

func (p *plague) live() (n int) {
	p.t.Helper()
	p.view(func(v *store.View) error {
		return v.Rows("SELECT count(*) FROM runs WHERE alarm_at IS NOT NULL", nil, func(scan func(...any) error) error {
			return scan(&n)
		})
	})
	return n
}

func (p *plague) number(query string) (n int) {
	p.t.Helper()
	p.view(func(v *store.View) error {
		return v.Rows(query, nil, func(scan func(...any) error) error { return scan(&n) })
	})
	return n
}

// buried checks that every one has reached the dead letters, and that what is written of each is bounded.
func (p *plague) buried(cause perdure.Code, lines int) {
	p.t.Helper()
	p.check(p.number("SELECT count(*) FROM dead_letters WHERE cause='"+string(cause)+"'") == p.n,
		"%d dead letters of %d", p.number("SELECT count(*) FROM dead_letters"), p.n)
	longest := p.number("SELECT max(seq) FROM runs WHERE kind='poison'")
	p.check(longest <= lines, "a log of %d lines", longest)
	kept := p.number("SELECT count(*) FROM watchdog_log")
	p.check(kept <= watchdog.LogEntries+1000, "%d entries in the watchdog's log", kept)
	p.check(p.most <= 1000, "%d actions in one pass", p.most)
	p.t.Logf("%d poison runs are dead letters, with at most %d lines each; the watchdog's log has %d entries, a "+
		"pass did at most %d things; %d healthy runs had no wait",
		p.n, longest, kept, p.most, p.healthy)
}

// slow is a world in which nobody minds that sweeps are far apart.
func slow(t *testing.T, s *store.Store) *World {
	t.Helper()
	w := NewWorld(t, s)
	policy := perdure.DefaultPolicy()
	policy.GapAfter = time.Hour
	e, err := engine.New(s, engine.Options{Policy: &policy, Roll: func() float64 { return 0.5 }})
	if err != nil {
		t.Fatal(err)
	}
	w.E, w.W = e, watchdog.New(e, nil)
	return w
}

func poisoned(t *testing.T, test func(p *plague)) {
	for name, at := range map[string]store.Options{"SQLite": {Path: filepath.Join(t.TempDir(), "perdure.db")},
		"PostgreSQL": {URL: storetest.Postgres(t)}} {
		t.Run(name, func(t *testing.T) {
			few := 2000
			if at.URL != "" {
				few = 200
			}
			p := &plague{crowded: &crowded{World: slow(t, storetest.Open(t, at))}, n: poisons(few)}
			poison := perdure.Submission{Kind: "poison", Class: perdure.Agent}
			p.runs(p.n/2, false, poison)
			p.Now = p.Now.Add(time.Millisecond)
			p.join(p.n / 2)
			p.Now = p.Now.Add(time.Millisecond)
			p.runs(p.n-p.n/2, false, poison)
			begun := time.Now()
			test(p)
			p.t.Logf("in %s", time.Since(begun).Round(time.Millisecond))
			if at.Path != "" {
				file, log := size(t, at.Path), size(t, at.Path+"-wal")
				p.t.Logf("%d KiB on disk, %d bytes for each, and a write-ahead log of %d KiB", file>>10,
					file/int64(p.n), log>>10)
				p.check(file < int64(p.n)*16<<10 && log < 64<<20, "%d and %d bytes on disk", file, log)
			}
			p.fsck()
		})
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A worker that leases such a run sends no heartbeat any more.
func TestPoisonRunsThatNobodySurvivesBecomeDeadLetters(t *testing.T) {
	poisoned(t, func(p *plague) {
		for p.live() > 0 {
			p.take(false, func([]dispatch.Grant) {})
			p.step(20 * time.Second)
		}
		p.buried(perdure.CodeDispatchTimeout, 24)
		p.served(p.E.Policy().MaxGrants)
	})
}

// Every attempt at one fails.
func TestPoisonRunsThatAlwaysFailBecomeDeadLetters(t *testing.T) {
	poisoned(t, func(p *plague) {
		for p.live() > 0 {
			p.take(true, func(grants []dispatch.Grant) {
				for part := range slices.Chunk(grants, 250) {
					ops := make([]kernel.Op, len(part))
					for i, g := range part {
						ops[i] = p.commitOf(g, perdure.Commit{Outcome: failed("panic")})
					}
					for _, err := range p.E.Step(p.Now, ops...) {
						p.check(err == nil, "%v", err)
					}
				}
			})
			p.step(time.Second)
		}
		p.buried("panic", 12)
		p.served(p.E.Policy().MaxAttempts)
	})
}
