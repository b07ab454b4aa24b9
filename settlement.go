package perdure

import "cmp"

// A Settlement decides about the class of a run whose kind was not known when the run was accepted.
// Such a run has the deadline of an agent, because an agent that is taken for a task would be ended
// too early. The first grant settles the class by what workers have announced until then.
type Settlement struct {
	Class Class
	// Timeout is the kind's, for a run that has none of its own. A retry of the run takes it.
	Timeout Duration
	// DeadlineAt is never later than the deadline that the run was accepted with.
	DeadlineAt Instant
}

// Settle decides about the class of an open run that is granted now: that of its kind, and task if the
// kind names none. The timeout of the kind or of the class counts from now on. A timeout that the
// request has given stays as it was accepted, even if it is above the greatest of the class.
func (p *Policy) Settle(r *Run, kind *KindDef, now Instant) *Settlement {
	s := &Settlement{Class: cmp.Or(kind.Class, Task), Timeout: r.Options.Timeout, DeadlineAt: r.DeadlineAt}
	if s.Timeout != 0 {
		return s
	}
	s.Timeout = p.DefaultTimeout(s.Class, kind)
	if at, err := p.Deadline(s.Class, s.Timeout, now); err == nil {
		s.DeadlineAt = min(s.DeadlineAt, at)
	}
	return s
}

func (s *Settlement) apply(r *Run) {
	r.Class, r.DeadlineAt = s.Class, min(r.DeadlineAt, s.DeadlineAt)
	r.Options.Timeout, r.Options.Process, r.Options.Open = s.Timeout, s.Class == Process, false
}
