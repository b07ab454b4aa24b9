package sim

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// Single attempts: a run with one attempt is executed at most once, whatever its workers do.
//
// Each poll makes the promise of Claim.Confirms or does not. A worker that has made it begins such a run
// after an answer only. One that has not begins at once, whatever it asked for, and the server may never
// hear of it. The promises are drawn from a stream of their own.

// executions has the last execution of each run that has begun, by its epoch. A suspend or a hold ends it:
// the run may be executed again.
type executions map[perdure.RunID]execution

type execution struct {
	begun int64 // or zero
	// ended is the last epoch that a suspend or a hold has ended. An answer that comes after that, for the
	// same epoch, begins nothing new.
	ended int64
}

// began notes that a worker begins to execute a run. To clean up is no execution.
func (s *sim) began(r *perdure.Run, cancel bool) {
	e := s.executions[r.ID]
	if r.MaxAttempts != 1 || cancel || r.Epoch <= e.ended {
		return
	}
	if e.begun != 0 && e.begun != r.Epoch {
		s.violate("S20", "%s has one attempt, which began under epoch %d, and begins under epoch %d", s.nameOf(r),
			e.begun, r.Epoch)
	}
	e.begun = r.Epoch
	s.executions[r.ID] = e
}

// closeExecution follows the lines after which a run with one attempt may be executed again.
func (s *sim) closeExecution(l perdure.Line, held bool, r *perdure.Run) {
	if l.Type == perdure.LineSuspended || held {
		s.executions[r.ID] = execution{ended: r.Epoch}
	}
}

// confirmed calls begin when the server has heard that a worker has a run with one attempt, if its poll
// has promised that.
func (s *sim) confirmed(g dispatch.Grant, worker string, begin func()) {
	if g.Run.MaxAttempts != 1 {
		begin()
		return
	}
	var tell func()
	tries := 0
	tell = func() {
		s.send(func() kernel.Op {
			return &life.Heartbeat{Tenant: tenant, Worker: worker, Beats: []life.BeatOf{
				{Lease: life.Lease{RunID: g.Run.ID, Epoch: g.Run.Epoch}}}}
		}, func(r reply) {
			switch {
			case r.unsure():
				if tries++; tries < 6 {
					s.after(time.Second, tell)
				}
			case r.err == nil && len(r.op.(*life.Heartbeat).Lost) == 0:
				s.sometimes("a single attempt began after an answer")
				begin()
			}
		})
	}
	tell()
}
