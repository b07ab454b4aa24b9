package redact

import (
	"context"
	"fmt"
	"log/slog"
)

// Handler returns a slog.Handler that redacts messages and attributes. With a nil set it returns h.
func (s *Set) Handler(h slog.Handler) slog.Handler {
	if s == nil {
		return h
	}
	return handler{h, s}
}

// Logger is Handler for a logger, which may be nil.
func (s *Set) Logger(l *slog.Logger) *slog.Logger {
	if s == nil || l == nil {
		return l
	}
	return slog.New(s.Handler(l.Handler()))
}

type handler struct {
	slog.Handler
	set *Set
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, h.set.String(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.attr(a))
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return handler{h.Handler.WithAttrs(clean), h.set}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(h.set.String(name)), h.set}
}

func (h handler) attr(a slog.Attr) slog.Attr {
	a.Key = h.set.String(a.Key)
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(h.set.String(a.Value.String()))
	case slog.KindGroup:
		group := a.Value.Group()
		clean := make([]slog.Attr, len(group))
		for i, g := range group {
			clean[i] = h.attr(g)
		}
		a.Value = slog.GroupValue(clean...)
	case slog.KindAny:
		// Any other value is searched in its printed form.
		if text := fmt.Sprintf("%+v", a.Value.Any()); h.set.Has(text) {
			a.Value = slog.StringValue(h.set.String(text))
		}
	}
	return a
}
