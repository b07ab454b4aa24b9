package httpd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/connlimit"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
	"github.com/perdure/perdure/internal/largejson"
)

// statusWritten says that a handler has written the answer itself.
const statusWritten = -1

// serve makes the handler of a route. A call passes its steps in this order: key and scope, query,
// path, the tenant's share of calls, memory for the answer, the route's handler, the answer.
func (s *Server) serve(r route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		defer s.recoverPanic(w, r)
		c := &call{Request: req, s: s, w: w, heard: s.bell.Stats()}
		if err := c.check(r); err != nil {
			s.problem(w, err)
			return
		}
		if r.audited {
			c.Request = c.WithContext(engine.WithActor(c.Context(), c.actor()))
		}
		defer func() {
			if c.releaseKey != nil {
				c.releaseKey()
			}
		}()
		if !r.guard.open || r.guard.token != nil {
			defer connlimit.Busy(req.Context(), c.payer())()
		}
		defer c.releaseShares()
		if !r.guard.open {
			var err error
			if c.leaveCall, err = s.shares.enterCall(c.Context(), c.payer()); err != nil {
				s.problem(w, err)
				return
			}
		}
		if err := c.reserveAnswer(r.large); err != nil {
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
			end, err := c.turn(r.large)
			if err != nil {
				s.problem(w, err)
				return
			}
			c.endTurn = end
		}
		status, out, err := r.handle(c)
		if c.releaseKey != nil { // the call may have lasted long
			err = cmp.Or(c.checkKey(), err)
		}
		if err != nil {
			s.problem(w, err)
			if perdure.CodeOf(err) == perdure.CodeTooLarge {
				c.releaseShares()
				c.drain()
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

// check checks the key, the query and the path of a call.
func (c *call) check(r route) error {
	if err := c.s.admit(c, r.guard); err != nil {
		return err
	}
	if err := c.checkQuery(r.query, r.repeated); err != nil {
		return err
	}
	if r.tenanted {
		if err := c.chooseTenant(&r); err != nil {
			return err
		}
	}
	return c.checkPath(r.pattern)
}

// checkPath refuses ids that can't exist, and names of workers and tenants that are malformed.
func (c *call) checkPath(pattern string) error {
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

// answer writes an answer. A large one first reserves memory, which it holds until it is written.
func (s *Server) answer(c *call, status int, body any) {
	w := c.w
	if doc, ok := body.(*json.RawMessage); ok { // encoded once at start, with its line break
		s.setWriteDeadline(w, len(*doc))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(*doc)
		return
	}
	b, err := s.encode(c, body)
	if err != nil {
		s.log.Error("an answer can't be written", "error", err)
		s.problem(w, perdure.Errorf(perdure.CodeInternal, "the server has a defect; it is logged"))
		return
	}
	if len(b) <= smallAnswer {
		c.releaseAnswer()
	}
	c.changed = c.changed || !c.reads()
	if err := c.reserveAnswer(int64(len(b))); err != nil {
		s.problem(w, err)
		return
	}
	s.setWriteDeadline(w, len(b))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// encode encodes an answer. A large one takes a turn, unless the call has one. The turn ends here.
func (s *Server) encode(c *call, body any) ([]byte, error) {
	if c.endTurn == nil {
		// The data is in memory already, so the call is answered even if it gets no turn.
		c.endTurn, _ = c.turn(c.found)
	}
	defer func() {
		c.endTurn()
		c.endTurn = nil
		if c.leaveCrowd != nil {
			c.leaveCrowd()
			c.leaveCrowd = nil
		}
	}()
	if c.found > largejson.Size {
		return largejson.Encode(body)
	}
	return stream.Encode(body)
}

// problem writes an error as problem+json.
func (s *Server) problem(w http.ResponseWriter, err error) {
	e := s.refused(err)
	p := api.NewProblem(e.Code, e.Message, e.Field)
	p.ContinuedByRunID = e.ContinuedBy
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInsufficientStorage:
		if w.Header().Get("Retry-After") == "" {
			w.Header().Set("Retry-After", "1")
		}
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	b, _ := json.Marshal(p)
	s.setWriteDeadline(w, len(b))
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	w.Write(append(b, '\n'))
}

// refused returns the error that a caller sees. An error without a code is logged, and the caller
// sees "unavailable" without detail. Texts are cut, because they may repeat a part of the request.
func (s *Server) refused(err error) *perdure.Error {
	var e *perdure.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e = perdure.Errorf(perdure.CodeUnavailable, "the request was given up")
	default:
		s.log.Error("a request failed", "error", err)
		e = perdure.Errorf(perdure.CodeUnavailable, "the store could not be read")
	}
	return &perdure.Error{Code: e.Code, Message: shortened(e.Message, 1000), Field: shortened(e.Field, perdure.MaxName),
		ContinuedBy: e.ContinuedBy}
}

// shortened cuts a text to a number of bytes.
func shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
