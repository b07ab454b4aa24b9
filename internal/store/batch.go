package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/fair"
	"github.com/perdure/perdure/internal/store/pg"
)

// A Lane is a way into the store for operations of one kind. Lanes decide at the same time, each one batch after
// the other; what they decided holds only if nobody else was quicker, as between two nodes. On SQLite, where there is
// one writer, the first three are one.
type Lane int

const (
	LaneWork   Lane = iota // what workers say, and everything else
	LaneSubmit             // new runs
	LaneClaim              // polls: those of one queue would only get into each other's way
	LaneWatch              // the watchdog
	LaneNotify             // what is sent to webhooks: its nodes only get into each other's way
	LaneBulk               // artifacts, and what is removed: nobody else shall wait for that
	lanes
)

// inLane is an operation that says where it belongs; one that does not is work.
type inLane interface{ Lane() Lane }

// String is the lane's name in metrics.
func (l Lane) String() string {
	return [...]string{"work", "submit", "claim", "watch", "notify", "upload"}[l]
}

// Lanes are all there are.
func Lanes() (all []Lane) {
	for l := range lanes {
		all = append(all, l)
	}
	return all
}

// A Written tells of a batch that was written.
type Written struct {
	Lane       Lane // of a store in memory, which has one, LaneWork
	Operations int
	Took       time.Duration // all of it, from its first decision on
	Commit     time.Duration // the last part: writing it, and until it was durable
}

type lane struct {
	s       *Store
	id      Lane
	mu      sync.Mutex // one batch at a time
	read    Session    // decides on what this reads …
	write   Session    // … and writes with this
	writing *sync.Mutex
	queue   *queue
	locked  map[any]bool // rows that somebody else was found to hold locked; see locks.go
}

func newLane(s *Store, read, write Session, writing *sync.Mutex) *lane {
	return &lane{s: s, read: read, write: write, writing: writing, queue: newQueue()}
}

// How often a batch is decided anew because somebody else was quicker, and for how long because the connection
// was lost. A batch of several operations is halved after fewer tries: one of them may be what conflicts time and
// again, and the others shall not be held up by it.
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

// MaxAge is how old a decision is at most when it begins to be written, where there are other nodes: what it went by and
// no version guards, such as which endpoints there are, may have changed since. A batch that is outdated maxOld times,
// because the database is slow or somebody changes things all the time, is written all the same: work goes on.
const (
	MaxAge = 500 * time.Millisecond
	maxOld = 3
)

// Batch decides the operations one after the other and writes what they staged in one transaction. When
// it returns, what was not refused is durable. There is one error per operation, in order: a refusal
// concerns that one alone, CodeUnavailable means that nothing of the batch was written, CodeUnknown that
// it may have been.
func (s *Store) Batch(now perdure.Instant, ops ...Op) []error {
	return s.lanes[LaneWork].batchIn(now, ops)
}

func (l *lane) batchIn(now perdure.Instant, ops []Op) []error {
	l.mu.Lock()
	errs, after := l.batch(now, ops, false, false)
	l.mu.Unlock()
	for _, f := range after {
		f()
	}
	return errs
}

// notBefore gives the time of a batch: now, or later if an earlier batch was later.
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

