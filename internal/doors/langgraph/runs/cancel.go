package runs

import (
	"net/http"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// cancelWait bounds how long a cancel waits for the end.
const cancelWait = time.Hour

// cancelReason is the reason that is recorded: that of the caller, or the action.
func cancelReason(c *doors.Call) (string, error) {
	action := shape.OrElse(c.Query("action"), "interrupt")
	if action != "interrupt" && action != "rollback" {
		return "", perdure.Invalid("action", "is interrupt or rollback")
	}
	switch reason := c.Query("reason"); reason {
	case "":
		return action, nil
	case "taken":
		return "taken:" + action, nil
	default:
		return "", perdure.Invalid("reason", "is taken, or nothing")
	}
}

// Cancel cancels a run, and may wait for its end.
func Cancel(c *doors.Call) error {
	wait := c.Query("wait")
	if _, err := strconv.Atoi(shape.OrElse(wait, "0")); err != nil && wait != "true" && wait != "false" {
		return perdure.Invalid("wait", "is 0 or 1")
	}
	reason, err := cancelReason(c)
	if err != nil {
		return err
	}
	p, err := findRun(c)
	if err != nil {
		return err
	}
	if wait == "" || wait == "0" || wait == "false" {
		if _, err := c.API.Cancel(c.Context(), p.RunID, reason, 0); err != nil {
			return err
		}
		return c.Status(http.StatusAccepted)
	}
	if _, err := c.API.Cancel(c.Context(), p.RunID, reason, cancelWait); err != nil {
		return err
	}
	return c.Status(http.StatusNoContent)
}

// CancelMany cancels runs by their ids, or the live runs of a thread.
func CancelMany(c *doors.Call) error {
	var in struct {
		Thread string   `json:"thread_id"`
		Runs   []string `json:"run_ids"`
		Status string   `json:"status"`
	}
	if _, err := c.Decode(&in); err != nil {
		return err
	}
	reason, err := cancelReason(c)
	if err != nil {
		return err
	}
	if len(in.Runs) > shape.MaxBatch {
		return shape.Unprocessable(perdure.CodeTooLarge, "run_ids", "has more than 100 ids")
	}
	var list []*Part
	for _, id := range in.Runs {
		p, err := runOf(c, id, in.Thread)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	if len(in.Runs) == 0 {
		if list, err = liveWith(c, in.Thread, in.Status); err != nil {
			return err
		}
	}
	for _, p := range list {
		if _, err := c.API.Cancel(c.Context(), p.RunID, reason, 0); err != nil {
			return err
		}
	}
	return c.Status(http.StatusNoContent)
}
