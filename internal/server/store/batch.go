package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// Batches.
//
// A lane makes one batch after the other. While a batch is being committed, the next operations
// gather in the lane's queue (queue.go) and share the next commit: group commit. An operation that
// finds its lane idle is decided in the caller's goroutine, without the queue.
//
// A batch is decided without a transaction: the operations read committed rows and stage their
// changes in memory. Then one transaction writes all of it, and updates rows only if they still
// have the version that was read. If one of them has not, the transaction is rolled back and the
// batch is decided again, without the cache. Inputs that have no version are in inputs.go.
// After triesShared conflicts a batch of several operations is cut into halves. A single operation
// is tried maxTries times, and then again by Store.DoAll, which holds up no other operation.
//
// Other failures: a row that is locked by another session is found and left out (locks.go). On a
// full disk the reserve is freed and the batch is tried again. After a lost connection the batch is
// decided again for maxWait. If the outcome of a commit is unknown, callers get CodeUnknown. On
// SQLite the store also stops writing then, because only a restart shows what is in the file.

// maxTries is how often a single operation is decided because of conflicts. A batch of several
// operations is halved after triesShared tries: one of them may conflict every time and must not
// hold up the others. maxWait is how long a batch is tried again after a lost connection.
const (
	maxTries    = 20
	triesShared = 5
	maxWait     = 10 * time.Second
)

// tries is how often a batch of so many operations is decided.
func tries(ops int) int {
	if ops > 1 {
		return triesShared
	}
	return maxTries
}

// Batch decides the operations one after the other and writes their changes in one transaction.
// When it returns, every operation that was not refused is durable. It gives one error per
// operation, in order. A refusal concerns that operation alone. CodeUnavailable means that nothing
// of the batch was written, CodeUnknown that it may have been.
func (s *Store) Batch(now perdure.Instant, ops ...Op) []error {
	return s.lanes[LaneWork].batchIn(now, ops)
}

// batchIn makes a batch in a lane, and calls the callbacks of Tx.After.
func (l *lane) batchIn(now perdure.Instant, ops []Op) []error {
	l.mu.Lock()
	errs, after := l.batch(now, ops, false, false)
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
	return errs
}

// notBefore gives the instant of a batch: now, or that of the latest batch if that is later.
func (s *Store) notBefore(now perdure.Instant) perdure.Instant {
	for {
		last := s.last.Load()
		if int64(now) <= last {
			return perdure.Instant(last)
		}
		if s.last.CompareAndSwap(last, int64(now)) {
			return now
		}
	}
}

