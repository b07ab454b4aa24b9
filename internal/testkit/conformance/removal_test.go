package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// In these tests one node uses a row while another node removes it.

func TestARunThatIsRetriedOnOneNodeIsNotRemovedOnAnother(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		r := b.task()
		b.complete(b.take("w"), `1`)
		a.passRetention()
		b.Now = a.Now
		between.f = func() { b.do(&life.Retry{Tenant: tenant, RunID: r.ID}) }
		a.retire()
		if !b.exists(r.ID) {
			t.Error("it is gone, and its retry lives")
		}
		b.fsck()
	})
}

func TestAThreadThatGetsARunOnOneNodeIsNotDeletedOnAnother(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		for _, sub := range []perdure.Submission{{Kind: "now"}, {Kind: "later", Delay: perdure.Duration(time.Hour)}} {
			a, b, between := pair(t, at)
			sub.ThreadID = b.thread()
			var r perdure.Run
			between.f = func() { r = b.submit(sub) }
			if err := a.E.Step(a.Now, &upkeep.DeleteThread{Tenant: tenant,
				ThreadID: sub.ThreadID})[0]; perdure.CodeOf(err) != perdure.CodeInUse {
				t.Errorf("%s: %v", sub.Kind, err)
			}
			b.state(r.ID, perdure.Queued)
			b.fsck()
		}
	})
}

func TestBytesThatComeOnOneNodeAreNotRemovedOnAnother(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		data := bytesOf(1, 1000)
		b.task()
		x := b.take("w")
		other := b.task()
		y := b.take("w")
		b.put(x, "x", data)
		replace, same := b.send(x, "x", bytesOf(2, 10)), b.send(y, "y", data)
		between.f = func() { b.do(same) }
		a.do(replace)
		for range 3 {
			b.retire()
		}
		if !bytes.Equal(b.artifact(other.ID, "y"), data) {
			t.Error("other bytes")
		}
		// The run goes, and its bytes come again.
		b.complete(y, `1`)
		b.do(&upkeep.DeleteRun{Tenant: tenant, RunID: other.ID})
		again := b.send(x, "z", data)
		between.f = func() { b.do(again) }
		a.retire()
		b.retire()
		if !bytes.Equal(b.artifact(x.Run.ID, "z"), data) {
			t.Error("other bytes")
		}
		b.fsck()
	})
}

// Bytes that one node removes and another one stores again between two reads of the removal are kept.
func TestBytesThatComeBetweenTwoReadsAreNotRemoved(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		left, hook := 0, &once{}
		b := node(t, at)
		at.Hooks.Wrap = func(s store.Conn) store.Conn { return interrupted{s, &left, hook} }
		a := node(t, at)
		b.task()
		x := b.take("w")
		reads := 0
		for n := 1; ; n++ {
			b.task()
			y := b.take("w")
			data := bytesOf(byte(2*n), 100)
			b.put(x, "x", data)
			replace, same := b.send(x, "x", bytesOf(byte(2*n+1), 100)), b.send(y, "y", data)
			left, hook.f = n, func() { b.do(same) }
			a.do(replace)
			if hook.f != nil {
				break // it has fewer reads
			}
			reads++
			b.retire()
			if !bytes.Equal(b.artifact(y.Run.ID, "y"), data) {
				t.Errorf("run %s: its artifact has other bytes after they came behind read %d", y.Run.ID, n)
			}
			b.fsck()
		}
		if reads < 3 {
			t.Errorf("a replacement had %d reads, want 3 or more", reads)
		}
	})
}

func TestAValueThatComesOnOneNodeIsNotRemovedOnAnother(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		r := b.submit(perdure.Submission{Kind: "job", Input: big("same")})
		b.complete(b.take("w"), `1`)
		b.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		var next perdure.Run
		between.f = func() { next = b.submit(perdure.Submission{Kind: "job", Input: big("same")}) }
		a.retire()
		if string(b.get(next.ID).InputText) != string(big("same")) {
			t.Error("its input is gone")
		}
		b.fsck()
	})
}

