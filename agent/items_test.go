package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// quotes is an agent that asks for a quote for each item at the same time, waits, and charges each
// item by its quote. Items whose names begin with "bad" have an error instead of a quote.
func quotes(done *tally, items ...string) code {
	return func(ctx *agent.Context, _ int) (string, error) {
		got, err := agent.Parallel(ctx, "quote", items, func(_ context.Context, item string) (string, error) {
			done.add("quote " + item)
			if strings.HasPrefix(item, "bad") {
				return "", perdure.Permanent(errors.New("no quote for " + item))
			}
			return "quote for " + item, nil
		}, agent.MapOptions{Limit: 1, Settle: true})
		if err != nil {
			return "", err
		}
		if err := wait(ctx); err != nil {
			return "", err
		}
		for n, item := range items {
			charge := item + " by " + got.Results[n]
			if err := got.Errors[n]; err != nil {
				charge = item + " not: " + err.Error()
			}
			if err := done.do(ctx, "charge "+charge); err != nil {
				return "", err
			}
		}
		return "charged", nil
	}
}

// A result of Parallel belongs to its item, and not to the item's place. A release that changes the
// items is held before anything is done with the results, and the release before goes on.
func TestOtherItemsOfParallelAreFound(t *testing.T) {
	t.Parallel()
	other, fewer := "quote#1/%d: its record is that of another item", "quote#1: Parallel was called with at least"
	for _, row := range []struct{ name, before, after, says string }{
		{"another order of the last", "a b c", "a c b", fmt.Sprintf(other, 1)},
		{"all are gone", "a b c", "", fewer},
		{"errors swap", "bad1 bad2", "bad2 bad1", fmt.Sprintf(other, 0)},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := openHeld(t)
			var done tally
			before := strings.Fields(row.before)
			message, run := w.rollsBack(quotes(&done, before...), quotes(&done, strings.Fields(row.after)...))
			contains(t, message, row.says)
			completed(t, run, `"charged"`)
			var want []string
			for _, item := range before {
				want = append(want, "quote "+item)
			}
			for _, item := range before {
				if strings.HasPrefix(item, "bad") {
					want = append(want, "charge "+item+" not: no quote for "+item)
				} else {
					want = append(want, "charge "+item+" by quote for "+item)
				}
			}
			done.expect(t, want...)
		})
	}
}

// Items that come from a map have another order in some execution. That is found before a result is
// handed to another item.
func TestItemsFromAMapAreFound(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done, executions tally
	swaps := func(ctx *agent.Context, in int) (string, error) {
		items := []string{"a", "b", "c"}
		if executions.add("execution") > 1 { // as a map may hand them out
			slices.Reverse(items)
		}
		return quotes(&done, items...)(ctx, in)
	}
	w.release("", swaps)
	id := w.start(perdure.Submission{Kind: "changes"})
	w.waits(id, "signal:go on#1") // the next execution replays
	w.signal(id, "go on", nil)
	contains(t, w.defect(id, perdure.CodeNondeterminism), "quote#1/0", "the order of a map")
	done.expect(t, "quote a", "quote b", "quote c")
}

// Records that were written before items had digests are taken as they are.
func TestItemsWithoutDigestsAreContinued(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done, digests tally
	id := w.changesSince(func(_ string, value json.RawMessage) json.RawMessage {
		head, rest, ok := strings.Cut(string(value), `"of":"`)
		if _, rest, _ = strings.Cut(rest, `",`); ok {
			digests.add("digest")
			return json.RawMessage(head + rest)
		}
		return value
	}, quotes(&done, "a", "b"), quotes(&done, "a", "b"))
	completed(t, w.end(id), `"charged"`)
	done.expect(t, "quote a", "quote b", "charge a by quote for a", "charge b by quote for b")
	if n := digests.of("digest"); n != 2 {
		t.Errorf("%d records had digests, want 2", n)
	}
}
