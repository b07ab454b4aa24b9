package supervisor

// Change changes the options of a supervisor, as a new release or configuration does.
func (s *Supervisor) Change(f func(*Options)) { f(&s.opt) }

// Held returns the bytes that conversations hold, and reading those that one takes to begin.
func (s *Supervisor) Held() (bytes, reading int64) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return s.memory.used, baseBytes + s.readingBytes()
}