func TestTwoNodesThatRemoveTheSameRemoveItOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		for range 3 {
			b.task()
			g := b.take("w")
			b.put(g, "x", bytesOf(1, 100))
			b.complete(g, string(big("result")))
		}
		live := b.task()
		a.passRetention()
		b.Now = a.Now
		for range 6 {
			between.f = func() { b.do(b.W.Retire()) }
			a.do(a.W.Retire())
		}
		a.retire()
		if b.rows("runs") != 1 || b.rows("blobs")+b.rows("blob_refs")+b.rows("chunks")+b.rows("removals") != 0 ||
			!b.exists(live.ID) {
			t.Errorf("%d runs, %d values", b.rows("runs"), b.rows("blobs"))
		}
		b.fsck()
	})
}

func TestAPartOfAnUploadThatIsSweptOnAnotherNodeIsRefused(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		b.task()
		g := b.take("w")
		begin := &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: "x"}
		b.do(begin)
		between.f = func() {
			b.Now = b.Now.Add(2 * time.Hour)
			b.retire()
		}
		err := a.E.Step(a.Now, &life.AddChunk{Tenant: tenant, Upload: begin.Upload, Data: bytesOf(1, 100)})[0]
		if perdure.CodeOf(err) != perdure.CodeUnavailable || b.rows("chunks") != 0 {
			t.Errorf("%v, %d chunks", err, b.rows("chunks"))
		}
		b.fsck()
	})
}

// gone deletes a run, and all that belongs to it.
func (w *World) gone(id perdure.RunID) {
	w.t.Helper()
	if err := w.E.Delete(w.ctx(), &upkeep.DeleteRun{Tenant: tenant, RunID: id}); err != nil {
		w.t.Fatal(err)
	}
}

func TestNothingOfADeletedRunComesBackWithItsWebhooks(t *testing.T) {
	left := func(w *World) {
		w.t.Helper()
		if n, m := w.rows("outbox"), w.rows("webhook_attempts"); n+m != 0 {
			w.t.Errorf("%d notifications, %d attempts", n, m)
		}
		w.fsck()
	}
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		h, _ := b.hook("", "run:completed")
		ended := func() perdure.RunID {
			r := b.task()
			b.complete(b.take("w"), `1`)
			return r.ID
		}
		sent := func(out outbox.Outgoing) kernel.Op {
			return &outbox.Deliver{Sent: []outbox.Sent{{Notification: out.Notification, Status: 200, At: b.Now,
				Response: "private"}}}
		}

		r := ended() // sent while it was deleted,
		out := b.takeDue(h.ID, 10)
		b.gone(r)
		b.do(sent(out[0]))
		left(b)

		r = ended() // deleted while the answer is being written down,
		out = b.takeDue(h.ID, 10)
		between.f = func() { b.gone(r) }
		a.do(sent(out[0]))
		left(b)

		r = ended() // the same with an answer that is too late to decide anything,
		out = b.takeDue(h.ID, 10)
		b.pass(2 * time.Minute)
		if again := b.takeDue(h.ID, 10); len(again) != 1 {
			t.Fatalf("%d are due", len(again))
		}
		a.Now = b.Now
		between.f = func() { b.gone(r) }
		a.do(sent(out[0]))
		left(b)

		r = ended() // and deleted while it is taken.
		between.f = func() { b.gone(r) }
		op := &outbox.Deliver{Want: []outbox.Want{{Tenant: tenant, Webhook: h.ID, Most: 10}}}
		a.do(op)
		if len(op.Taken) != 0 {
			t.Errorf("%d were taken", len(op.Taken))
		}
		left(b)
	})
}

