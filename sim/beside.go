package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// Features beside the work: signatures, kinds, limits, keys, approvals, conversations, artifacts and
// restores.
//
// A seed draws which of them it has. What is done and when comes from a stream of its own, so that the
// other streams are as they were. A run's plan gets its sagas, views, artifacts and approvals from a
// second draw of the number in its input.

// beside is what a seed has beside the work.
type beside struct {
	s    *sim
	dice stream

	signed, kinds, limits, keys, chats, restores bool

	key     string // of the workers' polls
	limited bool   // the tenant may have a limit of live runs
	asked   int    // conversations begun
	left    int    // restores to come
}

// addBeside draws what the seed has.
func (s *sim) addBeside(url string, even bool) {
	dice := newStream(s.seed, "beside")
	b := &beside{s: s, dice: dice, signed: dice.chance(0.3), kinds: dice.chance(0.4), limits: dice.chance(0.35),
		keys: dice.chance(0.4), chats: dice.chance(0.5), restores: dice.chance(0.3)}
	b.restores = b.restores && url == "" && !even
	if b.restores {
		b.left = dice.IntN(2) + 1
	}
	s.beside = b
}

// begin begins to act.
func (b *beside) begin() {
	s := b.s
	s.after(b.dice.between(0, s.cfg.tempo), b.act)
	if b.kinds {
		for _, kind := range []string{"agent", "job", "exec"} {
			if b.dice.chance(0.3) {
				continue
			}
			def := perdure.KindDef{Description: "simulated", Retry: &perdure.KindRetry{MaxAttempts: b.dice.IntN(4) + 1}}
			s.sendUntilAnswered(func() kernel.Op {
				return &rules.AnnounceKind{Tenant: tenant, Kind: kind, Build: "b1", Def: def}
			}, nil)
		}
	}
}

// act does one of the things that the seed has.
func (b *beside) act() {
	s := b.s
	if s.faultsStopped {
		return
	}
	s.after(b.dice.between(s.cfg.tempo/4, 3*s.cfg.tempo), b.act)
	if !s.reachable() {
		return
	}
	b.retrySomething()
	switch x := b.dice.IntN(6); {
	case x == 0 && b.limits:
		b.limit()
	case x == 1 && b.keys:
		b.changeKey()
	case x == 2 && b.chats:
		b.chat()
	case x == 3 && b.left > 0 && s.steps > 60 && s.nested == 0:
		b.left--
		b.restore()
	case x == 4:
		b.cancelWhatSleeps()
	default:
		b.decide()
	}
}

// retrySomething retries or redrives what has ended, and holds what was retried: both are rare by
// themselves.
func (b *beside) retrySomething() {
	s := b.s
	if !b.dice.chance(0.25) || s.model.submitted > 2*s.cfg.runs {
		return
	}
	var ended, letters []perdure.RunID
	for _, id := range s.model.order {
		r := s.model.rows[id]
		if r.State.Terminal() && (r.ParentID != "" || r.ContinuationOf != "" || r.Options.Webhook != "" ||
			r.Options.Process || len(s.model.journals[id]) > 0) {
			ended = append(ended, id)
		}
		if r.letter {
			letters = append(letters, id)
		}
	}
	switch {
	case len(letters) > 0 && b.dice.chance(0.6):
		s.model.submitted++
		id := pick(b.dice, letters...)
		s.sendOnce(func() kernel.Op { return &upkeep.Redrive{Tenant: tenant, RunID: id} })
	case len(ended) > 0:
		s.model.submitted++
		id, key := pick(b.dice, ended...), s.name("y")
		s.sendUntilAnswered(func() kernel.Op { return &life.Retry{Tenant: tenant, RunID: id, Key: key} }, nil)
	}
}

// limit gives the tenant as many live runs as it has, or no limit any more.
func (b *beside) limit() {
	s := b.s
	n := int64(0)
	if b.dice.chance(0.6) {
		n = int64(max(1, s.model.live()+b.dice.IntN(3)-1))
	}
	b.limited = true
	s.sometimes("a tenant got a limit of live runs")
	s.sendOnce(func() kernel.Op {
		return &rules.ChangeTenant{Tenant: tenant, Limits: perdure.TenantLimitChanges{MaxLiveRuns: &n}}
	})
}

// changeKey gives the workers another key, and revokes the one that they had.
func (b *beside) changeKey() {
	s := b.s
	old := b.key
	if old != "" && b.dice.chance(0.7) {
		s.send(func() kernel.Op { return &access.RevokeKey{Tenant: tenant, ID: old} }, func(r reply) {
			if !r.lost && r.err == nil && b.key == old {
				b.key = ""
				s.revoked++
				s.sometimes("a key was revoked")
				s.meetAll()
			}
		})
		return
	}
	once := s.name("key")
	s.send(func() kernel.Op {
		return &access.CreateKey{Tenant: tenant, Name: "workers",
			Scopes: []perdure.Scope{perdure.ScopePoll}, Once: once}
	}, func(r reply) {
		if !r.lost && r.err == nil {
			b.key = r.op.(*access.CreateKey).Key.ID
		}
	})
}

