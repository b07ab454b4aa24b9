package model

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// finishGrace is how long a finished answer waits for its usage and the end of its stream.
const finishGrace = 5 * time.Second

// errSlow is the cause of a request that was cancelled by its tokenClock.
var errSlow = errors.New("no token came in time")

// A tokenClock cancels a request when the next token does not come in time. Comments and empty
// chunks are no tokens: a proxy sends them for an endpoint that hangs.
type tokenClock struct {
	timer   *time.Timer
	between time.Duration
	begun   atomic.Bool // a token has come
	ended   bool        // the answer is finished
}

func newTokenClock(first, between time.Duration, cancel context.CancelCauseFunc) *tokenClock {
	return &tokenClock{timer: time.AfterFunc(first, func() { cancel(errSlow) }), between: between}
}

// pause stops the clock until the next call of token.
func (c *tokenClock) pause() { c.timer.Stop() }

// token starts the clock again.
func (c *tokenClock) token() {
	c.begun.Store(true)
	if c.ended {
		c.timer.Reset(finishGrace)
	} else {
		c.timer.Reset(c.between)
	}
}

// finished says that nothing but the usage is to come.
func (c *tokenClock) finished() {
	c.ended = true
	c.timer.Reset(min(finishGrace, c.between))
}

// attempt sends the request once, in a certain form. An error that is no *Error is the context's or
// the caller's own.
func (c *Client) attempt(ctx context.Context, e *endpoint, r *Request, form adaptation) (*Response, *Error, error) {
	body, err := r.encode(e.Model, form)
	if err != nil {
		return nil, &Error{Kind: Permanent, Code: CodeRefused, Model: e.Model,
			Message: "the request can't be written as JSON: " + err.Error()}, nil
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	clock := newTokenClock(e.FirstToken, e.BetweenTokens, cancel)
	defer clock.pause()
	a := &answer{limit: c.opt.MaxAnswer, onText: r.OnText, onReasoning: r.OnReasoning, onToken: r.OnToken,
		clock: clock}
	err = c.exchange(inner, e, body, a)
	if own := (*callbackError)(nil); errors.As(err, &own) {
		return nil, nil, own.error
	}
	if err == nil && !a.complete() {
		err = &Error{Kind: Transient, Code: CodeCutOff, Message: "the stream ended before the answer did"}
	}
	if err == nil || a.finish != "" { // what breaks after the end does no harm
		return c.response(e, r, a), nil, nil
	}
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("call of model %s: %w", e.Model, context.Cause(ctx))
	}
	f := e.explain(err, clock, context.Cause(inner))
	f.passed = a.passed
	if a.size > 0 {
		f.Lost = c.price(e, a.model, a.estimate(r))
	}
	return nil, f, nil
}

// exchange sends a body and reads the answer.
func (c *Client) exchange(ctx context.Context, e *endpoint, body []byte, a *answer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, value := range e.Header {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream, application/json")
	if e.Key != "" {
		req.Header.Set("Authorization", "Bearer "+e.Key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return &Error{Kind: Transient, Code: CodeUnavailable, Message: "the endpoint was not reached: " + err.Error(),
			cause: err}
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		problem, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		return answerError(res, problem)
	}
	r := bufio.NewReaderSize(&boundedReader{res.Body, 64 * int64(c.opt.MaxAnswer)}, 16<<10)
	whole, err := startsJSON(r)
	switch first, _ := r.Peek(1); {
	case err != nil:
		return err
	case len(first) == 1 && first[0] == '<':
		// A login page, or that of a proxy. The same request gets it again.
		return &Error{Kind: Permanent, Code: CodeGarbage, Status: res.StatusCode,
			Message: "the endpoint answers with a page of HTML: is the base URL right, and the key?"}
	case whole:
		return a.readWhole(r, 2*c.opt.MaxAnswer)
	}
	return a.readStream(newFrames(r, 2*c.opt.MaxAnswer))
}

// startsJSON tells whether a body is a JSON value and no event stream, whatever its Content-Type
// says. It takes leading spaces.
func startsJSON(r *bufio.Reader) (bool, error) {
	for {
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		b, _ := r.Peek(r.Buffered())
		rest := bytes.TrimLeft(b, " \t\r\n")
		r.Discard(len(b) - len(rest))
		if len(rest) > 0 {
			return rest[0] == '{' || rest[0] == '[', nil
		}
	}
}

// explain turns a failure of an exchange into an Error.
func (e *endpoint) explain(err error, clock *tokenClock, cause error) *Error {
	f := (*Error)(nil)
	ok := errors.As(err, &f)
	switch {
	case errors.Is(cause, errSlow):
		f = &Error{Kind: Transient, Code: CodeTimeout, Message: fmt.Sprintf("no token within %s", e.FirstToken),
			cause: errSlow}
		if clock.begun.Load() {
			f.Message = fmt.Sprintf("no further token within %s", e.BetweenTokens)
		}
	case ok:
	case errors.Is(err, errTooLarge):
		f = tooLarge("%v", err)
	default:
		f = &Error{Kind: Transient, Code: CodeCutOff, Message: "the connection broke: " + err.Error(), cause: err}
	}
	f.Model = e.Model
	if len(e.Key) >= 8 {
		f.Message = strings.ReplaceAll(f.Message, e.Key, "***")
	}
	return f
}

// response makes the result of a complete answer.
func (c *Client) response(e *endpoint, r *Request, a *answer) *Response {
	out := &Response{Finish: a.finish, Model: e.Model, Message: Message{Role: Assistant, Content: a.text.String(),
		ToolCalls: a.calls.finished(), Reasoning: a.thoughts.String()}}
	if a.model != "" {
		out.Model = a.model
	}
	if out.Finish == "" {
		out.Finish = "stop"
		if len(out.Message.ToolCalls) > 0 {
			out.Finish = "tool_calls"
		}
	}
	usage := a.estimate(r)
	if a.usage != nil {
		usage = a.usage.usage()
	}
	out.Usage = c.price(e, a.model, usage)
	return out
}

// estimate estimates the usage of an answer, or of a part of one.
func (a *answer) estimate(r *Request) Usage {
	reasoning := EstimateTokens(a.thoughts.String())
	u := Usage{Input: r.EstimateTokens(), Output: EstimateTokens(a.text.String()) + reasoning, Reasoning: reasoning,
		Estimated: true}
	for _, p := range a.calls.list {
		u.Output += 8 + EstimateTokens(p.name) + EstimateTokens(string(p.args))
	}
	return u
}

// price sets the cost of a usage, by the name that was asked for or the one that answered.
func (c *Client) price(e *endpoint, answered string, u Usage) Usage {
	p, ok := c.opt.Prices[e.Model]
	if !ok {
		p, ok = c.opt.Prices[answered]
	}
	if ok {
		u.Cost = p.Of(u)
	}
	return u
}
