package answer

import "github.com/perdure/perdure/internal/doors/frame"

// A Stream writes server-sent events.
type Stream struct {
	*Open
	// Prefix is written before the place of a frame in its log. It is for streams of several runs.
	Prefix string

	began bool
	buf   []byte
}

// Send writes frames with the ids of their places in the log, which begin with first. flush is false if more will
// follow at once.
func (s *Stream) Send(line int64, first int, frames []frame.Frame, flush bool) error {
	if err := s.Begin(); err != nil {
		return err
	}
	s.buf = s.buf[:0]
	for i, f := range frames {
		if !f.Bare {
			s.buf = append(append(s.buf, "id: "...), s.Prefix...)
			s.buf = append(append(s.buf, frame.Cursor{Line: line, Frame: first + i}.String()...), '\n')
		}
		if f.Event != "" {
			s.buf = append(append(append(s.buf, "event: "...), f.Event...), '\n')
		}
		s.buf = append(append(append(s.buf, "data: "...), f.Data...), "\n\n"...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(s.buf, flush)
}

// Begin flushes the headers, if that has not happened yet.
func (s *Stream) Begin() error {
	if s.began {
		return nil
	}
	s.began = true
	return s.Open.Begin()
}
