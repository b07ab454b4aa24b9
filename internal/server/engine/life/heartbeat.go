package life

import (
	"encoding/json"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A BeatOf is one run's part of a heartbeat.
type BeatOf struct {
	Lease
	Activity  string          `json:"activity,omitempty"`
	Progress  json.RawMessage `json:"progress,omitempty"`
	CancelAck bool            `json:"cancel_ack,omitempty"`
}

// Heartbeat extends leases: all of a worker's runs in one call.
type Heartbeat struct {
	Tenant perdure.TenantID
	Worker string
	Beats  []BeatOf

	// Lost names the runs that the worker no longer holds. It stops executing them.
	Lost []LeaseResult
	// Later names the runs whose rows another session of the database has locked. Their leases are not
	// extended.
	Later []LeaseResult
	// Cancel names the runs that are asked to stop.
	Cancel []LeaseResult
}

func (op *Heartbeat) Needs() []store.Ref {
	out := make([]store.Ref, len(op.Beats))
	for i, b := range op.Beats {
		out[i] = store.Ref{Tenant: op.Tenant, Run: b.RunID}
	}
	return out
}

// Do extends the leases.
func (op *Heartbeat) Do(tx *kernel.Tx) error {
	op.Lost, op.Later, op.Cancel = nil, nil, nil
	if len(op.Beats) > perdure.MaxList {
		return &perdure.Error{Code: perdure.CodeTooLarge, Field: "runs", Message: "a call takes 1000 runs"}
	}
	if err := RecordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	for _, b := range op.Beats {
		res := LeaseResult{RunID: b.RunID, Epoch: b.Epoch}
		err := tx.Try(func() error {
			r, err := tx.Run(op.Tenant, b.RunID)
			if err != nil {
				return err
			}
			if err := heartbeat(tx, &r, b); err != nil {
				var refused error
				if res.NewEpoch, refused = outlivedRefusal(&r, b.Epoch); refused != nil {
					return refused
				}
				return err
			}
			res.OK, res.Cancel = true, r.Cancel.Pending()
			return nil
		})
		switch {
		case err == nil && res.Cancel:
			op.Cancel = append(op.Cancel, res)
		case err == nil:
		case store.HeldUp(err):
			errors.As(err, &res.Error)
			op.Later = append(op.Later, res)
		case errors.As(err, &res.Error):
			switch res.Error.Code {
			case perdure.CodeInvalid, perdure.CodeTooLarge, perdure.CodeUnprocessable:
				// A malformed beat fails the whole call. As a lost lease it would make the worker
				// stop its work.
				return err
			}
			op.Lost = append(op.Lost, res)
		default:
			return err
		}
	}
	return nil
}

// heartbeat applies one run's part, with secrets redacted.
func heartbeat(tx *kernel.Tx, r *perdure.Run, b BeatOf) error {
	if err := perdure.CheckEpoch("epoch", b.Epoch); err != nil {
		return err
	}
	if err := perdure.CheckText("activity", b.Activity); err != nil {
		return err
	}
	if len(b.Progress) > 0 {
		if err := perdure.CheckValue("progress", b.Progress); err != nil {
			return err
		}
	}
	first := r.StartedAt == 0
	err := tx.Apply(r, perdure.Heartbeat{Epoch: b.Epoch, Activity: tx.Engine.Secrets.Whole(b.Activity),
		Progress:  tx.DB.Values.Intern(r.Tenant, string(r.ID), tx.Engine.Secrets.Values(b.Progress)),
		CancelAck: b.CancelAck})
	if err != nil {
		return err
	}
	if first {
		return NotifyParentStarted(tx, r)
	}
	return nil
}

// Weight counts beats.
func (op *Heartbeat) Weight() (rows, bytes int) {
	bytes = 1 << 10
	for i := range op.Beats {
		bytes += 256 + len(op.Beats[i].Progress)
	}
	return 2 + 2*len(op.Beats), bytes
}
