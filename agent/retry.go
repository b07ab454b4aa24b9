package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// A retry begins with entries of its original's journal. Epochs go on from the original's, so a
// frame whose key has an epoch below the grant's FirstEpoch is the original's. Steps, ended children
// and ended waits are known by these entries. Everything that had not ended belongs to the original
// and is begun anew under the same key: its children were stopped with it, and its callbacks can't
// be answered any more.
//
// The second half of the file finds the entry that records the cause of a failure. The server needs
// its key, because a retry with that entry would fail in the same way.

// isOriginals tells whether a frame was written by the original of a retry.
func (c *execution) isOriginals(frameKey string) bool {
	text, _, _ := strings.Cut(strings.TrimPrefix(frameKey, framePrefix), ".")
	epoch, err := strconv.ParseInt(text, 10, 64)
	return err == nil && epoch < c.grant.FirstEpoch
}

// dropUnfinished forgets the children and the callback tokens of the original that have no end in
// the journal.
func (c *execution) dropUnfinished() {
	for key, inherited := range c.inherited {
		switch {
		case !inherited:
			delete(c.inherited, key) // spawned again by this run
		case c.childEnds[key] == nil:
			delete(c.inherited, key)
			c.visit("spawn " + key)
			digest := c.spawned[key]
			same := func(k string) bool { return k == key }
			c.asideChildren[digest] = slices.DeleteFunc(c.asideChildren[digest], same)
			delete(c.spawned, key)
		}
	}
	for wait, epoch := range c.tokenEpochs {
		if epoch != c.grant.FirstEpoch && c.waits[wait] == nil {
			delete(c.entries, tokenPrefix+wait)
		}
	}
}

// tokenKey returns the journal key for the token of a callback. A retry has tokens of its own, so
// its keys bear its first epoch.
func (c *execution) tokenKey(wait string) string {
	if c.grant.FirstEpoch == 0 {
		return tokenPrefix + wait
	}
	return fmt.Sprintf("%s%d:%s", tokenPrefix, c.grant.FirstEpoch, wait)
}

// readToken takes a journal entry that has the token of a callback. It tells whether it is one. The
// last entry of a wait counts, which is this run's own if there is one.
func (c *execution) readToken(key string, value json.RawMessage) bool {
	wait, ok := strings.CutPrefix(key, tokenPrefix)
	if !ok {
		return false
	}
	var epoch int64
	if text, rest, ok := strings.Cut(wait, ":"); ok {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			epoch, wait = n, rest
		}
	}
	c.entries[tokenPrefix+wait], c.tokenEpochs[wait] = value, epoch
	return true
}

// frameKey returns the key of the n-th frame of this execution.
func (c *execution) frameKey(n int) string {
	return fmt.Sprintf("%s%d.%d", framePrefix, c.grant.Epoch, n)
}

// saidKey returns the key of the n-th entry about reports of this execution.
func (c *execution) saidKey(n int) string {
	return fmt.Sprintf("%s%d.%d", saidPrefix, c.grant.Epoch, n)
}

// A recordedAt is an error that follows from a journal entry, so that every execution gets the same.
type recordedAt struct {
	error
	// key is that of the entry, and seq the number of the inbox item in it. One of them is set.
	key string
	seq int64
}

func (e *recordedAt) Unwrap() error { return e.error }

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
	return c.firstRecorded(causes)
}

// firstRecorded returns the key that comes first in the journal. The caller holds c.mu.
func (c *execution) firstRecorded(keys []string) string {
	first, at := "", math.MaxInt
	for _, key := range keys {
		n := slices.Index(c.recorded, key)
		if n < 0 {
			n = math.MaxInt - 1 // it is about to be committed
		}
		if n < at {
			first, at = key, n
		}
	}
	return first
}

// addCauses adds the keys of the journal entries that an error, or one that it wraps, follows from.
func (c *execution) addCauses(err error, causes *[]string) {
	add := func(key string, seq int64) {
		if key == "" {
			key = c.frameOfItem(seq)
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
		add("", c.endOfChild(e.TaskID))
	case ErrTaskTimedOut:
		add("", c.endOfChild(e.TaskID))
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
	if key := c.firstRecorded(keys); key != "" {
		return &recordedAt{error: err, key: key}
	}
	return err
}

// endOfChild returns the number of the inbox item with which a child ended.
func (c *execution) endOfChild(id perdure.RunID) int64 {
	for _, i := range c.childEnds {
		if i.From == id {
			return i.Seq
		}
	}
	return 0
}

// frameOfItem returns the key of the frame that has an inbox item, also if the frame is still to be
// committed.
func (c *execution) frameOfItem(seq int64) string {
	if key := c.frameOf[seq]; key != "" || seq == 0 {
		return key
	}
	n := c.frames
	for _, b := range c.queue {
		if b.frame.empty() {
			continue
		}
		n++
		if slices.ContainsFunc(b.frame.In, func(i item) bool { return i.Seq == seq }) {
			return c.frameKey(n)
		}
	}
	return ""
}
