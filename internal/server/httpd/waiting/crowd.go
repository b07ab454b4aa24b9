package waiting

import (
	"container/list"
	"sync"

	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A crowd is the calls that wait for one run, when there are many. Each line of the run's log rings,
// and each ring would wake all of them: with eight thousand joins of one run, other tenants would wait
// for a processor behind them.
//
// So one goroutine follows the run for its crowd. It wakes the members when the run has ended, few at a
// time: the next one goes on when the answer of an earlier one is encoded (Options.Turn).
type crowd struct {
	calls      int  // that wait for the run, as members or for themselves
	followed   bool // by the goroutine
	foreground bool // the run has waiters
	members    *list.List
}

// A member is a call of a crowd.
type member struct {
	of  *crowd
	at  *list.Element
	end chan func() // gets one function, which gives the member's turn back
}

// CrowdSize is the number of calls from which on a run is followed. The first ones follow it for
// themselves.
const CrowdSize = 8

// crowds has the crowds of a node.
type crowds struct {
	mu sync.Mutex // taken before the lock of the gate that quit gives a turn back to
	of map[kernel.Ref]*crowd
}

// enter counts a call that has seen a living run and waits for it, until leave is called. follow is set
// for the call that makes the crowd large: it has to see to it that the run is followed.
func (s *crowds) enter(ref kernel.Ref, foreground bool) (leave func(), follow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cr := s.of[ref]
	if cr == nil {
		if s.of == nil {
			s.of = make(map[kernel.Ref]*crowd)
		}
		cr = &crowd{foreground: foreground, members: list.New()}
		s.of[ref] = cr
	}
	cr.calls++
	if follow = cr.calls >= CrowdSize && !cr.followed; follow {
		cr.followed = true
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		cr.calls--
		s.tidy(ref, cr)
	}, follow
}

// tidy forgets a crowd that nobody waits in and whose run is not followed. The caller holds s.mu.
func (s *crowds) tidy(ref kernel.Ref, cr *crowd) {
	if cr.calls == 0 && !cr.followed && s.of[ref] == cr {
		delete(s.of, ref)
	}
}

// join makes a call a member, if the run is followed.
func (s *crowds) join(ref kernel.Ref) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	cr := s.of[ref]
	if cr == nil || !cr.followed {
		return nil
	}
	m := &member{of: cr, end: make(chan func(), 1)}
	m.at = cr.members.PushBack(m)
	return m
}

// quit removes a member that waits no longer. It gives back the turn of a member that was woken and
// has not noticed.
func (s *crowds) quit(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.of.members.Remove(m.at)
	select {
	case leave := <-m.end:
		leave()
	default:
	}
}

// wakeNext wakes the member that has waited for longest, and gives it a turn. It returns false if there
// is none.
func (s *crowds) wakeNext(cr *crowd, leave func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	front := cr.members.Front()
	if front == nil {
		return false
	}
	cr.members.Remove(front)
	front.Value.(*member).end <- leave
	return true
}

// unfollow ends the following of a run if nobody waits, or in any case if the run is over. Calls that
// come later look for themselves.
func (s *crowds) unfollow(ref kernel.Ref, over bool) (*crowd, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cr := s.of[ref]
	if cr.calls > 0 && !over {
		return nil, false
	}
	cr.followed = false
	delete(s.of, ref)
	return cr, true
}
