package httpd

import (
	"cmp"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/connlimit"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// serve makes the handler of a route. A call passes its steps in this order: key and scope, query,
// path, the tenant's share of calls, memory for the answer, the route's handler, the answer.
func (s *Server) serve(r route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		defer s.recoverPanic(w, r)
		c := &call{Request: req, s: s, w: w, heard: s.bell.Stats()}
		if err := checkCall(c, r); err != nil {
			s.problem(w, err)
			return
		}
		if r.audited {
			c.Request = c.WithContext(kernel.WithActor(c.Context(), c.actor()))
		}
		defer func() {
			if c.releaseKey != nil {
				c.releaseKey()
			}
		}()
		if !r.guard.open || r.guard.token != nil {
			defer connlimit.Busy(req.Context(), c.payer())()
		}
		c.share = s.shares.share(c.payer())
		defer c.share.release()
		if !r.guard.open {
			if err := c.share.enter(c.Context()); err != nil {
				s.problem(w, err)
				return
			}
		}
		if err := c.share.reserveAnswer(c.Context(), r.large); err != nil {
			s.problem(w, err)
			return
		}
		if r.raw != nil {
			if err := r.raw(c); err != nil {
				s.problem(w, cmp.Or(c.keyEnded(), err))
			}
			return
		}
		if r.large >= largePage {
			if _, err := c.share.turn(c.Context(), r.large); err != nil { // it ends with the answer
				s.problem(w, err)
				return
			}
		}
		status, out, err := r.handle(c)
		if c.releaseKey != nil { // the call may have lasted long
			err = cmp.Or(c.checkKey(), err)
		}
		if err != nil {
			s.problem(w, err)
			if perdure.CodeOf(err) == perdure.CodeTooLarge {
				c.share.release()
				drain(c)
			}
			return
		}
		switch status {
		case statusWritten:
			return
		case 0:
			status = r.usual()
		}
		s.answer(c, status, out)
	}
}

// recoverPanic logs a panic of a handler and answers 500. The panic that aborts an answer on
// purpose goes on to net/http.
func (s *Server) recoverPanic(w http.ResponseWriter, r route) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
	s.log.Error("a handler panicked", "route", r.method+" "+r.pattern, "panic", p, "stack", string(debug.Stack()))
	s.problem(w, perdure.Errorf(perdure.CodeInternal, "the server has a defect; it is logged"))
}

// checkCall checks the key, the query and the path of a call.
func checkCall(c *call, r route) error {
	if err := c.s.admit(c, r.guard); err != nil {
		return err
	}
	if err := checkQuery(c, r.query, r.repeated); err != nil {
		return err
	}
	if r.tenanted {
		if err := chooseTenant(c, &r); err != nil {
			return err
		}
	}
	return checkPath(c, r.pattern)
}

// checkPath refuses ids that can't exist, and names of workers and tenants that are malformed.
func checkPath(c *call, pattern string) error {
	if strings.HasPrefix(pattern, api.Prefix+"/workers/{id}/") {
		return perdure.CheckName("worker_id", c.PathValue("id"))
	}
	if t := c.PathValue("tenant"); t != "" {
		if err := perdure.CheckName("tenant", t); err != nil {
			return err
		}
	}
	for _, name := range []string{"id", "n", "token", "child"} {
		if v := c.PathValue(name); v != "" && !cleanID(v) {
			return perdure.Errorf(perdure.CodeNotFound, "there is nothing at this path")
		}
	}
	return nil
}

// cleanID tells whether a text can be an id or a token: short, and without control characters.
func cleanID(v string) bool {
	if len(v) > 4096 {
		return false
	}
	for _, r := range v {
		if r < 0x20 || r == 0x7f || r == 0xfffd {
			return false
		}
	}
	return true
}