func TestRowsThatNothingWouldRemoveAreFound(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := node(t, at)
		for _, text := range []string{"INSERT INTO chunks (tenant,upload,n,data) VALUES ('acme','left',0,'x')",
			"INSERT INTO outbox (tenant,run_id,seq,target,type,state,attempts,created_at) VALUES " +
				"('acme','told',1,'t','run:completed','dead',0,0)",
			"INSERT INTO webhook_attempts (tenant,run_id,seq,target,n,at,took_ms,status,error,response) VALUES " +
				"('acme','tried',1,'t',1,0,0,200,'','')"} {
			w.do(stage(text))
		}
		found := ""
		w.view(func(v *store.View) error {
			list, err := v.Check(nil)
			for _, x := range list {
				found += x.ID + " " + x.Row + ";"
			}
			return err
		})
		if found != "S16 told t;S16 tried t;P16 acme left;" {
			t.Error(found)
		}
	})
}

func TestAThreadThatIsDeletedOnOneNodeDoesNotComeBackOnAnother(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		th := b.thread()
		between.f = func() {
			if err := b.E.Delete(b.ctx(), &upkeep.DeleteThread{Tenant: tenant, ThreadID: th}); err != nil {
				t.Error(err)
			}
		}
		err := a.E.Step(a.Now, &life.AppendMessage{Tenant: tenant, ThreadID: th,
			Message: perdure.Message{Role: "user", Content: json.RawMessage(`1`)}})[0]
		if perdure.CodeOf(err) != perdure.CodeNotFound || b.rows("threads")+b.rows("messages") != 0 {
			t.Errorf("%v, %d threads, %d messages", err, b.rows("threads"), b.rows("messages"))
		}
		b.fsck()
	})
}

// The same values and bytes come and go on two nodes, all the time.
func TestWhatComesAndGoesAtOnceIsThereWhenSomebodyHasIt(t *testing.T) {
	nodes := live(t, storetest.Postgres(t), 2)
	ctx := patient(t)
	var wg sync.WaitGroup
	for i, w := range nodes {
		for j := range 3 {
			wg.Go(func() {
				kind := fmt.Sprintf("k%d%d", i, j)
				do := func(op kernel.Op) bool {
					err := w.E.Do(ctx, op)
					if err != nil {
						t.Errorf("%T: %v", op, err)
					}
					return err == nil
				}
				for n := range 40 {
					sub := &life.Submit{Tenant: tenant,
						Submission: perdure.Submission{Kind: kind, Input: big(fmt.Sprint(n % 2))}}
					claim := &dispatch.Claim{Tenant: tenant, Worker: kind, Kinds: []string{kind}, Slots: 1, Start: true}
					if !do(sub) || !do(claim) {
						return
					}
					if len(claim.Grants) != 1 || string(claim.Grants[0].Input) != string(big(fmt.Sprint(n%2))) {
						t.Errorf("%d grants: its input is gone", len(claim.Grants))
						return
					}
					g := claim.Grants[0]
					if !do(&life.Commit{Tenant: tenant, Worker: kind, Commit: perdure.Commit{ID: "c", RunID: g.Run.ID,
						Epoch: g.Run.Epoch, Outcome: done(`1`)}}) {
						return
					}
					if err := w.E.Delete(ctx, &upkeep.DeleteRun{Tenant: tenant, RunID: g.Run.ID}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	w := nodes[0]
	if n := w.rows("blobs") + w.rows("blob_refs") + w.rows("runs"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	w.fsck()
}

// Deleted is not the same as free to be overwritten: nothing of it is in the file any more.
func TestNothingOfWhatIsDeletedIsInTheFile(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, store.Options{Path: filepath.Join(dir, "perdure.db")})
	w := NewWorld(t, s)
	r := w.runInEveryTable()
	w.submit(perdure.Submission{Kind: "stays", Input: json.RawMessage(`"this stays"`)})
	for _, op := range []kernel.Op{&upkeep.DeleteRun{Tenant: tenant, RunID: w.childOf(r.ID)},
		&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID},
		&upkeep.DeleteThread{Tenant: tenant, ThreadID: r.ThreadID}} {
		if err := w.E.Delete(w.ctx(), op); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	stays := false
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		stays = stays || bytes.Contains(b, []byte("this stays"))
		if i := bytes.Index(b, []byte(canary)); i >= 0 {
			t.Errorf("%s has it: %.80q", f.Name(), b[i:])
		}
	}
	if !stays {
		t.Error("what was not deleted is not found either")
	}
}
