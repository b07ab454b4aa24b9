package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A batchLog records which operations were decided together, by their names.
type batchLog struct {
	mu      sync.Mutex
	last    *Tx
	batches [][]string
}

// op is an operation that changes nothing and records its name.
func (b *batchLog) op(name string) opFunc {
	return func(tx *Tx) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if tx != b.last {
			b.last, b.batches = tx, append(b.batches, nil)
		}
		i := len(b.batches) - 1
		b.batches[i] = append(b.batches[i], name)
		return nil
	}
}

// heavy is an operation with an estimate of its size.
type heavy struct {
	opFunc
	rows, bytes int
}

func (h heavy) Weight() (rows, bytes int) { return h.rows, h.bytes }

// A heldLane is a store whose lane is locked, so that requests wait in its queue until release is
// called.
type heldLane struct {
	*Store
	t    *testing.T
	lane *lane
	free sync.Once
	errs chan error // the results of all operations
}

func holdLane(t *testing.T) *heldLane {
	s := open(t, Options{})
	h := &heldLane{Store: s, t: t, lane: s.lanes[LaneWork], errs: make(chan error, 2000)}
	h.lane.mu.Lock()
	t.Cleanup(h.release)
	return h
}

func (h *heldLane) release() { h.free.Do(h.lane.mu.Unlock) }

// ask submits operations in the background, and returns when they are in the queue.
func (h *heldLane) ask(ctx context.Context, t perdure.TenantID, ops ...Op) {
	h.t.Helper()
	before := h.lane.queue.queued.Load()
	go h.do(ctx, t, ops...)
	eventually.True(h.t, "the operations wait in the queue",
		func() bool { return h.lane.queue.queued.Load() == before+int64(len(ops)) })
}

func (h *heldLane) do(ctx context.Context, t perdure.TenantID, ops ...Op) {
	for _, err := range h.DoAll(fair.With(ctx, t), ops...) {
		h.errs <- err
	}
}

// collect waits for so many answers, none of which is an error.
func (h *heldLane) collect(n int) {
	h.t.Helper()
	for range n {
		if err := <-h.errs; err != nil {
			h.t.Errorf("an operation failed: %v", err)
		}
	}
}

func TestBatchTakesTurnsBetweenTenants(t *testing.T) {
	h := holdLane(t)
	var log batchLog
	many := make([]Op, 100)
	for i := range 10 {
		for k := range many {
			many[k] = log.op(fmt.Sprintf("a%d", 100*i+k))
		}
		h.ask(t.Context(), "a", slices.Clone(many)...)
	}
	h.ask(t.Context(), "b", log.op("b0"))
	h.ask(t.Context(), "", log.op("server"))
	h.release()
	h.collect(1002)
	if first := log.batches[0][:4]; fmt.Sprint(first) != "[a0 b0 server a1]" {
		t.Errorf("the first batch begins with %v, want one operation of each tenant in turn", first)
	}
	next := 0
	for _, batch := range log.batches {
		if len(batch) > maxBatch {
			t.Errorf("a batch has %d operations, want at most %d", len(batch), maxBatch)
		}
		for _, name := range batch {
			if name[0] == 'a' {
				if name != fmt.Sprintf("a%d", next) {
					t.Fatalf("operation %s of tenant a was decided when a%d was next", name, next)
				}
				next++
			}
		}
	}
}

// A tenant with light operations waits for at most one heavy operation of another, and then all of
// its own are written.
func TestHeavyOperationHasItsOwnBatch(t *testing.T) {
	for _, x := range []struct {
		name        string
		rows, bytes int
	}{{"rows", heavyRows + 1, 1}, {"bytes", 1, heavyBytes + 1}, {"more rows than a batch has", batchRows, 1},
		{"more bytes", 1, 2 * batchBytes}} {
		t.Run(x.name, func(t *testing.T) {
			h := holdLane(t)
			var log batchLog
			h.ask(t.Context(), "a", heavy{log.op("a0"), x.rows, x.bytes}, heavy{log.op("a1"), x.rows, x.bytes},
				heavy{log.op("a2"), x.rows, x.bytes})
			h.ask(t.Context(), "b", log.op("b0"), log.op("b1"))
			h.release()
			h.collect(5)
			if want := "[[a0] [b0 b1] [a1"; !strings.HasPrefix(fmt.Sprint(log.batches), want) {
				t.Errorf("batches = %v, want %s …", log.batches, want)
			}
		})
	}
}

// A heavyQueue is a queue without a lane, in virtual time.
type heavyQueue struct {
	*queue
	t *testing.T
}

func (q heavyQueue) ask(t perdure.TenantID, ops ...Op) error { return q.push(newRequest(t, ops)) }

