package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// Consent to another server.
//
// A store that was restored from a dump or an archive is on a server that nodes refuse: it has
// another system identifier, or an older timeline. An operator looks at it with Examine, and accepts
// it by a batch with Tx.Accept on a store that is opened with Options.Accepting. The record that this
// writes replaces the server's and the one that the node has seen, with all that those replace. A
// node that has seen one of these follows. Offer.Keep writes the file of the node itself.

// An Offer is a server that an operator may accept as the one of the store.
type Offer struct {
	At       string `json:"server"`
	System   string `json:"system"`
	Timeline int64  `json:"timeline"`
	// Before is the server on which the store was last used, by its own record. It may be unknown.
	Before UsedServer `json:"store_was_used_on"`
	// Seen is the server that the node has seen last. It may be unknown.
	Seen UsedServer `json:"node_has_seen"`
	// Refused is why nodes refuse the server. It is empty if they use it.
	Refused string `json:"refused,omitempty"`
	// Floor is the lowest value that an epoch has after its next rise, once the server is accepted.
	Floor int64 `json:"floor,omitempty"`

	text string // of the record that is replaced; empty: there is none
	next timelineRecord
}

// A UsedServer is a server on which a store was used. Without a System it is unknown.
type UsedServer struct {
	System   string          `json:"system,omitempty"`
	Timeline int64           `json:"timeline,omitempty"`
	At       perdure.Instant `json:"since,omitzero"`
}

func usedServer(r timelineRecord) UsedServer { return UsedServer{r.System, r.Timeline, r.At} }

// Examine looks at the single server of an address as a node with this file of the timeline does. It
// changes nothing.
func Examine(ctx context.Context, opt Options) (*Offer, error) {
	known, err := readHint(opt.TimelineFile)
	if err != nil {
		return nil, err
	}
	p, err := pg.Open(pg.Options{URL: opt.URL, Tool: true, Table: "meta", Record: recordQuery})
	if err != nil {
		return nil, err
	}
	places, failed := p.Survey(ctx)
	for _, err := range failed {
		return nil, err
	}
	if len(places) != 1 {
		return nil, errors.New("the address names several servers: name the one that is to be accepted")
	}
	pl := places[0]
	switch {
	case pl.Standby || pl.ReadOnly:
		return nil, fmt.Errorf("PostgreSQL at %s takes no writes: it is a standby, or read-only", pl.At)
	case !pl.Has:
		return nil, fmt.Errorf("the database at %s has no store", pl.At)
	}
	r, err := recordOf(pl)
	if err != nil {
		return nil, err
	}
	t := &timelines{known: known}
	o := &Offer{At: pl.At, System: pl.System, Timeline: pl.Timeline, Before: usedServer(r.timelineRecord),
		Seen: usedServer(known), text: r.text}
	if err := t.judge(pl); err != nil {
		o.Refused = err.Error()
		o.next = t.accept(pl, r)
		o.Floor = o.next.Floor
	}
	return o, nil
}

// accept gives the record of a server that an operator has accepted.
func (t *timelines) accept(pl pg.Place, before stored) timelineRecord {
	older := slices.Clone(t.known.Replaces)
	for _, id := range before.Replaces {
		if !slices.Contains(older, id) {
			older = append(older, id)
		}
	}
	before.Replaces = older
	next := t.settle(pl, before)
	next.Unsure = true // the dump or the archive may lack commits, whatever the server did
	return next
}

// Keep writes an accepted server into the file of a node's timeline, so that the node refuses the
// server before. Without the node's data folder there is nothing to do.
func (o *Offer) Keep(file string) error {
	if _, err := os.Stat(filepath.Dir(file)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return writeHint(file, o.next)
}

// errOfferChanged refuses to accept a server that is another one than was looked at.
var errOfferChanged = errors.New("the server was changed since it was looked at: look again")

// Accept stages the record of a server that an operator has accepted.
func (tx *Tx) Accept(o *Offer) error {
	text, err := tx.Meta.Get(metaTimeline)
	if err != nil {
		return err
	}
	switch {
	case o.Refused == "" || text != o.text:
		return errOfferChanged
	case text == "":
		tx.Meta.Claim(metaTimeline, encode(o.next))
	default:
		addRows(&tx.later, statement{"UPDATE meta SET value=? WHERE name='timeline' AND value=?",
			[]any{encode(o.next), text}, 1})
	}
	return nil
}
