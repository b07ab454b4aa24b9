package engine

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A Detail is a run as people see it, with its values in full.
type Detail struct {
	perdure.Run
	InputText  perdure.Value
	ResultText perdure.Value
}

// Get reads a run.
func (e *Engine) Get(ctx context.Context, t perdure.TenantID, id perdure.RunID) (d Detail, err error) {
	err = e.store.View(ctx, func(v *store.View) error {
		r, ok, err := v.Run(t, id)
		if err != nil {
			return err
		}
		if !ok {
			return notFound("run")
		}
		d.Run = r
		if d.InputText, err = v.Resolve(t, r.Input); err != nil {
			return err
		}
		if d.ResultText, err = v.Resolve(t, r.Result); err != nil {
			return err
		}
		if d.Progress, err = v.Resolve(t, r.Progress); err != nil {
			return err
		}
		d.Fallback = inFull(r.Fallback, r.Progress, d.Progress)
		return nil
	})
	return d, err
}

// inFull gives a fallback with its partial findings, which stand in it as a reference when they are large.
func inFull(fallback, progress, full perdure.Value) perdure.Value {
	if _, _, ref := progress.Ref(); !ref {
		return fallback
	}
	short, _ := progress.MarshalJSON()
	return perdure.Value(strings.Replace(string(fallback), string(short), string(full), 1))
}

// List reads a page of a tenant's runs, newest first.
func (e *Engine) List(ctx context.Context, t perdure.TenantID, f store.RunFilter) (runs []perdure.Run, err error) {
	if f.Limit < 1 || f.Limit > 1000 {
		return nil, perdure.Invalid("limit", "%d does not lie between 1 and 1000", f.Limit)
	}
	err = e.store.View(ctx, func(v *store.View) error {
		runs, err = v.Runs(t, f)
		return err
	})
	return runs, err
}

// Events reads a run's log from a cursor on. Lines of the run itself bear its run_id in their data.
func (e *Engine) Events(ctx context.Context, t perdure.TenantID, id perdure.RunID, after int64, limit int) (lines []perdure.Line, err error) {
	if limit < 1 || limit > 10000 {
		return nil, perdure.Invalid("limit", "%d does not lie between 1 and 10000", limit)
	}
	err = e.store.View(ctx, func(v *store.View) error {
		if _, ok, err := v.Run(t, id); err != nil {
			return err
		} else if !ok {
			return notFound("run")
		}
		lines, err = v.Events(t, id, after, limit)
		return err
	})
	for i := range lines {
		lines[i].Data = withRunID(lines[i].Type, lines[i].Data, id)
	}
	return lines, err
}

// withRunID puts the run's id in front of the payload of the server's own lines. It is not stored with
// every line: each belongs to its run anyway.
func withRunID(typ string, data perdure.Value, id perdure.RunID) perdure.Value {
	if perdure.WorkerMayWrite(typ) || !strings.HasPrefix(string(data), "{") {
		return data
	}
	rest := string(data[1:])
	if rest != "}" {
		rest = "," + rest
	}
	return perdure.Value(`{"run_id":"` + string(id) + `"` + rest)
}

// Thread reads a conversation's messages from a cursor on.
func (e *Engine) Thread(ctx context.Context, t perdure.TenantID, id perdure.ThreadID, after int64, limit int) (th perdure.Thread, ms []perdure.ThreadMessage, err error) {
	if limit < 1 || limit > 1000 {
		return th, nil, perdure.Invalid("limit", "%d does not lie between 1 and 1000", limit)
	}
	err = e.store.View(ctx, func(v *store.View) error {
		var ok bool
		if th, ok, err = v.Thread(t, id); err != nil {
			return err
		}
		if !ok {
			return notFound("thread")
		}
		if ms, err = v.Messages(t, id, after, limit); err != nil {
			return err
		}
		if th.Metadata, err = v.Resolve(t, th.Metadata); err != nil {
			return err
		}
		for i := range ms {
			if ms[i].Content, err = v.Resolve(t, ms[i].Content); err != nil {
				return err
			}
			if ms[i].Metadata, err = v.Resolve(t, ms[i].Metadata); err != nil {
				return err
			}
		}
		return nil
	})
	return th, ms, err
}