// batch decides and writes. With paced others wait for it, so that a sweep looks at the time. With again it is part of one that could not be written.
func (l *lane) batch(now perdure.Instant, ops []Op, paced, again bool) ([]error, []func()) {
	s := l.s
	var err error
	var contended map[any]bool
	doubt := false
	begin, remembered := time.Now(), s.trusted()
	l.stillLocked()
	for try := 1; ; try++ {
		if fail := s.Err(); fail != nil {
			return all(len(ops), perdure.Errorf(perdure.CodeUnavailable, "%v", fail)), nil
		}
		tx := newTx(s, l.read, s.notBefore(now))
		tx.cache, tx.Again, tx.mayAge = remembered, again || try > 1, try > maxOld
		tx.doubt, tx.locked, tx.contended, tx.paced = doubt, l.locked, contended, paced
		if len(contended) > 0 {
			tx.locked = maps.Clone(contended)
			maps.Copy(tx.locked, l.locked)
		}
		var errs []error
		errs, err = tx.decide(ops)
		if err == nil {
			err = tx.verify()
		}
		if err == nil && !tx.empty() {
			if s.opt.Hooks.BeforeWrite != nil {
				s.opt.Hooks.BeforeWrite()
			}
			writing := time.Now()
			if err = l.commit(tx); err == nil && s.opt.Observe != nil && (l != s.tester || l == s.lanes[LaneWork]) {
				s.opt.Observe(Written{l.id, len(ops), time.Since(begin), time.Since(writing)})
			}
		}
		if err == nil {
			if s.opt.Hooks.Written != nil {
				s.opt.Hooks.Written(tx.Runs.touched())
			}
			tx.remember()
			return errs, tx.after
		}
		tx.forget()
		remembered = nil // what was remembered may be why: from here on everything is read
		switch {
		case errors.Is(err, errConflict) || s.dialect.conflict(err):
			// A key that is there although its row says otherwise, time and again: its row may be wrong.
			doubt = doubt || try > 2 && !errors.Is(err, errConflict)
			if try > 1 && isSweep(ops) {
				contended = l.contended(tx, contended)
			}
			if try < tries(len(ops)) {
				if try > 2 && s.readers != nil {
					s.pause(rand.N(time.Duration(try) * time.Millisecond)) // let the others get out of the way
				}
				continue
			}
		case s.dialect.locked(err):
			if try < maxTries && l.findLocked(tx, try) {
				continue
			}
		case diskFull(err):
			if try < 3 && s.file.SpendReserve() {
				continue // in what was kept back
			}
			if len(ops) == 1 {
				return all(1, s.refusedWrite(errNoSpace)), nil
			}
			err = perdure.Errorf(perdure.CodeStorageFull, "nothing was written: %v", errNoSpace)
		case s.dialect.readOnly(err):
			if try == 1 {
				continue // on a new connection, perhaps to another server
			}
			return all(len(ops), s.refusedWrite(errReadOnly)), nil
		case s.dialect.lost(err):
			if time.Since(begin) < maxWait && s.Away() == nil {
				s.pause(10*time.Millisecond + rand.N(40*time.Millisecond))
				continue
			}
		}
		break
	}
	code := perdure.CodeOf(err)
	if len(ops) > 1 && code != perdure.CodeUnknown && !s.dialect.lost(err) && !s.dialect.busy(err) {
		// One of them may be to blame; the others shall not pay for it.
		half := len(ops) / 2
		errs, after := l.batch(now, ops[:half], paced, true)
		e, a := l.batch(now, ops[half:], paced, true)
		return append(errs, e...), append(after, a...)
	}
	if code == perdure.CodeInternal {
		if !s.dialect.blocked(err) { // that was said once
			s.log.Error("a batch was not written", "operations", len(ops), "error", err)
		}
		err = s.unavailable(err)
	}
	return all(len(ops), err), nil
}

// isSweep tells whether a batch is one sweep of the watchdog, which is about many rows that have nothing to do with each other.
func isSweep(ops []Op) bool {
	x, ok := ops[0].(inLane)
	return ok && len(ops) == 1 && x.Lane() == LaneWatch
}

// Outdate has the batches of this process that are not being written yet decided again: something that they went by, and
// that no version guards, is different now.
func (s *Store) Outdate() { s.changes.Add(1) }

func (s *Store) outdated(tx *Tx) bool {
	return !tx.mayAge && (tx.changes != s.changes.Load() || s.age != nil && s.age(tx.begun) > MaxAge)
}

// pause waits before another try, and no longer than the store is open.
func (s *Store) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
	}
}

// unavailable is what callers are told. Where the database is and who we are there is not their business.
func (s *Store) unavailable(err error) error {
	if s.dialect.lost(err) {
		return perdure.Errorf(perdure.CodeUnavailable, "nothing was written: %v", pg.ErrLost)
	}
	if s.dialect.blocked(err) {
		return perdure.Errorf(perdure.CodeUnavailable, "nothing was written: another program holds the database locked")
	}
	return perdure.Errorf(perdure.CodeUnavailable, "nothing was written: the store made an error, which is in the server's log")
}

func all(n int, err error) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

