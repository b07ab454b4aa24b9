package feed

import (
	"bytes"
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// A List is the Looker of a list that is sent whole when it has changed.
type List struct {
	// Kind is the type of its messages.
	Kind string
	// Read reads the list. It must encode to an object, and to an equal one if nothing has changed.
	Read func(context.Context) (any, error)

	last []byte
}

// Look implements Looker.
func (l *List) Look(ctx context.Context, snapshot bool) (news, whole *Message, more bool, err error) {
	v, err := l.Read(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	b, err := stream.Encode(v)
	if err != nil {
		return nil, nil, false, err
	}
	m := newMessage(l.Kind, b)
	if !bytes.Equal(b, l.last) {
		news = m
	}
	if l.last = b; snapshot {
		whole = m
	}
	return news, whole, false, nil
}

// endedRest is how long the numbers of ended runs are used before they are counted again, as a
// multiple of the time that counting them takes.
const endedRest = 20

// Counts is the Looker of counts of runs. Live runs are counted at each look, ended ones less often
// if there are many.
type Counts struct {
	Engine *engine.Engine
	Tenant perdure.TenantID
	Filter reads.RunFilter

	ended   reads.Counts
	endedAt time.Time
	// endedTook is the time that it took to count ended runs.
	endedTook time.Duration
	// stale is set if ended runs were not counted in the last look.
	stale bool
	text  []byte
}

// Look implements Looker.
func (l *Counts) Look(ctx context.Context, snapshot bool) (news, whole *Message, more bool, err error) {
	c, err := l.read(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	// The time of the count is no reason to send it.
	at := c.At
	c.At = 0
	text, err := stream.Encode(c)
	if err != nil {
		return nil, nil, false, err
	}
	c.At = at
	changed := !bytes.Equal(text, l.text)
	if l.text = text; !changed && !snapshot {
		return nil, nil, l.stale, nil
	}
	b, err := stream.Encode(c)
	if err != nil {
		return nil, nil, false, err
	}
	m := newMessage(api.SocketCounts, b)
	if changed {
		news = m
	}
	if snapshot {
		whole = m
	}
	return news, whole, l.stale, nil
}

func (l *Counts) read(ctx context.Context) (*api.RunCounts, error) {
	live, err := l.Engine.Runs.CountLive(ctx, l.Tenant, l.Filter)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if l.stale = began.Sub(l.endedAt) < endedRest*l.endedTook; !l.stale {
		if l.ended, err = l.Engine.Runs.CountEnded(ctx, l.Tenant, l.Filter); err != nil {
			return nil, err
		}
		l.endedAt, l.endedTook = time.Now(), time.Since(began)
	}
	return ShowCounts(l.Engine.Now(), live, l.ended), nil
}

// maxNames bounds the kinds and the queues of counts. The others are counted together as otherName.
const (
	maxNames  = 100
	otherName = "other"
)

// ShowCounts returns counts of runs as the API shows them.
func ShowCounts(at perdure.Instant, parts ...reads.Counts) *api.RunCounts {
	out := &api.RunCounts{At: at, Status: make(map[string]int), State: make(map[string]int),
		Kind: make(map[string]map[string]int), Queue: make(map[string]map[string]int)}
	add := func(to map[string]map[string]int, name, status string, n int) {
		if to[name] == nil {
			if len(to) >= maxNames {
				name = otherName
			}
			if to[name] == nil {
				to[name] = make(map[string]int)
			}
		}
		to[name][status] += n
	}
	for _, p := range parts {
		for i := range p.Runs {
			c := &p.Runs[i]
			out.Status[c.Status()] += c.N
			out.State[string(c.State)] += c.N
			add(out.Kind, c.Kind, c.Status(), c.N)
			add(out.Queue, c.Queue, c.Status(), c.N)
		}
		out.AtLeast = out.AtLeast || p.More
		if p.Since != 0 {
			out.EndedSince = &p.Since
		}
	}
	return out
}
