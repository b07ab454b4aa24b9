package httpd

import (
	"net/http"
	"time"
)

// Every answer has a write deadline. An ordinary answer has AnswerTime plus a second for each
// AnswerRate of its bytes. A download has BodyTimeout for each write, and a minimum rate over all
// of them. Streams and sockets have StreamWriteTimeout for each write. A connection whose deadline
// passes is closed, and its buffers are freed.

const (
	// downloadRate is the minimum rate of a download in bytes a second, after its first
	// BodyTimeout.
	downloadRate = 16 << 10
)

// setWriteDeadline sets the write deadline of an answer with so many bytes. A call in process has
// none.
func (s *Server) setWriteDeadline(w http.ResponseWriter, size int) {
	d := s.opt.AnswerTime + time.Duration(size)*time.Second/time.Duration(s.opt.AnswerRate)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// A deadlineWriter sets a write deadline before each write, for handlers that write in several
// steps.
type deadlineWriter struct {
	http.ResponseWriter
	s *Server
}

func (w deadlineWriter) Write(b []byte) (int, error) {
	w.s.setWriteDeadline(w.ResponseWriter, len(b))
	return w.ResponseWriter.Write(b)
}

// A pace measures the writes of a download. Only the time within writes counts, because the time of
// the store's reads is not the client's fault.
type pace struct {
	sent  int64
	spent time.Duration
}

// left returns how long the next write, of n bytes, may take.
func (p *pace) left(grace time.Duration, n int) time.Duration {
	due := grace + time.Duration(p.sent+int64(n))*time.Second/downloadRate
	return min(grace, due-p.spent)
}
