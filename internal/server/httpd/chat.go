package httpd

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// chat passes a message of a user to the agent of a thread, and answers with the run that takes it up.
// With wait it waits for the answer. If the caller accepts server-sent events, it gets the run's log,
// as streamRun gives it: of a run that takes the message up while it is live, the lines from now on.
func chat(c *call, in *api.Chat) (int, *api.ChatAnswer, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	wait := time.Duration(in.Wait)
	streams := acceptsStream(c.Request)
	switch {
	case wait < 0 || wait > maxWait:
		return 0, nil, perdure.Invalid("wait", "must lie between 0s and %s", maxWait)
	case streams && wait > 0:
		return 0, nil, perdure.Invalid("wait", "a stream waits by itself")
	case len(in.Message) == 0:
		return 0, nil, perdure.Invalid("message", "is missing")
	case emptyMessage(in.Message):
		return 0, nil, perdure.Invalid("message", "is empty: there is nothing to answer")
	}
	op := &life.Chat{Tenant: c.tenant(), ThreadID: in.ThreadID, Message: perdure.Message{Content: in.Message},
		Kind: cmp.Or(in.Kind, api.SupervisorKind), Timeout: in.Timeout, Key: key,
		Foreground: streams || wait > 0 || in.Foreground, Expects: streams || in.Foreground}
	if wait > 0 {
		op.Node = c.s.opt.Node
	}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	in.Message, op.Message = nil, perdure.Message{} // it may be large, and the wait long
	if streams {
		return statusWritten, nil, streamLog(c, op.Run.ID, since(op), "")
	}
	if wait == 0 {
		status := http.StatusOK
		if op.Started && op.Created {
			status = http.StatusCreated
		}
		return status, chatAnswer(op, showRun(c, &reads.Detail{Run: op.Run})), nil
	}
	c.share.changed = true
	status, out, err := awaitAnswer(c, op, wait)
	if err != nil {
		return 0, nil, err
	}
	return status, chatAnswer(op, out), nil
}

// awaitAnswer waits for the end of the run that answers. One that was live already may have ended
// without the message: its continuation has the answer then.
func awaitAnswer(c *call, op *life.Chat, wait time.Duration) (status int, out *api.Run, err error) {
	deadline := time.Now().Add(wait)
	var made *reads.Detail
	if op.Started && op.Created {
		made = &reads.Detail{Run: op.Run}
	}
	id, started := op.Run.ID, op.Started
	for {
		status, out, err = await(c, id, wait, started, made)
		if err != nil || op.Started || !out.State.Terminal() || out.ContinuedByRunID == "" {
			return status, out, err
		}
		id, started, made = out.ContinuedByRunID, false, nil
		wait = max(0, time.Until(deadline))
	}
}

// since returns the number of the last event of a run from before the message. A new run has none.
func since(op *life.Chat) int64 {
	if op.Started {
		return 0
	}
	return op.Run.Seq
}

func chatAnswer(op *life.Chat, r *api.Run) *api.ChatAnswer {
	out := &api.ChatAnswer{ThreadID: op.Run.ThreadID, RunID: r.RunID, Started: op.Started, Status: r.Status,
		State: r.State,
		Error: r.Error, Message: r.Message, LastSeq: since(op), AttachURL: r.AttachURL, StatusURL: r.StatusURL}
	if r.State == perdure.Completed {
		out.Answer = r.Result
	}
	return out
}

// acceptsStream tells whether a request asks for server-sent events.
func acceptsStream(r *http.Request) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(r.Header.Values("Accept"), ","), ","),
		func(media string) bool {
			media, _, _ = strings.Cut(media, ";")
			return strings.TrimSpace(media) == api.MediaStream
		})
}

// emptyMessage tells whether a message is null, or a text of white space.
func emptyMessage(m json.RawMessage) bool {
	m = bytes.TrimSpace(m)
	if string(m) == "null" {
		return true
	}
	var text string
	return len(m) <= maxBlankMessage && json.Unmarshal(m, &text) == nil && strings.TrimSpace(text) == ""
}

// maxBlankMessage is the size up to which a message is looked at for being blank.
const maxBlankMessage = 4096