// decide runs the operations. Refusals are theirs; any other error is the batch's.
func (tx *Tx) decide(ops []Op) ([]error, error) {
	if len(ops) > 1 {
		if err := tx.readTogether(ops); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(ops))
	for i, op := range ops {
		tx.mark()
		before := tx.Cost()
		err := guarded(tx, op)
		if tx.s.opt.Hooks.Spent != nil {
			tx.s.opt.Hooks.Spent(op, tx.Cost().Minus(before))
		}
		if err == nil {
			err = tx.untouched()
		}
		if err == nil {
			continue
		}
		tx.rollback()
		var refusal *perdure.Error
		if !errors.As(err, &refusal) {
			return nil, err
		}
		errs[i] = err
		for _, ref := range op.Needs() {
			tx.judged = append(tx.judged, runKey{ref.Tenant, ref.Run})
		}
	}
	return errs, nil
}

// readTogether reads at once what the operations say that they are going to read one after the other.
func (tx *Tx) readTogether(ops []Op) error {
	need := make(map[perdure.TenantID][]perdure.RunID)
	var order []perdure.TenantID
	var lookups []Lookup
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
	}
	for _, t := range order {
		if err := tx.Runs.Load(t, need[t]); err != nil {
			return err
		}
	}
	return tx.lookUp(lookups) // after the runs, whose versions guard it
}

// guarded turns a panic of one operation into a refusal of that operation.
func guarded(tx *Tx, op Op) (err error) {
	defer func() {
		if p := recover(); p != nil {
			tx.s.log.Error("an operation panicked", "operation", fmt.Sprintf("%T", op), "panic", p, "stack", string(debug.Stack()))
			err = perdure.Errorf(perdure.CodeInternal, "the server has a defect: %v", p)
		}
	}()
	return op.Do(tx)
}

// commit writes what a batch staged.
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
		if back := l.write.Rollback(); back != nil && s.dialect.fatal && !diskFull(err) { // a full disk has rolled back already
			s.doubt(fmt.Errorf("a rollback failed: %w", back))
		}
		return err
	}
	err = l.write.Commit()
	if err == nil {
		s.written()
		return nil
	}
	if s.dialect.lost(err) || s.dialect.conflict(err) {
		return err // it did not happen
	}
	_ = l.write.Rollback()
	if diskFull(err) || s.dialect.blocked(err) {
		return err // the log could not be written to its end, so the commit is not in it
	}
	if s.dialect.fatal {
		s.doubt(fmt.Errorf("a commit failed: %w", err))
	}
	s.log.Error("a commit failed; what it held may or may not be stored", "error", err)
	if errors.Is(err, pg.ErrInDoubt) {
		err = pg.ErrInDoubt
	}
	return perdure.Errorf(perdure.CodeUnknown, "the commit failed: %v", err)
}

// ---- group commit

// Do has an operation decided and written together with whatever else is waiting, and returns when it is
// durable. A caller that goes away before its operation is begun withdraws it.
func (s *Store) Do(ctx context.Context, op Op) error { return s.DoAll(ctx, op)[0] }

// DoAll is Do for operations that came together: they are written in their order, in one batch as far as they fit
// into it, and each has its own error. They belong to one lane, that of the first.
func (s *Store) DoAll(ctx context.Context, ops ...Op) []error {
	if len(ops) == 0 {
		return nil
	}
	l := s.lanes[LaneWork]
	if x, ok := ops[0].(inLane); ok {
		l = s.lanes[x.Lane()]
	}
	t := fair.Tenant(ctx)
	if l.queue.queued.Load() == 0 && ctx.Err() == nil && (len(ops) == 1 || fit(ops)) && l.queue.mayPass(t, ops) && l.mu.TryLock() {
		return l.atOnce(t, ops) // nobody to share a commit with, and no goroutine to wait for
	}
	r := newRequest(t, ops)
	if err := l.queue.push(r); err != nil {
		return all(len(ops), err)
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
	<-r.done // of a batch that has begun, the answer
	return r.errs
}

// atOnce makes a batch of its own, in the caller's goroutine. The caller holds l.mu.
func (l *lane) atOnce(t perdure.TenantID, ops []Op) []error {
	s := l.s
	done, begin := false, time.Now()
	defer func() {
		if !done {
			// Whoever called may live through a panic; what is half done must not be gone on with.
			s.doubt(errors.New("a batch was broken off"))
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

// commitLoop is the thin shell around a lane's batches: while one is being made durable, the next one gathers.
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

// commitNext makes a batch of those who wait, and tells whether there was one. The lists are empty and are reused.
func (l *lane) commitNext(ops []Op, from []entry) bool {
	s := l.s
	l.mu.Lock()
	ops, from = l.queue.gather(ops, from)
	if len(ops) == 0 {
		l.mu.Unlock()
		return false
	}
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
