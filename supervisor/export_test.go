package supervisor

// Change changes the options of a supervisor, as a new release or configuration does.
func (s *Supervisor) Change(f func(*Options)) { f(&s.opt) }
