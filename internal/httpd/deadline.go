package httpd

import (
	"net/http"
	"time"
)

// Every answer has a write deadline. An ordinary answer has AnswerTime and a second for each AnswerRate of its
// bytes. A download has BodyTimeout for each write and a minimum rate over all of them. Streams and sockets have
// Patience for each write. A connection whose deadline passes is closed, and its buffers are freed.

const (
	defaultAnswerTime = 10 * time.Second
	defaultAnswerRate = 64 << 10
	// downloadRate is the slowest that a download may be, in bytes a second, after its first BodyTimeout.
	downloadRate = 16 << 10
)

// allow sets the write deadline of an answer with so many bytes.
func (s *Server) allow(w http.ResponseWriter, size int) {
	d := s.opt.AnswerTime + time.Duration(size)*time.Second/time.Duration(s.opt.AnswerRate)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d)) // in process there is none to set
}

// timed sets a write deadline for each write, for handlers that write in several steps.
type timed struct {
	http.ResponseWriter
	s *Server
}

func (w timed) Write(b []byte) (int, error) {
	w.s.allow(w.ResponseWriter, len(b))
	return w.ResponseWriter.Write(b)
}

// A pace is how long writes of a download may take. Only the time within writes counts: the store's own time is
// not the reader's fault.
type pace struct {
	sent  int64
	spent time.Duration
}

// left is how long the next write may take, with so many bytes.
func (p *pace) left(grace time.Duration, n int) time.Duration {
	due := grace + time.Duration(p.sent+int64(n))*time.Second/downloadRate
	return min(grace, due-p.spent)
}
