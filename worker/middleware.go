package worker

import (
	"context"
	"errors"
	"log/slog"
)

// A Middleware stands around every execution of a handler or an agent: next goes on with it, under the context
// that it is given, and returns its error. What the middleware returns counts, so it can change an error, or
// have the attempt fail without calling next; it can't make a success of a failure, since there is no result.
//
// A panic passes through, to fail the attempt. An agent that begins to wait leaves by ending its goroutine: next
// does not return then, and only what is deferred runs. For an agent next may be called once.
type Middleware func(ctx context.Context, run RunInfo, next func(context.Context) error) error

// Use adds middleware, the first one outermost. It is for all kinds, whenever they are registered.
func (w *Worker) Use(m ...Middleware) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		panic("worker.Use: middleware is added before Run")
	}
	w.middleware = append(w.middleware, m...)
}

// around calls f inside of the middleware. Its error is nil only when f has succeeded.
func (w *Worker) around(ctx context.Context, f func(context.Context) error) error {
	if len(w.middleware) == 0 {
		return f(ctx)
	}
	info, _ := Info(ctx)
	once, done := w.handlers[info.Kind].agent, false
	called := false
	next := func(ctx context.Context) error {
		if called && once {
			return errCalledTwice
		}
		called, done = true, false
		err := f(ctx)
		done = err == nil
		return err
	}
	for i := len(w.middleware) - 1; i >= 0; i-- {
		m, inner := w.middleware[i], next
		next = func(ctx context.Context) error { return m(ctx, info, inner) }
	}
	err := next(ctx)
	if err == nil && !done {
		return errNoResult
	}
	return err
}

var (
	errCalledTwice = errors.New("worker: a middleware called an agent a second time")
	errNoResult    = errors.New("worker: a middleware returned no error, and there is no result")
)

// Logger is the worker's logger, with the run, kind and attempt of the handler whose context this is on every
// line. For any other context it is the default logger.
func Logger(ctx context.Context) *slog.Logger {
	r := from(ctx)
	if r == nil {
		return slog.Default()
	}
	return r.log()
}

func (r *run) log() *slog.Logger {
	return r.w.log.With("run", r.lease.RunID, "kind", r.grant.Kind, "attempt", r.grant.Attempt)
}
