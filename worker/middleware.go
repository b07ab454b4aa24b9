package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
)

// A Middleware wraps every execution of a handler or an agent. next executes it with the given
// context and returns its error. The error that the middleware returns counts. So it can change an
// error, or fail the attempt without calling next. It cannot turn a failure into a success, because
// there is no result.
//
// A panic passes through and fails the attempt. An agent that begins to wait ends its goroutine:
// next then does not return, and only deferred calls run. For an agent, next may be called once.
type Middleware func(ctx context.Context, run RunInfo, next func(context.Context) error) error

// Use adds middleware for all kinds. The first one is the outermost. Use is called before Run, which
// returns an error if one of them is nil.
func (w *Worker) Use(m ...Middleware) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		w.misused(errors.New("worker: middleware is added before Run"))
		return
	}
	if slices.ContainsFunc(m, func(m Middleware) bool { return m == nil }) {
		w.misused(errors.New("worker: a middleware is nil"))
		return
	}
	w.middleware = append(w.middleware, m...)
}

// around calls f inside the middleware. It returns nil only if f has succeeded.
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

// Logger returns the worker's logger with the run, kind and attempt of the handler that has this
// context. For any other context it returns the default logger.
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
