package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Two nodes that sweep at once apply each rule once. One of them sweeps between the decision of the other and its
// write.
func TestTwoNodesSweepOnce(t *testing.T) {
	for i := range watchdog.Rules {
		rule := &watchdog.Rules[i]
		t.Run(rule.ID+"_"+rule.Name, func(t *testing.T) {
			t.Parallel()
			storetest.OnBoth(t, func(t *testing.T, at store.Options) {
				a, b, between := pair(t, at)
				x := traps[rule.Name](b)
				b.waits(rule, x)
				since, swept := len(b.Acted), false
				b.Now = max(b.Now, x.due)
				a.Now = b.Now
				between.f = func() { b.look(x); swept = true }
				a.look(x)
				if !swept {
					t.Fatal("it had nothing to write")
				}
				if ours, theirs := a.did(rule, 0), b.did(rule, since); len(ours)+len(theirs) != 1 {
					t.Errorf("one did %v, the other %v", ours, theirs)
				}
				b.view(func(v *store.View) error {
					listed, err := v.WatchLog.Page(store.WatchFilter{Rule: rule.Name, Limit: 10})
					if len(listed) != 1 {
						t.Errorf("the log has %v", listed)
					}
					return err
				})
				x.then()
				b.fsck()
			})
		})
	}
}

// askApproval tells of the queries that a node makes.
type asked struct {
	store.Conn
	tell func(query string)
}

func (a *asked) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	a.tell(query)
	return a.Conn.Query(query, args, row)
}

// The patrol reads a parent and then its children. One that ends in between has told its parent: there is nothing to
// mend, and nothing is decided again.
func TestThePatrolIsNotMisledByWhatHappensMeanwhile(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		b := node(t, at)
		b.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
		g := b.take("w")
		b.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "kid#1", Kind: "kid"}},
			Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: []string{"kid#1"},
				Timeout: perdure.Never}), Outcome: suspend})
		kid := b.take("w")
		looked, decided := 0, 0
		at.Hooks.BeforeWrite = func() { decided++ }
		at.Hooks.Wrap = func(s store.Conn) store.Conn {
			return &asked{s, func(query string) {
				if strings.Contains(query, "FROM waits") && strings.Contains(query, "state='open'") {
					if looked++; looked == 1 {
						b.complete(kid, `1`)
					}
				}
			}}
		}
		a := node(t, at)
		a.Now = b.Now
		decided = 0
		a.sweep()
		if looked != 1 || decided != 1 || len(a.Acted) != 0 {
			t.Errorf("it looked %d times, decided %d times and did %v", looked, decided, a.Acted)
		}
		if r := b.get(g.Run.ID); r.State != perdure.Queued {
			t.Errorf("%s", r.State)
		}
		b.fsck()
	})
}

// One commit on two nodes, one of which takes it while the other reads, has one answer: nobody is refused for what was
// half read.
func TestACommitThatIsTakenMeanwhileIsAnsweredAsTheFirstTime(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		b := node(t, at)
		b.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
		g := b.take("w")
		here := b.commitOf(g, perdure.Commit{ID: "same", Children: []perdure.Spawn{{Key: "kid#1", Kind: "kid"}},
			Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: []string{"kid#1"},
				Timeout: perdure.Never}), Outcome: suspend})
		there := &life.Commit{Tenant: tenant, Worker: "w", Commit: here.Commit}
		looked := 0
		at.Hooks.Wrap = func(s store.Conn) store.Conn {
			return &asked{s, func(query string) {
				if strings.Contains(query, "FROM waits") {
					if looked++; looked == 1 {
						b.do(here)
					}
				}
			}}
		}
		a := node(t, at)
		a.Now = b.Now
		a.do(there)
		if looked == 0 || len(there.Answer.Children) != 1 || fmt.Sprint(there.Answer) != fmt.Sprint(here.Answer) {
			t.Errorf("%+v here, %+v there", here.Answer, there.Answer)
		}
		b.fsck()
	})
}
