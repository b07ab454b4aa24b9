package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// Limits of one call of StartMany. The server's limit of bytes is 16 MiB.
const (
	maxBatchRuns  = perdure.MaxList
	maxBatchBytes = 15 << 20
)

// StartMany starts many runs in the background and returns a result for each, in order. Each run is
// accepted or refused by itself: a result has a Run or an Error. More than 1,000 runs, or 15 MiB, are
// sent in several calls.
//
// Each run without an IdempotencyKey of its own gets one, so that a call whose answer was lost is
// repeated without starting a run twice. With the option [IdempotencyKey] these are the given key, a
// slash and the index of the run: a program that calls StartMany again with the same key and the same
// runs gets the same runs. Runs that the server refused because it was busy or away are sent again,
// as often as any other call.
//
// Foreground of a submission has no effect here.
//
// If a call as a whole fails, StartMany returns its error and the results of the calls before it.
func (c *Client) StartMany(
	ctx context.Context, runs []api.BatchRun, opts ...CallOptions,
) ([]api.StartResult, error) {
	var given request
	for _, o := range opts {
		o.applyTo(&given)
	}
	switch {
	case given.callerKey && given.key == "":
		return nil, api.NewProblem(perdure.CodeInvalid, "an idempotency key is not empty", "Idempotency-Key")
	case given.key == "":
		given.key = rand.Text()
	}
	out := make([]api.StartResult, 0, len(runs))
	for len(out) < len(runs) {
		call := newBatchCall(runs, len(out), given.key)
		if err := c.startBatch(ctx, call); err != nil {
			return out, err
		}
		out = append(out, call.results...)
	}
	return out, nil
}

// A batchCall is the part of a StartMany that is sent in one call.
type batchCall struct {
	// entries has the runs as JSON. An entry that could not be written is nil.
	entries [][]byte
	results []api.StartResult
	// open are the indexes of the entries without a final result.
	open []int
}

// newBatchCall takes as many of the runs, from the first one on, as one call may have.
func newBatchCall(runs []api.BatchRun, first int, key string) *batchCall {
	b, size := &batchCall{}, 0
	for i := first; i < len(runs) && i-first < maxBatchRuns; i++ {
		run := runs[i]
		if run.IdempotencyKey == "" {
			run.IdempotencyKey = key + "/" + strconv.Itoa(i)
		}
		entry, err := perdure.Marshal(run)
		if size += len(entry) + 1; size > maxBatchBytes && i > first {
			break
		}
		result := api.StartResult{Index: i}
		if err != nil {
			detail := "the run can't be written as JSON: " + err.Error()
			result.Error = &api.Refusal{Code: perdure.CodeInvalid, Detail: detail}
		} else {
			b.open = append(b.open, i-first)
		}
		b.entries, b.results = append(b.entries, entry), append(b.results, result)
	}
	return b
}

// startBatch sends the entries of a call until all of them have a result that will not change, or
// there are no more retries.
func (c *Client) startBatch(ctx context.Context, b *batchCall) error {
	for n := 0; len(b.open) > 0; n++ {
		body := b.body()
		r := &request{method: http.MethodPost, path: v1 + "/runs/batch", media: "application/json",
			raw: func() (io.Reader, int64, error) { return bytes.NewReader(body), int64(len(body)), nil }}
		got, err := answer[api.StartedMany](ctx, c, r)
		if err == nil && len(got.Results) != len(b.open) {
			err = fmt.Errorf("the answer has %d results, want %d", len(got.Results), len(b.open))
		}
		var p *api.Problem
		if errors.As(err, &p) && p.Code == perdure.CodeTooLarge && len(b.open) == 1 {
			b.results[b.open[0]].Error = &api.Refusal{Code: p.Code, Detail: p.Detail, Field: p.Field}
			return nil // one run that no call has room for does not hold up the others
		}
		if err != nil {
			return err
		}
		b.settle(got.Results)
		if n >= c.opt.Retries || session.NoRetryOf(ctx) != nil || len(b.open) == 0 || !c.pause(ctx, r.end, n, 0) {
			return nil
		}
		c.log.Debug("runs of a batch are sent again", "runs", len(b.open), "sent", n+1)
	}
	return nil
}

// body returns the body of a call with the open entries.
func (b *batchCall) body() []byte {
	body := []byte(`{"runs":[`)
	for k, i := range b.open {
		if k > 0 {
			body = append(body, ',')
		}
		body = append(body, b.entries[i]...)
	}
	return append(body, "]}"...)
}

// settle takes the results of the open entries. Those that may change when they are sent again stay
// open.
func (b *batchCall) settle(results []api.StartResult) {
	var open []int
	for k, r := range results {
		i := b.open[k]
		r.Index = b.results[i].Index
		b.results[i] = r
		if r.Error != nil && sentAgain(r.Error.Code) {
			open = append(open, i)
		}
	}
	b.open = open
}

// sentAgain tells whether a call that is refused with a code is repeated.
func sentAgain(code perdure.Code) bool {
	return slices.Contains([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}, api.StatusOf(code))
}
