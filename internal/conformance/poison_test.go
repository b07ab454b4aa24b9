package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
	"github.com/perdure/perdure/internal/watchdog"
)

// poisons is how many runs kill whoever takes them.
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
}

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

// take polls until there is nothing left.
func (p *plague) take(start bool, each func([]engine.Grant)) {
	p.t.Helper()
	for {
		op := &engine.Claim{Tenant: tenant, Worker: "dies", Kinds: []string{"poison"}, Slots: engine.MaxSlots, Start: start}
		p.do(op)
		if len(op.Grants) == 0 {
			return
		}
		each(op.Grants)
	}
}

func (p *plague) live() (n int) {
	p.t.Helper()
	p.view(func(v *store.View) error {
		return v.Rows("SELECT count(*) FROM runs WHERE alarm_at IS NOT NULL", nil, func(scan func(...any) error) error { return scan(&n) })
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
	p.check(p.number("SELECT count(*) FROM dead_letters WHERE cause='"+string(cause)+"'") == p.n, "%d dead letters of %d", p.number("SELECT count(*) FROM dead_letters"), p.n)
	longest := p.number("SELECT max(seq) FROM runs WHERE kind='poison'")
	p.check(longest <= lines, "a log of %d lines", longest)
	kept := p.number("SELECT count(*) FROM watchdog_log")
	p.check(kept <= watchdog.LogEntries+1000, "%d entries in the watchdog's log", kept)
	p.check(p.most <= 1000, "%d actions in one pass", p.most)
	p.t.Logf("%d poison runs are dead letters, with at most %d lines each; the watchdog's log has %d entries, a pass did at most %d things; %d healthy runs had no wait",
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
	for name, at := range map[string]store.Options{"SQLite": {Path: filepath.Join(t.TempDir(), "perdure.db")}, "PostgreSQL": {URL: storetest.Postgres(t)}} {
		t.Run(name, func(t *testing.T) {
			few := 2000
			if at.URL != "" {
				few = 200
			}
			p := &plague{crowded: &crowded{World: slow(t, storetest.Open(t, at))}, n: poisons(few)}
			p.runs(p.n, false, perdure.Submission{Kind: "poison", Class: perdure.Agent})
			begun := time.Now()
			test(p)
			p.t.Logf("in %s", time.Since(begun).Round(time.Millisecond))
			if at.Path != "" {
				file, log := size(t, at.Path), size(t, at.Path+"-wal")
				p.t.Logf("%d KiB on disk, %d bytes for each, and a write-ahead log of %d KiB", file>>10, file/int64(p.n), log>>10)
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

// Whoever takes one is never heard from again.
func TestPoisonRunsThatNobodySurvivesBecomeDeadLetters(t *testing.T) {
	poisoned(t, func(p *plague) {
		for p.live() > 0 {
			p.take(false, func([]engine.Grant) {})
			p.step(20 * time.Second)
		}
		p.buried(perdure.CodeDispatchTimeout, 24)
	})
}

// Every attempt at one fails.
func TestPoisonRunsThatAlwaysFailBecomeDeadLetters(t *testing.T) {
	poisoned(t, func(p *plague) {
		for p.live() > 0 {
			p.take(true, func(grants []engine.Grant) {
				for part := range slices.Chunk(grants, 250) {
					ops := make([]engine.Op, len(part))
					for i, g := range part {
						ops[i] = p.say(g, perdure.Commit{Outcome: failed("panic")})
					}
					for _, err := range p.E.Step(p.Now, ops...) {
						p.check(err == nil, "%v", err)
					}
				}
			})
			p.step(time.Second)
		}
		p.buried("panic", 12)
	})
}
