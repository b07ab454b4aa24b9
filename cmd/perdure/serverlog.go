package main

import (
	"log/slog"
	"strings"
	"sync"
	"time"
)

// A serverLog gets the errors of net/http, a line at a time. Anybody can make a TLS handshake fail, so
// these get one line a minute, which counts them.
type serverLog struct {
	log *slog.Logger

	mu     sync.Mutex
	failed int       // handshakes since the last line about them
	next   time.Time // for the next such line
}

// handshakePause is the time between two lines about failed handshakes.
const handshakePause = time.Minute

func (s *serverLog) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	if !strings.HasPrefix(text, "http: TLS handshake error") {
		s.log.Warn(text)
		return len(line), nil
	}
	s.mu.Lock()
	s.failed++
	failed, now := s.failed, time.Now()
	if now.Before(s.next) {
		s.mu.Unlock()
		return len(line), nil
	}
	s.failed, s.next = 0, now.Add(handshakePause)
	s.mu.Unlock()
	s.log.Warn(text, "handshakes", failed)
	return len(line), nil
}