// batch decides and writes, and tries again after conflicts. paced says that callers wait, so that
// a sweep respects its time limit. again says that the operations are part of a batch that could
// not be written.
func (l *lane) batch(now perdure.Instant, ops []Op, paced, again bool) ([]error, []func()) {
	s := l.s
	var err error
	var contended map[lockKey]bool
	recount, looks := false, 0
	begin, remembered := time.Now(), s.trusted()
	l.stillLocked()
	alone := !paced || isSweep(ops) || l.alone > 0
	for try := 1; ; try++ {
		if fail := s.Err(); fail != nil {
			return sameError(len(ops), perdure.Errorf(perdure.CodeUnavailable, "%v", fail)), nil
		}
		spent := s.file.ReserveSpent()
		tx := newTx(s, l.read, s.notBefore(now))
		tx.cache, tx.Again, tx.ignoreAge = remembered, again || try > 1, try > maxOld
		tx.recount, tx.locked, tx.contended, tx.paced = recount, l.lockedKeys(contended), contended, paced
		tx.alone = alone
		var errs []error
		errs, err = tx.decide(ops)
		if err == nil && l.needsTurn(tx) {
			alone = true
			tx.endTurn()
			tx.drop()
			continue
		}
		if err == nil {
			err = tx.verify()
		}
		if err == nil && !tx.empty() {
			if looks < maxLooks && l.lookAhead(tx) {
				looks++
				tx.endTurn()
				tx.forget()
				continue
			}
			if s.opt.Hooks.BeforeWrite != nil {
				s.opt.Hooks.BeforeWrite()
			}
			writing := time.Now()
			if err = l.commit(tx); err == nil && s.opt.Observe != nil && (l != s.tester || l == s.lanes[LaneWork]) {
				s.opt.Observe(Written{l.id, len(ops), time.Since(begin), time.Since(writing)})
			}
		}
		tx.endTurn()
		if err == nil {
			if s.opt.Hooks.Written != nil {
				s.opt.Hooks.Written(tx.Runs.touched())
			}
			tx.remember()
			return errs, tx.after
		}
		tx.forget()
		remembered = nil // the cache may be the cause: read everything from now on
		switch {
		case errors.Is(err, errConflict) || s.dialect.conflict(err):
			// A unique key exists although the counter in its row says otherwise: the counter may
			// be damaged.
			recount = recount || try > 2 && !errors.Is(err, errConflict)
			alone = alone || try > 1
			if try > 1 && isSweep(ops) {
				contended = l.contended(tx, contended)
			}
			if try < tries(len(ops)) {
				if try > 2 && s.readers != nil {
					s.pause(rand.N(time.Duration(try) * time.Millisecond)) // let concurrent writers finish
				}
				continue
			}
		case s.dialect.locked(err):
			if try < maxTries && l.findLocked(tx, ops, try) {
				continue
			}
			if len(s.LockedTables()) > 0 {
				return sameError(len(ops), refusedTable), nil
			}
		case diskFull(err):
			if try < 3 && s.file.SpendReserve(spent) {
				continue // with the reserve freed
			}
			if len(ops) == 1 {
				return sameError(1, s.refusedWrite(1, errNoSpace)), nil
			}
			err = refusedFull
		case s.dialect.readOnly(err):
			if try == 1 {
				continue // on a new connection, perhaps to the new primary
			}
			return sameError(len(ops), s.refusedWrite(len(ops), readOnly(err))), nil
		case s.dialect.lost(err):
			if time.Since(begin) < maxWait && s.Away() == nil {
				s.pause(10*time.Millisecond + rand.N(40*time.Millisecond))
				continue
			}
		}
		break
	}
	if len(ops) == 1 && errors.Is(err, errConflict) && !isSweep(ops) {
		return sameError(1, errContended), nil
	}
	code := perdure.CodeOf(err)
	if len(ops) > 1 && code != perdure.CodeUnknown && !s.dialect.lost(err) && !s.dialect.busy(err) {
		// One operation may be the cause. The others must not fail with it.
		half := len(ops) / 2
		errs, after := l.batch(now, ops[:half], paced, true)
		e, a := l.batch(now, ops[half:], paced, true)
		return append(errs, e...), append(after, a...)
	}
	if code == perdure.CodeInternal {
		switch {
		case s.dialect.blocked(err): // File.Blocked has logged it
		case s.dialect.lost(err):
			s.outage.refused(0, len(ops), err)
		default:
			s.log.Error("a batch was not written", "operations", len(ops), "error", err)
		}
		err = s.unavailable(err)
	}
	return sameError(len(ops), err), nil
}

// aloneFor is for how many batches a lane has its turn at limits alone after one that had to.
const aloneFor = 8

// needsTurn tells whether a batch has to be decided again, alone: it writes whole rows of limits. The next ones of the
// lane will have to as well.
func (l *lane) needsTurn(tx *Tx) bool {
	switch {
	case !tx.turn:
		return false
	case tx.LimitKeys.alone():
		l.alone = aloneFor
		return !tx.alone
	}
	l.alone = max(0, l.alone-1)
	return false
}

// pause waits before another try, or until the store is closed.
func (s *Store) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
	}
}

// unavailable is the error that callers get. It does not reveal the address of the database or its
// user.
func (s *Store) unavailable(err error) error {
	switch {
	case s.dialect.lost(err):
		return refusedLost
	case s.dialect.blocked(err):
		return refusedBlocked
	case s.dialect.late(err) || s.dialect.busy(err):
		return refusedLate
	}
	return perdure.Errorf(perdure.CodeUnavailable,
		"nothing was written: the store made an error, which is in the server's log")
}

// sameError gives the same error for each of n operations.
func sameError(n int, err error) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

