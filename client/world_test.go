package client_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/session"
)

// open opens a server on the store that tests run on, behind a socket or in the process.
func open(t *testing.T, socket bool, policy *perdure.Policy) *servertest.Server {
	t.Helper()
	opt := embedded.Options{Store: storetest.Address(t), Policy: policy}
	if socket {
		return servertest.Listen(t, opt)
	}
	return servertest.Open(t, opt)
}

// both runs a test twice: with a server in the process, and over a socket.
func both(t *testing.T, f func(t *testing.T, w *servertest.Server)) {
	t.Run("in process", func(t *testing.T) { f(t, open(t, false, nil)) })
	t.Run("over a socket", func(t *testing.T) { f(t, open(t, true, nil)) })
}

// finish leases the next run, completes it and returns its id.
func finish(t *testing.T, c *client.Client, result string) perdure.RunID {
	t.Helper()
	id, err := complete(c, result)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func complete(c *client.Client, result string) (perdure.RunID, error) {
	ctx := context.Background()
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		return "", fmt.Errorf("%+v %w", polled, err)
	}
	g := polled.Runs[0]
	res, err := session.Of(c).Commit(ctx, "w", perdure.Commit{ID: "c", RunID: g.RunID, Epoch: g.Epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: []byte(result)}})
	if err != nil || len(res) != 1 || !res[0].OK || res[0].State != perdure.Completed {
		return "", fmt.Errorf("%+v %w", res, err)
	}
	return g.RunID, nil
}

// ok returns the value of a call, and fails the test if the call has an error.
func ok[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	t.Cleanup(cancel)
	return ctx
}