// batch gathers a batch and says whose operations it has and how many.
func (q heavyQueue) batch() string {
	_, from := q.gather(nil, nil)
	var out []string
	for _, e := range from {
		out = append(out, string(e.r.tenant))
	}
	return strings.Join(out, " ")
}

func (q heavyQueue) want(when, want string) {
	q.t.Helper()
	if got := q.batch(); got != want {
		q.t.Errorf("%s the batch has operations of %q, want %q", when, got, want)
	}
}

// After a heavy operation the tenant's next heavy one waits while others write. Its light
// operations do not wait.
func TestTenantRestsAfterHeavyOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := heavyQueue{newQueue(), t}
		light, large := Op(opFunc(nil)), Op(heavy{rows: heavyRows + 1})
		others := func() {
			q.ask("b", light)
			q.want("for the other tenant", "b")
		}
		q.ask("a", light)
		q.want("at first", "a")
		others()
		q.ask("a", large, large)
		q.want("before the first heavy operation", "a")
		q.wrote("a", []Op{large}, 50*time.Millisecond)
		others()
		if q.mayPass("a", []Op{large}) || !q.mayPass("a", []Op{light}) || !q.mayPass("b", []Op{large}) {
			t.Errorf("during the rest only heavy operations of the tenant that rests should wait")
		}
		q.want("during the rest", "")
		q.ask("a", light)
		q.want("during the rest, for a light one,", "a")
		for range 11 {
			time.Sleep(50 * time.Millisecond)
			others()
			q.want("during the rest, later,", "")
		}
		time.Sleep(50 * time.Millisecond)
		q.want("after the rest", "a")
		if n := q.queued.Load(); n != 0 {
			t.Errorf("left in the queue: %d operations, want none", n)
		}
	})
}

// A tenant that writes alone does not rest, and the bell rings when a rest is over.
func TestRestEndsWhenOthersStopWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := heavyQueue{newQueue(), t}
		light, large := Op(opFunc(nil)), Op(heavy{rows: heavyRows + 1})
		q.ask("b", light)
		q.ask("a", large, large)
		q.want("at first", "b")
		q.want("then", "a")
		q.wrote("a", []Op{large}, time.Second)
		<-q.bell
		q.want("during the rest", "")
		began := time.Now()
		<-q.bell
		if waited := time.Since(began); waited > mixedFor {
			t.Errorf("the lane is told after %s, want after %s at most", waited, mixedFor)
		}
		q.want("after the others have stopped", "a")
	})
}

// A tenant that has waited for long counts as writing: the heavy operations of another one get batches of
// their own, and rest.
func TestTenantThatWaitsCountsAsWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := heavyQueue{newQueue(), t}
		light, large := Op(opFunc(nil)), Op(heavy{rows: heavyRows + 1})
		q.ask("b", light, light)
		q.ask("a", large, large)
		time.Sleep(2 * mixedFor) // a heavy operation is written
		q.want("after a long write", "b b")
		q.ask("b", light)
		time.Sleep(2 * mixedFor)
		q.ask("a", light)
		q.wrote("a", []Op{large}, time.Second)
		q.want("after the next one", "b a")
	})
}

// Heavy operations above heavyShare are refused, and others are not.
func TestHeavyOperationsAboveShareAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := heavyQueue{newQueue(), t}
		light, large := Op(opFunc(nil)), Op(heavy{rows: heavyRows + 1})
		q.ask("b", light)
		for i := range heavyShare {
			if err := q.ask("a", large); err != nil {
				t.Fatalf("heavy operation %d: %v, want it to wait", i, err)
			}
		}
		if err := q.ask("a", large); perdure.CodeOf(err) != perdure.CodeTooMany {
			t.Errorf("heavy operation %d: %v, want %s", heavyShare, err, perdure.CodeTooMany)
		}
		for _, x := range []struct {
			tenant perdure.TenantID
			op     Op
		}{{"a", light}, {"b", large}, {"", large}} {
			if err := q.ask(x.tenant, x.op); err != nil {
				t.Errorf("operation of tenant %q: %v, want it to wait", x.tenant, err)
			}
		}
		time.Sleep(mixedFor)
		if err := q.ask("b", light); err != nil {
			t.Errorf("light operation of tenant b: %v, want it to wait", err)
		}
	})
}

// A request is also split when nothing else waits.
func TestIdleLaneSplitsLargeRequest(t *testing.T) {
	s := open(t, Options{})
	var log batchLog
	ops := make([]Op, 5)
	for i := range ops {
		ops[i] = heavy{log.op(fmt.Sprint(i)), batchRows / 2, 1}
	}
	for i, err := range s.DoAll(t.Context(), ops...) {
		if err != nil {
			t.Errorf("operation %d = %v, want nil", i, err)
		}
	}
	if want := "[[0 1] [2 3] [4]]"; fmt.Sprint(log.batches) != want {
		t.Errorf("batches = %v, want %s", log.batches, want)
	}
}

