package httpd

import (
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// A share is all that one call holds of the node, on the account of its tenant. serve makes it, the
// methods below add to it, and release gives back whatever it holds. serve defers release, so nothing
// is left over when a call is answered, refused or panics. A stream and a socket outlive their
// request: move hands the share over to them, and they release it.
//
// A part that the call has already is not taken twice.
type share struct {
	of     *shares
	tenant perdure.TenantID
	// changed is set when the call may have changed something. It is then answered even if there is
	// no memory for its answer.
	changed bool
	// held has the functions that give the parts back. One is nil if the call does not have the part.
	held [parts]func()
}

// A part of a share. They are given back in this order.
type part int

const (
	// turnPart is a turn to keep a processor busy.
	turnPart part = iota
	// wokenPart is the turn of a call that a crowd lets go on.
	wokenPart
	// answerPart and bodyPart are memory.
	answerPart
	bodyPart
	// callPart is a place among the calls under way, and blockedPart one among those that block.
	callPart
	blockedPart
	parts
)

// share returns a share of a tenant that holds nothing yet.
func (s *shares) share(t perdure.TenantID) share { return share{of: s, tenant: t} }

// release gives back all that the share holds. It may be called more than once.
func (h *share) release() {
	for p := range parts {
		h.drop(p)
	}
}

// drop gives a part back, if the share has it.
func (h *share) drop(p part) {
	if leave := h.held[p]; leave != nil {
		h.held[p] = nil
		leave()
	}
}

// move returns a share with all that this one holds. This one holds nothing afterwards.
func (h *share) move() share {
	moved := *h
	h.held = [parts]func(){}
	return moved
}

// enter takes a place among the calls under way: of the tenant's own limit, if it has one, and of the
// node's.
func (h *share) enter(ctx context.Context) (err error) {
	if h.held[callPart] == nil {
		h.held[callPart], err = h.of.enterCall(ctx, h.tenant)
	}
	return err
}

// block takes a place among the calls that block: of the tenant's own limit, if an operator has set
// one, and of the node's. The share then gives back everything else.
func (h *share) block(how stream.Transport) error {
	if h.held[blockedPart] != nil {
		return nil
	}
	leave, err := h.of.enterBlocked(how, h.tenant)
	if err != nil {
		return err
	}
	h.release()
	h.held[blockedPart] = leave
	return nil
}

// unblock gives back the place of a call that blocks no longer.
func (h *share) unblock() { h.drop(blockedPart) }

// reserveBody reserves memory for a body. It is given back when the call is answered or blocks.
func (h *share) reserveBody(ctx context.Context, size int64) (err error) {
	if size > smallBody && h.held[bodyPart] == nil {
		h.held[bodyPart], err = h.of.enter(ctx, h.of.bodies, h.tenant, size, h.of.wait,
			"too many bytes of bodies are in memory")
	}
	return err
}

// reserveAnswer reserves memory for the answer, before anything is read for it. A call that may have
// changed something goes on without memory.
func (h *share) reserveAnswer(ctx context.Context, size int64) error {
	if h.held[answerPart] != nil || size <= smallAnswer {
		return nil
	}
	leave, err := h.of.enter(ctx, h.of.answers, h.tenant, size, h.of.answerWait,
		"too many bytes of answers are in memory")
	var busy *perdure.Error
	if errors.As(err, &busy) && h.changed {
		return nil
	}
	h.held[answerPart] = leave
	return err
}

// reservePoll reserves memory for the answer of a poll, and returns the number of bytes.
func (h *share) reservePoll(ctx context.Context) (int64, error) {
	size := min(largePage, max(minPollAnswer, h.of.answers.Free(h.tenant)/pollAnswerPart))
	return size, h.reserveAnswer(ctx, size)
}

// releaseAnswer gives back the memory that is reserved for the answer.
func (h *share) releaseAnswer() { h.drop(answerPart) }

// turn waits for the tenant's turn to work on so many bytes. end is never nil. It has to be called
// when the work is done; the turn itself ends after the rest. A call that has its turn already keeps
// it until its answer is encoded.
func (h *share) turn(ctx context.Context, size int64) (end func(), err error) {
	if size <= smallBody {
		return func() {}, nil
	}
	return h.turnWithin(ctx, h.of.answerWait)
}

// turnWithin waits for the tenant's turn, at most for a time. A tenant that calls alone needs none.
func (h *share) turnWithin(ctx context.Context, wait time.Duration) (end func(), err error) {
	if h.held[turnPart] != nil || h.of.alone(h.tenant, time.Now()) {
		return func() {}, nil
	}
	leave, err := h.of.enter(ctx, h.of.turns, h.tenant, 1, wait, "this tenant has too many large calls under way")
	if err != nil {
		return func() {}, err
	}
	begin := time.Now()
	h.held[turnPart] = func() { time.AfterFunc(min(maxTurnRest, turnRest*time.Since(begin)), leave) }
	return h.endTurn, nil
}

// endTurn ends the call's turn, if it has one.
func (h *share) endTurn() { h.drop(turnPart) }

// woken takes the turn of a call that a crowd lets go on. It ends when the answer is encoded.
func (h *share) woken(leave func()) {
	h.drop(wokenPart)
	h.held[wokenPart] = leave
}

// encoded ends the turns of a call whose answer is encoded and only has to be written.
func (h *share) encoded() {
	h.drop(turnPart)
	h.drop(wokenPart)
}

// byteWait returns how long the tenant has to wait before it may send bytes. Zero means that it may
// send now.
func (h *share) byteWait() time.Duration { return h.of.byteWait(h.tenant, time.Now()) }

// spend counts bytes that were received against the bytes per hour.
func (h *share) spend(n int) {
	if n > 0 {
		h.of.spendBytes(h.tenant, int64(n), time.Now())
	}
}
