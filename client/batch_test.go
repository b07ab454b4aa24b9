package client_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// batchOf returns so many runs of a batch.
func batchOf(n int) []api.BatchRun {
	runs := make([]api.BatchRun, n)
	for i := range runs {
		runs[i].Submission = perdure.Submission{Kind: "job", Input: client.JSON(i)}
	}
	return runs
}

// sentBatch reads the body of a call and leaves it as it was.
func sentBatch(t *testing.T, r *http.Request) (in api.StartMany) {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(b, &in)
	}
	if err != nil {
		t.Errorf("the body of a batch: %v", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return in
}

func TestStartManySendsSeveralCalls(t *testing.T) {
	w := open(t, false, nil)
	ctx := within(t)
	var sizes []int
	keys := make(map[string]bool)
	c := w.Client(func(next http.RoundTripper) http.RoundTripper {
		return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			in := sentBatch(t, r)
			sizes = append(sizes, len(in.Runs))
			for _, x := range in.Runs {
				keys[x.IdempotencyKey] = true
			}
			return next.RoundTrip(r)
		})
	})
	const n = 2100
	runs := batchOf(n)
	runs[5].Kind = ""
	runs[7].Input = json.RawMessage(`{`)
	runs[1003].IdempotencyKey = "own"
	first := ok[[]api.StartResult](t)(c.StartMany(ctx, runs, client.IdempotencyKey("k")))
	if fmt.Sprint(sizes) != "[999 1000 100]" { // the one that is no JSON is not sent
		t.Errorf("sizes of the calls = %v, want [999 1000 100]", sizes)
	}
	if len(keys) != n-1 || !keys["k/0"] || !keys["k/2099"] || !keys["own"] || keys["k/1003"] {
		t.Errorf("%d keys, want k/0 to k/2099, and own instead of k/1003", len(keys))
	}
	again := ok[[]api.StartResult](t)(c.StartMany(ctx, runs, client.IdempotencyKey("k")))
	if len(first) != n || len(again) != n {
		t.Fatalf("%d results, then %d, want %d", len(first), len(again), n)
	}
	for i := range first {
		if a, b := first[i], again[i]; i == 5 || i == 7 {
			if a.Error == nil || a.Error.Code != perdure.CodeInvalid || a.Index != i {
				t.Errorf("result %d = %+v, want %s", i, a, perdure.CodeInvalid)
			}
		} else if a.Run == nil || a.Duplicate || a.Index != i || b.Run == nil || !b.Duplicate ||
			a.Run.RunID != b.Run.RunID {
			t.Fatalf("results %d = %+v, then %+v, want one run", i, a, b)
		}
	}
	run := ok[*api.Run](t)(w.Client().Get(ctx, first[1234].Run.RunID))
	if string(run.Input) != "1234" || run.Status != "queued" {
		t.Errorf("run 1234 = %+v, want its own input, and queued", run)
	}
	sizes = nil
	if none := ok[[]api.StartResult](t)(c.StartMany(ctx, nil)); len(none) != 0 || len(sizes) != 0 {
		t.Errorf("no runs gave %d results in %d calls, want none", len(none), len(sizes))
	}
	if _, err := c.StartMany(ctx, runs, client.IdempotencyKey("")); client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("an empty idempotency key: %v, want %s", err, perdure.CodeInvalid)
	}
}

func TestStartManyCutsCallsBySize(t *testing.T) {
	w := open(t, false, nil)
	var sizes []int
	c := w.Client(func(next http.RoundTripper) http.RoundTripper {
		return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			sizes = append(sizes, len(sentBatch(t, r).Runs))
			return next.RoundTrip(r)
		})
	})
	runs := batchOf(18)
	for i := range runs {
		runs[i].Input = client.JSON(strings.Repeat("x", 1000<<10))
	}
	runs[16].Input = client.JSON(strings.Repeat("x", 17<<20)) // more than any call takes
	results := ok[[]api.StartResult](t)(c.StartMany(within(t), runs))
	for i, r := range results {
		if i == 16 {
			if r.Error == nil || r.Error.Code != perdure.CodeTooLarge {
				t.Errorf("the run of 17 MiB: %+v, want %s", r, perdure.CodeTooLarge)
			}
		} else if r.Run == nil || r.Index != i {
			t.Errorf("result %d = %+v, want a run", i, r)
		}
	}
	if len(results) != len(runs) || fmt.Sprint(sizes) != "[15 1 1 1]" {
		t.Errorf("%d results, sizes of the calls = %v, want %d and [15 1 1 1]", len(results), sizes, len(runs))
	}
}

// Runs that were refused because the server was busy are sent again, under the same keys, and the
// others are not.
func TestStartManySendsBusyRunsAgain(t *testing.T) {
	w := open(t, false, nil)
	var calls []api.StartMany
	c := w.Client(func(next http.RoundTripper) http.RoundTripper {
		return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			calls = append(calls, sentBatch(t, r))
			res, err := next.RoundTrip(r)
			if err != nil || len(calls) > 1 {
				return res, err
			}
			var out api.StartedMany
			if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
				t.Error(err)
			}
			res.Body.Close()
			busy := func(code perdure.Code) api.StartResult { return api.StartResult{Error: &api.Refusal{Code: code}} }
			out.Results[1], out.Results[3] = busy(api.CodeRate), busy(perdure.CodeUnknown)
			res.Body = io.NopCloser(bytes.NewReader(client.JSON(out)))
			return res, nil
		})
	})
	runs := batchOf(5)
	runs[4].Kind = ""
	results := ok[[]api.StartResult](t)(c.StartMany(within(t), runs))
	if len(calls) != 2 || len(calls[1].Runs) != 2 ||
		calls[1].Runs[0].IdempotencyKey != calls[0].Runs[1].IdempotencyKey ||
		calls[1].Runs[1].IdempotencyKey != calls[0].Runs[3].IdempotencyKey {
		t.Fatalf("calls = %+v, want runs 1 and 3 again under their keys", calls)
	}
	for i, r := range results {
		if i == 4 {
			if r.Error == nil || r.Error.Code != perdure.CodeInvalid {
				t.Errorf("result 4 = %+v, want %s", r, perdure.CodeInvalid)
			}
		} else if r.Run == nil || r.Index != i || r.Duplicate != (i == 1 || i == 3) {
			t.Errorf("result %d = %+v, want a run", i, r)
		}
	}
	if page := ok[*api.Runs](t)(w.Client().List(within(t), client.Filter{})); len(page.Runs) != 4 {
		t.Errorf("%d runs, want 4", len(page.Runs))
	}
}

// The results of the calls before a failed one are returned.
func TestStartManyReturnsResultsBeforeAFailure(t *testing.T) {
	w := open(t, false, nil)
	sent := 0
	c := w.Client(func(next http.RoundTripper) http.RoundTripper {
		return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			if sent++; sent > 1 {
				r.Header.Del("Authorization")
			}
			return next.RoundTrip(r)
		})
	})
	results, err := c.StartMany(within(t), batchOf(1500))
	if client.CodeOf(err) != api.CodeUnauthorized || len(results) != 1000 || results[999].Run == nil {
		t.Errorf("%d results, %v, want the first 1000 and %s", len(results), err, api.CodeUnauthorized)
	}
}
