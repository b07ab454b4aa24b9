package store

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
)

// View calls f with a consistent view. The readers are shared fairly between tenants; see
// fair.With.
func (s *Store) View(ctx context.Context, f func(*View) error) error {
	if s.gate == nil {
		return s.view(ctx, nil, f)
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return s.view(ctx, s.readers, f)
}

// readPatience is how long a read waits for a session: twice the limit of a query, so that those
// under way have ended by then.
func (s *Store) readPatience() time.Duration { return 2 * s.opt.QueryDeadline }

// enter waits until the caller's tenant may use one of the readers.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	t := fair.Tenant(ctx)
	if leave, ok := s.gate.TryEnter(t, 1); ok {
		return leave, nil
	}
	patient, cancel := context.WithTimeout(ctx, s.readPatience())
	defer cancel()
	leave, err = s.gate.Enter(patient, t, 1)
	switch {
	case err == nil:
		return leave, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.gate.Used() < readers: // the free one is for other tenants
		return nil, perdure.Errorf(perdure.CodeTooMany, "%d reads of this tenant are under way, and they take long",
			readerShare)
	}
	return nil, perdure.Errorf(perdure.CodeUnavailable, "no reader came free within %s: try again", s.readPatience())
}

// Keep is View for background work of the server, such as the watchdog. It has a session of its own
// and does not wait for other reads.
func (s *Store) Keep(ctx context.Context, f func(*View) error) error { return s.view(ctx, s.keeper, f) }

// Keys is View for looking up API keys. Every call begins with such a lookup, which does not wait
// for the reads of other calls.
func (s *Store) Keys(ctx context.Context, f func(*View) error) error { return s.view(ctx, s.keys, f) }

// Count is View for counting everything, as the metrics do. Its queries have a longer time limit.
func (s *Store) Count(ctx context.Context, f func(*View) error) error {
	return s.view(ctx, s.counter, f)
}

// Audit is View for reading everything: on a connection of its own, one at a time, without a time
// limit.
func (s *Store) Audit(ctx context.Context, f func(*View) error) error {
	if s.auditor == nil {
		return s.View(ctx, f)
	}
	s.audit.Lock()
	defer s.audit.Unlock()
	sess, err := s.auditor()
	if err != nil {
		return err
	}
	defer sess.Close()
	one := newIdle(1)
	one.put(sess)
	return s.view(ctx, one, f)
}

// view calls f with a view over an idle session, and translates database errors for callers.
func (s *Store) view(ctx context.Context, from *idle, f func(*View) error) error {
	if from == nil {
		l := s.lanes[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		return f(newView(s.clock(), s.dialect, l.read))
	}
	r, err := s.take(ctx, from)
	if err != nil {
		return err
	}
	defer from.put(r)
	err = r.Begin()
	if err == nil {
		defer r.Rollback()
		err = f(newView(s.clock(), s.dialect, r))
	}
	switch {
	case err != nil && s.dialect.late(err):
		s.log.Warn("a query took too long and was ended", "tenant", fair.Tenant(ctx), "error", err)
		return perdure.Errorf(perdure.CodeQueryTimeout, "a query took longer than it may: ask for less")
	case err != nil && s.dialect.lost(err):
		s.outage.refused(1, 0, err)
		return refusedRead
	}
	if err != nil && s.dialect.locked(err) { // reads wait for no row: it is a whole table
		s.locks.lookAtTables(s)
		return perdure.Errorf(perdure.CodeUnavailable, "%v", errTableLocked)
	}
	if err != nil && s.dialect.readOnly(err) { // a standby may show old rows, and so does an old primary
		s.outage.refused(1, 0, err)
		return refusedStandby
	}
	return err
}

// take waits for an idle session.
func (s *Store) take(ctx context.Context, from *idle) (Conn, error) {
	select {
	case <-from.count:
		return from.pop(), nil
	default:
	}
	t := time.NewTimer(s.readPatience())
	defer t.Stop()
	select {
	case <-from.count:
		return from.pop(), nil
	case <-t.C:
		return nil, perdure.Errorf(perdure.CodeUnavailable, "no reader came free within %s: try again",
			s.readPatience())
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.done:
		return nil, perdure.Errorf(perdure.CodeUnavailable, "%v", errClosed)
	}
}
