package webhook

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// A Format makes the body of a message in a form that is not Perdure's own. It is a pure function of
// what the event gives, which never changes, so that every attempt has the same body. Without a body
// there is nothing to tell, and nothing is sent.
type Format func(*Event) (body []byte, err error)

// An Event is a line of a run's log, for a Format. What it reads is there until its run is deleted.
type Event struct {
	// ID is that of the delivery.
	ID   string
	Run  *perdure.Run
	Line *perdure.Line
	// Lines yields the lines of the log up to this one. It holds a page of them.
	Lines iter.Seq2[*api.Event, error]
	// Messages reads messages of the run's thread after a number.
	Messages func(after int64) ([]api.Message, error)
	// Names are those of the run's thread.
	Names func() ([]string, error)
	// Approval reads an approval, or returns nil if it is gone.
	Approval func(perdure.ApprovalID) (*perdure.Approval, error)
}

// A page of a log, for an Event.
const (
	logLines = 500
	logBytes = 1 << 20
)

// body makes the body of a message in the form of its webhook.
func (d *Deliverer) body(ctx context.Context, o *outbox.Outgoing, r *perdure.Run, l *perdure.Line) ([]byte, error) {
	if o.To.Format == "" {
		return Body(d.opt.BaseURL, r, l)
	}
	make := d.opt.Formats[o.To.Format]
	if make == nil {
		return nil, fmt.Errorf("no format %q", o.To.Format)
	}
	if !o.To.Tells(r) {
		return nil, errSilent
	}
	x := &source{ctx: ctx, engine: d.engine, run: r}
	b, err := make(&Event{ID: o.ID(), Run: r, Line: l, Lines: x.lines(l.Seq), Messages: x.messages, Names: x.names,
		Approval: x.approval})
	if err == nil && b == nil {
		err = errSilent
	}
	return b, err
}

// A source reads what an Event gives.
type source struct {
	ctx    context.Context
	engine *engine.Engine
	run    *perdure.Run
}

// lines yields the lines of the log up to a number.
func (x *source) lines(upTo int64) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		for after := int64(0); after < upTo; {
			l := &reads.Look{Tenant: x.run.Tenant, RunID: x.run.ID, After: after, Lines: logLines, Bytes: logBytes}
			if err := x.engine.Runs.Look(x.ctx, l); err != nil {
				yield(nil, err)
				return
			}
			if !l.Found || len(l.Log) == 0 {
				yield(nil, errGone)
				return
			}
			for i := range l.Log {
				if l.Log[i].Seq > upTo {
					return
				}
				data, err := l.Log[i].Data.MarshalJSON()
				e := &api.Event{Seq: l.Log[i].Seq, Type: l.Log[i].Type, At: l.Log[i].At, Attempt: l.Log[i].Attempt,
					Data: data}
				if !yield(e, err) || err != nil {
					return
				}
			}
			after = l.Upto()
		}
	}
}

func (x *source) messages(after int64) (out []api.Message, err error) {
	_, list, err := x.engine.Threads.Get(x.ctx, x.run.Tenant, x.run.ThreadID, after, 100)
	for _, m := range list {
		a := api.Message{Seq: m.Seq, Role: m.Role, RunID: m.RunID, At: m.At}
		a.Content, _ = m.Content.MarshalJSON()
		if m.Metadata != "" {
			a.Metadata, _ = m.Metadata.MarshalJSON()
		}
		out = append(out, a)
	}
	return out, ifThere(err)
}

func (x *source) names() ([]string, error) {
	return x.engine.Threads.Names(x.ctx, x.run.Tenant, x.run.ThreadID)
}

func (x *source) approval(id perdure.ApprovalID) (*perdure.Approval, error) {
	a, err := x.engine.Runs.Approval(x.ctx, x.run.Tenant, id)
	if err = ifThere(err); err != nil || a.ID == "" {
		return nil, err
	}
	return &a, nil
}

// ifThere drops the error that something is gone.
func ifThere(err error) error {
	var e *perdure.Error
	if errors.As(err, &e) && e.Code == perdure.CodeNotFound {
		return nil
	}
	return err
}