func TestTenantAboveLaneShareIsRefusedWhileOthersWait(t *testing.T) {
	h := holdLane(t)
	var log batchLog
	full := make([]Op, laneShare)
	for i := range full {
		full[i] = log.op("a")
	}
	h.ask(t.Context(), "a", full...)
	h.ask(t.Context(), "a", log.op("a")) // above its share, while nothing else waits
	h.ask(t.Context(), "b", log.op("b"))
	ctx, cancel := context.WithTimeout(fair.With(t.Context(), "a"), eventually.Within)
	defer cancel()
	if err := h.Do(ctx, log.op("a")); perdure.CodeOf(err) != perdure.CodeTooMany {
		t.Errorf("operation of a tenant over its share: %v, want %s", err, perdure.CodeTooMany)
	}
	for _, other := range []perdure.TenantID{"b", "c", ""} {
		h.ask(t.Context(), other, log.op("other"))
	}
	h.release()
	h.collect(laneShare + 5)
}

func TestCancelledCallerWithdrawsWaitingOperations(t *testing.T) {
	h := holdLane(t)
	var log batchLog
	ctx, cancel := context.WithCancel(t.Context())
	h.ask(ctx, "a", log.op("a0"), log.op("a1"))
	h.ask(t.Context(), "b", log.op("b"))
	cancel()
	for i := range 2 {
		if err := <-h.errs; perdure.CodeOf(err) != perdure.CodeUnavailable {
			t.Errorf("operation %d that was withdrawn: %v, want %s", i, err, perdure.CodeUnavailable)
		}
	}
	h.release()
	h.collect(1)
	if want := "[[b]]"; fmt.Sprint(log.batches) != want {
		t.Errorf("batches = %v, want %s", log.batches, want)
	}
	q := h.lane.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.queued.Load(); n != 0 || len(q.turns) != 0 || len(q.round) != 0 {
		t.Errorf("left in the queue: %d operations, %d turns, %d of them in the round, want none", n, len(q.turns),
			len(q.round))
	}
}

// A request with a part in a batch gets the answers of that part, and the rest is withdrawn.
func TestCancelledCallerGetsAnswersOfBegunOperations(t *testing.T) {
	s := open(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	first := opFunc(func(*Tx) error {
		cancel()
		eventually.True(t, "the second operation is withdrawn",
			func() bool { return s.lanes[LaneWork].queue.queued.Load() == 0 })
		return nil
	})
	errs := s.DoAll(ctx, heavy{first, batchRows, 1}, heavy{insert("x"), batchRows, 1})
	if errs[0] != nil {
		t.Errorf("the operation that had begun = %v, want nil", errs[0])
	}
	if perdure.CodeOf(errs[1]) != perdure.CodeUnavailable {
		t.Errorf("the operation that had not begun: %v, want %s", errs[1], perdure.CodeUnavailable)
	}
}

// contended opens a store twice. It has the row "contended".
func contended(t *testing.T, at Options) (s, other *Store) {
	t.Helper()
	at.Hooks.Age = func() time.Duration { return 0 }
	s, other = open(t, at), open(t, Options{Memory: at.Memory, URL: at.URL})
	must(t, other, insert("contended"))
	return s, other
}

// An operation that always conflicts delays the others of its batch for triesShared tries only.
func TestConflictingOperationIsSplitFromBatch(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s, other := contended(t, at)
		var seen, alone int // how often the bystander and the culprit were decided
		culprit := opFunc(func(tx *Tx) error {
			alone++
			return bump("contended").Do(tx)
		})
		bystander := opFunc(func(tx *Tx) error {
			seen++
			return insert("bystander").Do(tx)
		})
		s.opt.Hooks.BeforeWrite = func() {
			if alone <= maxTries {
				other.Batch(other.Now(), bump("contended"))
			}
		}
		errs := s.Batch(s.Now(), bystander, culprit)
		if errs[0] != nil || seen > triesShared+1 {
			t.Errorf("the bystander was decided %d times and got %v, want at most %d times and no error", seen,
				errs[0], triesShared+1)
		}
		if errs[1] != nil && alone < maxTries {
			t.Errorf("the operation that conflicts was given up after %d tries: %v", alone, errs[1])
		}
	})
}

// Another node changes a row all the time, and is quicker for longer than a batch is tried. The
// caller's operation is still written.
func TestContendedOperationIsTriedAgain(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s, other := contended(t, at)
		tried := 0
		s.opt.Hooks.BeforeWrite = func() {
			if tried < 2*maxTries {
				other.Batch(other.Now(), bump("contended"))
			}
		}
		op := opFunc(func(tx *Tx) error {
			tried++
			return bump("contended").Do(tx)
		})
		if err := s.Do(t.Context(), op); err != nil || tried < 2*maxTries {
			t.Errorf("the operation was decided %d times: %v, want %d times and no error", tried, err, 2*maxTries)
		}
	})
}