// decide runs the operations. A refusal is the operation's error; any other error is the batch's.
func (tx *Tx) decide(ops []Op) ([]error, error) {
	if len(ops) > 1 {
		if err := tx.readTogether(ops); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(ops))
	for i, op := range ops {
		refusal, err := tx.decideOne(op)
		if err != nil {
			return nil, err
		}
		if errs[i] = refusal; refusal == nil {
			continue
		}
		for _, ref := range op.Needs() {
			tx.refused = append(tx.refused, runKey{ref.Tenant, ref.Run})
		}
	}
	if tx.last != nil {
		if _, err := tx.decideOne(tx.last); err != nil {
			return nil, err
		}
	}
	return errs, nil
}

// decideOne runs an operation. The changes that a refused one has staged are undone.
func (tx *Tx) decideOne(op Op) (refusal, err error) {
	tx.mark()
	before := tx.Cost()
	err = doSafely(tx, op)
	if tx.s.opt.Hooks.Spent != nil {
		tx.s.opt.Hooks.Spent(op, tx.Cost().Minus(before))
	}
	if err == nil {
		err = tx.refuseLocked()
	}
	if err == nil {
		return nil, nil
	}
	tx.rollback()
	var refused *perdure.Error
	if errors.As(err, &refused) {
		return err, nil
	}
	return nil, err
}

// readTogether reads in few queries what the operations have declared by Needs, Lookups and
// IdempotencyKey.
func (tx *Tx) readTogether(ops []Op) error {
	need := make(map[perdure.TenantID][]perdure.RunID)
	var order []perdure.TenantID
	var lookups []Lookup
	var keys []idempotencyKey
	for _, op := range ops {
		for _, ref := range op.Needs() {
			if need[ref.Tenant] == nil {
				order = append(order, ref.Tenant)
			}
			need[ref.Tenant] = append(need[ref.Tenant], ref.Run)
		}
		if x, ok := op.(lookingUp); ok {
			lookups = append(lookups, x.Lookups()...)
		}
		if x, ok := op.(keyed); ok {
			if t, key := x.IdempotencyKey(); key != "" {
				keys = append(keys, idempotencyKey{t, key})
			}
		}
	}
	for _, t := range order {
		if err := tx.Runs.Load(t, need[t]); err != nil {
			return err
		}
	}
	if err := tx.lookUp(lookups); err != nil { // after the runs: their versions guard it
		return err
	}
	if len(keys) < 2 {
		return nil // Do reads a single one
	}
	return tx.Idempotency.load(keys)
}

// doSafely runs an operation and turns a panic into a refusal of that operation.
func doSafely(tx *Tx, op Op) (err error) {
	defer func() {
		if p := recover(); p != nil {
			tx.s.log.Error("an operation panicked", "operation", fmt.Sprintf("%T", op), "panic", p, "stack",
				string(debug.Stack()))
			err = perdure.Errorf(perdure.CodeInternal, "the server has a defect: %v", p)
		}
	}()
	return op.Do(tx)
}

// commit writes what a batch has staged.
func (l *lane) commit(tx *Tx) error {
	s := l.s
	list := tx.statements()
	l.writing.Lock()
	defer l.writing.Unlock()
	if s.outdated(tx) {
		return errConflict
	}
	open, err := execAll(l.write, list)
	if err != nil {
		if !open {
			if s.dialect.blocked(err) {
				s.file.Blocked()
			}
			return err
		}
		// SQLite has rolled back by itself when the disk is full.
		if back := l.write.Rollback(); back != nil && s.dialect.fatal && !diskFull(err) {
			s.stopWrites(fmt.Errorf("a rollback failed: %w", back))
		}
		return err
	}
	if s.floor.Load() != tx.floor { // it was decided on a server that was replaced
		_ = l.write.Rollback()
		return errConflict
	}
	begin := time.Now()
	err = l.write.Commit()
	if err == nil {
		l.queue.madeDurable(time.Since(begin))
		s.written()
		return nil
	}
	if s.dialect.lost(err) || s.dialect.conflict(err) {
		return err // nothing was committed
	}
	_ = l.write.Rollback()
	if diskFull(err) || s.dialect.blocked(err) {
		return err // the write-ahead log ends before the commit record: nothing was committed
	}
	if s.dialect.fatal {
		s.stopWrites(fmt.Errorf("a commit failed: %w", err))
	}
	s.log.Error("a commit failed; what it held may or may not be stored", "error", err)
	if errors.Is(err, pg.ErrInDoubt) {
		err = pg.ErrInDoubt
	}
	return perdure.Errorf(perdure.CodeUnknown, "the commit failed: %v", err)
}

