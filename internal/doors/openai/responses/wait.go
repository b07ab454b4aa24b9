package responses

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/openai/again"
)

// maxWait is how long an answer waits for the end of a run. The run goes on after it.
const maxWait = time.Hour

// held is how long the headers of a waiting answer are held back. It is shorter than the silence that
// proxies allow.
const held = 25 * time.Second

// Hold is how long the headers of an answer are held back. The clients post again while they have none,
// at first twice, and give an answer up that breaks off later. The last time they get them at once, so that
// their timeouts and those of proxies end.
func Hold(c *doors.Call) time.Duration {
	if again.Retries(c) >= 2 {
		return 0
	}
	return held
}

// errWaited ends the longest wait.
var errWaited = errors.New("the wait is over")

// Wait reads the log of a run until line says that there is no more to read, or the longest wait is
// over. begin is called once the run can't be refused.
func Wait(c *doors.Call, ctx context.Context, run perdure.RunID, look *Found, begin func() error,
	line func(*api.Event) (more bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, errWaited)
	defer cancel()
	look.Ctx = ctx
	begun := false
	for e, err := range c.Lines(ctx, run, 0) {
		if err == nil && !begun {
			begun, err = true, begin()
		}
		if errors.Is(err, errWaited) {
			return nil
		}
		if err != nil {
			return err
		}
		if more, err := line(e); err != nil || !more {
			return err
		}
	}
	return nil
}

// Found looks things up with the calls of the API.
type Found struct {
	Call *doors.Call
	Run  perdure.RunID
	Ctx  context.Context
}

// Approval reads an approval. It is nil if there is none.
func (f *Found) Approval(id perdure.ApprovalID) (*perdure.Approval, error) {
	a, err := f.Call.API.Approval(f.Ctx, id)
	if client.CodeOf(err) == perdure.CodeNotFound {
		return nil, nil
	}
	return a, err
}

// Result reads the result of the run.
func (f *Found) Result() (json.RawMessage, error) {
	run, err := f.Call.API.Get(f.Ctx, f.Run)
	if err != nil {
		return nil, err
	}
	return run.Result, nil
}