// While several tenants write, a batch takes a limited number of operations of each. A tenant alone
// fills batches.
func TestBatchLimitsOperationsPerTenant(t *testing.T) {
	h := holdLane(t)
	var log batchLog
	many := make([]Op, 3*batchShare)
	for i := range many {
		many[i] = log.op("a")
	}
	h.ask(t.Context(), "a", many...)
	h.ask(t.Context(), "b", log.op("b"))
	h.release()
	h.collect(len(many) + 1)
	if n := len(log.batches[0]); n != batchShare+1 {
		t.Errorf("the first batch has %d operations, want %d of one tenant and one of the other", n, batchShare)
	}
}

// A tenant's share is counted by the rows that its operations read and write, not by their number.
func TestBatchLimitsRowsPerTenant(t *testing.T) {
	h := holdLane(t)
	var log batchLog
	many := make([]Op, 3*batchShare)
	for i := range many {
		many[i] = heavy{log.op("a"), 2 * shareRows, 1}
	}
	h.ask(t.Context(), "a", many...)
	h.ask(t.Context(), "b", log.op("b"))
	h.release()
	h.collect(len(many) + 1)
	if n := len(log.batches[0]); n != batchShare/3+1 {
		t.Errorf("the first batch has %d operations, want %d of one tenant and one of the other", n, batchShare/3)
	}
}

func TestSlowDisksGetLargerBatches(t *testing.T) {
	q := newQueue()
	if n := q.share(); n != batchShare {
		t.Errorf("at first a batch takes %d operations of a tenant, want %d", n, batchShare)
	}
	for range 50 {
		q.madeDurable(10 * time.Millisecond)
	}
	if n := q.share(); n < 45 || n > 50 {
		t.Errorf("with 10 ms per sync a batch takes %d operations of a tenant, want about 50", n)
	}
	for range 50 {
		q.madeDurable(time.Second)
	}
	if n := q.share(); n != maxBatch {
		t.Errorf("with 1 s per sync a batch takes %d operations of a tenant, want %d", n, maxBatch)
	}
}

func TestBatchesWaitForCompanyOnSlowDisks(t *testing.T) {
	for _, x := range []struct {
		sync time.Duration
		ops  int
		want time.Duration
	}{
		{100 * time.Microsecond, 20, 0}, {10 * time.Millisecond, 1, 0}, {8 * time.Millisecond, 20, time.Millisecond},
		{time.Second, 20, maxPatience},
	} {
		q := newQueue()
		for range 100 {
			q.madeDurable(x.sync)
			q.gathered(x.ops)
		}
		if got := q.patience().Round(10 * time.Microsecond); got != x.want {
			t.Errorf("with syncs of %s and batches of %d a batch waits for %s, want %s", x.sync, x.ops, got, x.want)
		}
	}
}

// A batch is decided again when an input changes on which it depends, and not when another one does.
func TestChangedInputOutdatesThoseThatDependOnIt(t *testing.T) {
	for changed, want := range map[perdure.TenantID]int{"a": 2, "b": 1} {
		s := open(t, Options{})
		decided := 0
		err := s.Do(t.Context(), opFunc(func(tx *Tx) error {
			tx.DependsOn("a")
			if decided++; decided == 1 {
				s.Outdate(changed)
			}
			tx.Stage("DELETE FROM keys WHERE id=?", "none")
			return nil
		}))
		if err != nil || decided != want {
			t.Errorf("inputs of %s changed: decided %d times (%v), want %d", changed, decided, err, want)
		}
	}
}

// On PostgreSQL a lane that has read the count of a limit has its turn until the batch is over, however it ends. Other
// lanes would conflict with it. SQLite has one lane.
func TestLaneHasItsTurnUntilItsBatchIsOver(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		for how, end := range map[string]func() error{
			"written": func() error { return nil },
			"refused": func() error { return perdure.Invalid("x", "is wrong") },
			"panics":  func() error { panic("a defect") },
		} {
			s := open(t, at)
			s.Do(t.Context(), opFunc(func(tx *Tx) error {
				k, _, err := tx.LimitKeys.Get(tenant, perdure.LimitRef{Limit: "model"})
				if err != nil {
					return err
				}
				if free := s.turns.TryLock(); free == s.Shared() {
					t.Errorf("%s: another lane may have its turn: %t, want that on SQLite alone", how, free)
				} else if free {
					s.turns.Unlock()
				}
				k.Tenant, k.Name = tenant, "model"
				k.Leased++
				tx.LimitKeys.Put(k)
				return end()
			}))
			if !s.turns.TryLock() {
				t.Fatalf("%s: the turn is not over after the batch", how)
			}
			s.turns.Unlock()
		}
	})
}