// Do decides and writes an operation together with others that wait, and returns when it is
// durable. If the context ends before the operation has begun, the operation is withdrawn.
func (s *Store) Do(ctx context.Context, op Op) error { return s.DoAll(ctx, op)[0] }

// DoAll is Do for several operations. They are written in their order, in one batch as far as they
// fit, and each has its own error. All of them use the lane of the first. A single operation that
// needs a locked row, or a row that other nodes change all the time, is tried again for a while,
// without holding up others. The watchdog skips such a row by itself.
func (s *Store) DoAll(ctx context.Context, ops ...Op) []error {
	errs := s.doAll(ctx, ops)
	again := func() bool { return Locked(errs[0]) || same(errs[0], errContended) }
	if len(ops) != 1 || !again() || isSweep(ops) {
		return errs
	}
	begin := time.Now()
	for pause := lookAgain; again() && time.Since(begin) < askAgain; pause = min(2*pause, askEvery) {
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errs
		}
		errs = s.doAll(ctx, ops)
	}
	return errs
}

// doAll is DoAll with one try.
func (s *Store) doAll(ctx context.Context, ops []Op) []error {
	if len(ops) == 0 {
		return nil
	}
	l := s.lanes[laneOf(ops, s.Shared())]
	t := fair.Tenant(ctx)
	if l.queue.queued.Load() == 0 && l.queue.patience() == 0 && ctx.Err() == nil &&
		(len(ops) == 1 || fitBatch(ops)) && l.queue.mayPass(t, ops) && l.mu.TryLock() {
		return l.batchDirect(t, ops) // no other operation to share a commit with: skip the queue
	}
	r := newRequest(t, ops)
	if err := l.queue.push(r); err != nil {
		return sameError(len(ops), err)
	}
	var gone error
	select {
	case <-r.done:
		return r.errs
	case <-ctx.Done():
		gone = fmt.Errorf("not begun: %w", ctx.Err())
	case <-s.done:
		gone = errClosed
	}
	l.queue.withdraw(r, perdure.Errorf(perdure.CodeUnavailable, "%v", gone))
	<-r.done // if the batch has begun, this is its answer
	return r.errs
}

// batchDirect makes a batch in the caller's goroutine. The caller holds l.mu.
func (l *lane) batchDirect(t perdure.TenantID, ops []Op) []error {
	s := l.s
	done, begin := false, time.Now()
	defer func() {
		if !done {
			// A caller may recover from a panic. The batch is half done, so that the store must not
			// write any more.
			s.stopWrites(errors.New("a batch was broken off"))
			l.mu.Unlock()
		}
	}()
	errs, after := l.batch(s.clock(), ops, true, false)
	done = true
	l.queue.wrote(t, ops, time.Since(begin))
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
	return errs
}

// commitLoop makes the batches of a lane. While one is being made durable, the next one gathers.
func (l *lane) commitLoop() {
	s := l.s
	ops, from := make([]Op, 0, maxBatch), make([]entry, 0, maxBatch)
	for {
		select {
		case <-l.queue.bell:
		case <-s.done:
			return
		}
		for l.commitNext(ops, from) {
		}
	}
}

// commitNext makes a batch of the waiting operations, and tells whether there were any. The lists
// are empty and are reused.
func (l *lane) commitNext(ops []Op, from []entry) bool {
	s := l.s
	if d := l.queue.patience(); d > 0 {
		s.pause(d)
	}
	l.mu.Lock()
	ops, from = l.queue.gather(ops, from)
	if len(ops) == 0 {
		l.mu.Unlock()
		return false
	}
	l.queue.gathered(len(ops))
	begin := time.Now()
	errs, after := l.batch(s.clock(), ops, true, false)
	l.queue.wrote(from[0].r.tenant, ops[:1], time.Since(begin))
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
	l.queue.answer(from, errs)
	clear(ops)
	clear(from)
	return true
}
