package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/largejson"
)

// statusWritten says that a handler has written the answer itself.
const statusWritten = -1

// answer writes an answer. A large one first reserves memory, which it holds until it is written.
func (s *Server) answer(c *call, status int, body any) {
	w := c.w
	if doc, ok := body.(*json.RawMessage); ok { // encoded once at start, with its line break
		s.setWriteDeadline(w, len(*doc))
		w.Header()["Content-Type"] = mediaJSON
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
		c.share.releaseAnswer()
	}
	c.share.changed = c.share.changed || !c.reads()
	if err := c.share.reserveAnswer(c.Context(), int64(len(b))); err != nil {
		s.problem(w, err)
		return
	}
	s.setWriteDeadline(w, len(b))
	w.Header()["Content-Type"] = mediaJSON
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// encode encodes an answer. A large one takes a turn, unless the call has one. The turn ends here.
func (s *Server) encode(c *call, body any) ([]byte, error) {
	// The data is in memory already, so the call is answered even if it gets no turn.
	_, _ = c.share.turn(c.Context(), c.found)
	defer c.share.encoded()
	if c.found > largejson.Size {
		return largejson.Encode(body)
	}
	return stream.Encode(body)
}

// problem writes an error as problem+json.
func (s *Server) problem(w http.ResponseWriter, err error) {
	e := s.refused(err)
	p := api.NewProblem(e.Code, e.Message, e.Field)
	p.ContinuedByRunID, p.RunID = e.ContinuedBy, e.RunID
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
		ContinuedBy: e.ContinuedBy, RunID: e.RunID}
}

// shortened cuts a text to a number of bytes.
func shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// refusal shows an error as an entry of an answer.
func refusal(e *perdure.Error) *api.Refusal {
	if e == nil {
		return nil
	}
	return &api.Refusal{Code: e.Code, Detail: e.Message, Field: e.Field}
}

// within prefixes the field of an error with the path of the entry that was refused, as in
// commits[0].epoch.
func within(entry string, err error) error {
	var e *perdure.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	return &perdure.Error{Code: e.Code, Message: e.Message, Field: entry + "." + e.Field}
}

// createdStatus returns 201 if this call created something, and 200 if an earlier one did.
func createdStatus(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}
