package main

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// A Query is what to look for, and where.
type Query struct{ Source, Topic string }

// search looks into one source. The library is quick. The archive is closed, and nobody says so.
func search(ctx context.Context, q Query) (string, error) {
	worker.Heartbeat(ctx, "searching the "+q.Source)
	var takes time.Duration
	switch q.Source {
	case "library":
		takes = 500 * time.Millisecond
	case "web":
		takes = time.Second
	case "archive":
		takes = time.Hour
	default:
		return "", perdure.Permanent(worker.Fail("no_such_source", "nobody knows a %s", q.Source))
	}
	select {
	case <-time.After(takes):
		return "what the " + q.Source + " says about " + q.Topic, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
