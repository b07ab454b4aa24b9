package answer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/perdure/perdure"
)

// An Answer is what the caller of a door gets.
type Answer struct {
	w http.ResponseWriter
	// closing ends when the server shuts down.
	closing context.Context
	// begun is set once a part of the answer was written.
	begun bool
	// gone is set once the caller has hung up while its answer was open.
	gone bool
}

// ErrClosing is why an open answer ends when the server shuts down.
var ErrClosing = errors.New("the server is shutting down")

// New makes an answer that is written to w. Unfinished answers end with the context closing.
func New(w http.ResponseWriter, closing context.Context) *Answer {
	return &Answer{w: w, closing: closing}
}

// Begun tells whether a part of the answer was written, so that it can't be a refusal any more.
func (a *Answer) Begun() bool { return a.begun }

// HungUp tells whether the caller has hung up before an answer that stayed open was complete. It has not if the
// server ended the answer, because it shuts down or the caller did not read.
func (a *Answer) HungUp() bool { return a.gone }

// AnswerHeader is the header of the answer.
func (a *Answer) AnswerHeader() http.Header { return a.w.Header() }

// JSON answers with a value.
func (a *Answer) JSON(status int, body any) error {
	b, err := encode(body)
	if err != nil {
		return err
	}
	a.begun = true
	a.deadline(len(b))
	a.w.Header().Set("Content-Type", "application/json")
	a.w.WriteHeader(status)
	_, err = a.w.Write(append(b, '\n'))
	return err
}

// Status answers without a body.
func (a *Answer) Status(status int) error {
	a.begun = true
	a.deadline(0)
	a.w.WriteHeader(status)
	return nil
}

func encode(body any) ([]byte, error) {
	b, err := perdure.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b, nil
}

// A caller has writeTime to read an answer, and a second more for each writeRate bytes.
const (
	writeTime = 10 * time.Second
	writeRate = 64 << 10
)

func (a *Answer) deadline(bytes int) {
	d := writeTime + time.Duration(bytes/writeRate)*time.Second
	_ = http.NewResponseController(a.w).SetWriteDeadline(time.Now().Add(d)) // a call in process has none
}