// chat says something in a conversation, or begins one.
func (b *beside) chat() {
	s := b.s
	if b.asked > 6 {
		return
	}
	b.asked++
	var th perdure.ThreadID
	if len(s.model.threads) > 0 && b.dice.chance(0.8) {
		th = pick(b.dice, s.model.threads...)
	}
	key, content := s.name("t"), json.RawMessage(fmt.Sprintf("%q", s.name("p")))
	s.sendUntilAnswered(func() kernel.Op {
		return &life.Chat{Tenant: tenant, ThreadID: th, Kind: "agent", Key: key,
			Message: perdure.Message{Content: content}}
	}, func(r reply) {
		if r.err == nil && r.op.(*life.Chat).Started {
			s.sometimes("a conversation began")
		}
	})
}

// cancelWhatSleeps cancels a run that is suspended, or whose clean-up has something to undo.
func (b *beside) cancelWhatSleeps() {
	s := b.s
	var found []perdure.RunID
	for _, id := range s.model.order {
		r := s.model.rows[id]
		if r.State.Live() && r.Cancel.RequestedAt == 0 && r.met != nil &&
			(r.State == perdure.Suspended || r.met.facts.ToUndo || r.RetryOf != "") {
			found = append(found, id)
		}
	}
	if len(found) > 0 && b.dice.chance(0.5) {
		id := pick(b.dice, found...)
		s.sendOnce(func() kernel.Op { return &life.Cancel{Tenant: tenant, RunID: id, Reason: "no longer needed"} })
	}
}

// approver decides about approvals.
var approver = perdure.Key{ID: "k-person", Name: "person", Scopes: []perdure.Scope{perdure.ScopeApprove}}

// decide decides about an open approval.
func (b *beside) decide() {
	if open := b.s.openApprovals(); len(open) > 0 && b.dice.chance(0.5) {
		b.s.decide(pick(b.dice, open...), pick(b.dice, perdure.Approve, perdure.Reject))
	}
}

func (s *sim) decide(id perdure.ApprovalID, kind perdure.DecisionKind) {
	s.sendUntilAnswered(func() kernel.Op {
		return &life.Decide{Tenant: tenant, ID: id, By: approver, Decision: perdure.Decision{Decision: kind}}
	}, nil)
}

// openApprovals lists the approvals that suspended runs wait for.
func (s *sim) openApprovals() (out []perdure.ApprovalID) {
	s.view(func(v *store.View) error {
		for _, id := range s.model.order {
			if r := s.model.rows[id]; r.State.Terminal() || r.WaitsOpen == 0 {
				continue
			}
			waits, err := v.Waits.List(tenant, id)
			if err != nil {
				return err
			}
			for _, w := range waits {
				if w.State == perdure.WaitOpen && w.Type == perdure.WaitApproval {
					out = append(out, perdure.IDOfApproval(tenant, id, w.ID))
				}
			}
		}
		return nil
	})
	return out
}

// restore replaces the database by a copy that was backed up a moment ago. All servers are down
// meanwhile. What was acknowledged is in the backup, so every promise still holds.
func (b *beside) restore() {
	s := b.s
	for _, n := range s.nodes {
		if n.up {
			n.crash("for a restore")
		} else {
			n.gen++ // its start is called off
		}
	}
	if err := b.replace(); err != nil {
		s.violate("restore", "%v", err)
		return
	}
	s.sometimes("the store was restored from a backup")
	s.say("the store was restored from a backup")
	s.observeAll()
	for _, n := range s.nodes {
		n.open()
	}
}

