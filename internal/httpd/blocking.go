package httpd

import "github.com/perdure/perdure/internal/httpd/stream"

// Attached returns the number of blocked calls of this node by transport, and the limit of streams,
// sockets and waits.
func (s *Server) Attached() (by map[string]int64, limit int64) { return s.limiter.Attached() }

// acquire counts a call that is about to block: against the limit of its tenant, if an operator has
// set one, and against the limits of the node. The call then gives its shares back. A refused
// stream, socket or poll closes its connection, so that idle connections do not add up.
func (c *call) acquire(how stream.Transport) (release func(), err error) {
	t := c.payer()
	var own func()
	if l := c.s.shares.of(t); l != nil {
		gate, what := l.streams, "streams, sockets and waits"
		if how == stream.Poll {
			gate, what = l.polls, "polls"
		}
		if gate != nil {
			var ok bool
			if own, ok = gate.TryEnter(t, 1); !ok {
				err = tooBusy("this tenant has as many %s on this node as its limit allows", what)
			}
		}
	}
	if err == nil {
		release, err = c.s.limiter.Acquire(how, t)
	}
	if err != nil {
		if own != nil {
			own()
		}
		if how == stream.SSE || how == stream.Socket || how == stream.Poll {
			c.w.Header().Set("Connection", "close")
		}
		return nil, err
	}
	c.releaseShares()
	if own == nil {
		return release, nil
	}
	return both(release, own), nil
}
