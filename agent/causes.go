package agent

import (
	"errors"
)

// This file finds the entry that records the cause of a failure. The server needs its key, because a
// retry with that entry would fail in the same way.

// causeOf returns the key of the journal entry that an error follows from, the first one if there
// are several. It is empty if there is none.
func (c *execution) causeOf(err error) string {
	if errors.As(err, new(*notUndone)) {
		return "" // a retry goes on with undoing
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var causes []string
	c.addCauses(err, &causes)
	return c.record.First(causes)
}

// addCauses adds the keys of the journal entries that an error, or one that it wraps, follows from.
func (c *execution) addCauses(err error, causes *[]string) {
	add := func(key string, seq int64) {
		if key == "" {
			key = c.writer.FrameOf(seq)
		}
		if key != "" {
			*causes = append(*causes, key)
		}
	}
	switch e := err.(type) {
	case *recordedError:
		add(e.key, e.seq)
	case *recordedAt:
		add(e.key, e.seq)
	case *stepError:
		if e.Permanent() {
			add(e.key, 0)
		}
	case ErrTaskFailed:
		add("", c.record.EndOf(e.TaskID))
	case ErrTaskTimedOut:
		add("", c.record.EndOf(e.TaskID))
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		c.addCauses(e.Unwrap(), causes)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			c.addCauses(err, causes)
		}
	}
}

// recordedBefore returns the error of a saga that was undone. A retry has to execute all its steps
// again, so the cause is the first of them that was undone.
func (c *execution) recordedBefore(s *saga, err error) error {
	keys := make([]string, len(s.undo))
	for n, u := range s.undo {
		keys[n] = u.key
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if key := c.record.First(keys); key != "" {
		return &recordedAt{error: err, key: key}
	}
	return err
}