// replace backs the database up and restores it into another one.
func (b *beside) replace() error {
	s, ctx := b.s, context.Background()
	dir, err := os.MkdirTemp("", "perdure-sim-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "backup")
	if _, err := s.reader.Backup(ctx, path, nil); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	to := s.where
	if to.Memory, err = store.NewMemory(); err != nil {
		return err
	}
	fresh, err := store.Open(to)
	if err != nil {
		return err
	}
	if err := (&upkeep.Restoring{Store: fresh, Policy: &s.cfg.policy, Entropy: s.ids}).Do(ctx, path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	s.reader.Close()
	s.where.Memory.Close()
	s.where, s.reader = to, fresh
	return nil
}

// faultsStop takes the limit away, and decides about everything.
func (b *beside) faultsStop() {
	if b.limited {
		none := int64(0)
		b.s.sendUntilAnswered(func() kernel.Op {
			return &rules.ChangeTenant{Tenant: tenant, Limits: perdure.TenantLimitChanges{MaxLiveRuns: &none}}
		}, nil)
	}
}

// signer is the key that signed seeds sign with.
var signer = sync.OnceValue(func() *perdure.Signer {
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed([]byte(strings.Repeat("s", ed25519.SeedSize))))
	if err != nil {
		panic(err)
	}
	s, err := perdure.NewSigner(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		panic(err)
	}
	return s
})

// signs gives the signer of the seed's servers, or nil.
func (b *beside) signs() *perdure.Signer {
	if !b.signed {
		return nil
	}
	return signer()
}

// A second draw of a plan: what its steps leave beside their results.
type extras struct {
	undo bool // steps can be undone
	view bool // steps publish a view
	file bool // steps leave an artifact
	ask  bool // it asks for an approval first
}

func drawExtras(n uint64) extras {
	r := stream{rand.New(rand.NewPCG(n, 9))}
	return extras{undo: r.chance(0.35), view: r.chance(0.3), file: r.chance(0.25), ask: r.chance(0.25)}
}

// addApproval puts an approval before the stages of a plan.
func (p *plan) addApproval(tempo time.Duration) {
	r := stream{rand.New(rand.NewPCG(p.n, 10))}
	st := stage{do: "wait", early: r.chance(0.3), peek: r.chance(0.3), waits: []perdure.WaitSpec{{ID: "ask",
		Type: perdure.WaitApproval, Name: "approve_it", Timeout: perdure.Duration(r.between(tempo, 12*tempo)),
		Approval: &perdure.ApprovalSpec{Title: "Go on?", Action: json.RawMessage(`{"go":"on"}`)}}}}
	if r.chance(0.5) {
		p.stages = append([]stage{st}, p.stages...)
	} else {
		p.stages = append(p.stages, st)
	}
}

// leave adds to a commit what its steps leave beside their results.
func (t *task) leave(c *perdure.Commit) {
	x := &t.plan.extras
	if x.view && len(c.Journal) > 0 {
		c.Views = []perdure.View{{Name: "plan", Value: json.RawMessage(fmt.Sprintf("%q", c.Journal[0].Key))}}
	}
	if x.undo {
		for _, j := range c.Journal {
			if strings.HasPrefix(j.Key, "st") {
				c.Journal = append(c.Journal, perdure.JournalEntry{Key: perdure.UndoPrefix + j.Key,
					Value: json.RawMessage("1")})
				break
			}
		}
	}
	if x.file && len(c.Journal) > 0 && !t.left {
		t.left = true
		t.upload()
	}
}

// undo gives the commit that undoes the last step that is not undone, or nil.
func (t *task) undo() *perdure.Commit {
	for i := len(t.plan.stages) - 1; i >= 0; i-- {
		key := fmt.Sprintf("st%d", i)
		if t.journal[perdure.UndoPrefix+key] && !t.journal[perdure.UndonePrefix+key] {
			t.w.s.sometimes("a step was undone")
			return &perdure.Commit{ID: t.w.s.name("k"), RunID: t.run, Epoch: t.epoch,
				Journal: []perdure.JournalEntry{{Key: perdure.UndonePrefix + key, Value: json.RawMessage("1")}}}
		}
	}
	return nil
}

// upload leaves an artifact: three calls, of which any may be lost.
func (t *task) upload() {
	s, data := t.w.s, []byte("what the run has left")
	ok := func(r reply) bool { return !r.lost && r.err == nil && t.w.alive && !t.done }
	s.send(func() kernel.Op {
		return &life.BeginArtifact{Tenant: tenant, RunID: t.run, Epoch: t.epoch, Name: "left.txt",
			Size: int64(len(data))}
	}, func(r reply) {
		if !ok(r) {
			return
		}
		begun := *r.op.(*life.BeginArtifact)
		s.send(func() kernel.Op { return &life.AddChunk{Tenant: tenant, Upload: begun.Upload, Data: data} },
			func(r reply) {
				if !ok(r) {
					return
				}
				s.sendOnce(func() kernel.Op {
					return &life.PutArtifact{Tenant: tenant, RunID: t.run, Epoch: t.epoch, Name: begun.Name,
						ContentType: begun.ContentType, Size: int64(len(data)), Upload: begun.Upload,
						SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}
				})
			})
	})
}

// inputOf gives the input of a grant. A conversation has none, and gets the plan of its first run's name.
func (s *sim) inputOf(g *dispatch.Grant) perdure.Value {
	if !g.Run.Options.Chat || g.Run.ContinuationOf != "" || s.anews.hasRound(g) {
		return g.Input
	}
	sum := sha256.Sum256([]byte(g.Run.Origin()))
	raw, _ := json.Marshal(input{uint64(sum[0])<<8 | uint64(sum[1]) + 1, 0})
	return perdure.Value(raw)
}

// uploads tells whether an operation is a part of an upload.
func uploads(op kernel.Op) bool {
	switch op.(type) {
	case *life.AddChunk, *life.PutArtifact:
		return true
	}
	return false
}
