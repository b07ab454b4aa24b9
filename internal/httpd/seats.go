package httpd

import "github.com/perdure/perdure/internal/httpd/stream"

// Attached gives how many are attached to this node, by the way they are, and how many may be.
func (s *Server) Attached() (by map[string]int64, limit int64) { return s.seats.Attached() }

// seat gives a call that is about to block a seat, and takes back its share of calls. A caller that gets none is
// told to close its connection, so that it does not stay open for nothing.
func (c *call) seat(how stream.Transport) (leave func(), err error) {
	t := c.tenant()
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
		leave, err = c.s.seats.Take(how, t)
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
	c.letGo()
	if own == nil {
		return leave, nil
	}
	return both(leave, own), nil
}
