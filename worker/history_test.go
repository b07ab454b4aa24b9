package worker_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/worker"
)

// An agent reads its thread, and looks at its children, with its lease. The worker's key needs no scope
// to read, and can be of another tenant.
func TestAgentReadsByItsLease(t *testing.T) {
	for name, scopes := range map[string][]string{
		"a key that only works": {string(perdure.ScopePoll), string(perdure.ScopeReport)},
		"one of the platform":   nil, // leases runs of all tenants
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t, false, nil)
			key := func(scopes []string) *client.Client {
				k, err := admin.New(w.C).CreateTenantKey(w.Ctx, "elsewhere", api.CreateKey{Name: "k", Scopes: scopes})
				if err != nil {
					t.Fatal(err)
				}
				return client.New(w.URL, k.Secret, client.Options{Transport: w.Wire})
			}
			by := w.C
			if scopes != nil {
				by = key(scopes)
			}
			w.C = key([]string{string(perdure.ScopeRead), string(perdure.ScopeCreate)})
			thread, err := w.C.CreateThread(w.Ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			hello := perdure.Message{Role: "user", Content: []byte(`"hello"`)}
			if _, err := w.C.AppendMessage(w.Ctx, thread.ThreadID, hello); err != nil {
				t.Fatal(err)
			}
			wk := worker.New(by, worker.Options{AllTenants: scopes == nil})
			worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
				said, err := ctx.History()
				if err != nil || len(said) != 1 {
					return "", err
				}
				child := agent.Spawn[int](ctx, "untaken", 1)
				seen, err := agent.Step(ctx, "look", func(c context.Context) (perdure.State, error) {
					run, err := child.Peek(c)
					if err != nil {
						return "", err
					}
					return run.State, nil
				})
				if err != nil || seen != perdure.Queued {
					return "", fmt.Errorf("the child is %q, %w", seen, err)
				}
				return string(said[0].Content), child.Cancel(ctx)
			})
			w.Work(wk)
			run := w.End(w.Start(perdure.Submission{Kind: "agent", ThreadID: thread.ThreadID, MaxAttempts: 1}))
			if string(run.Result) != `"\"hello\""` {
				t.Errorf("run %s: %s, result %s, %+v, want the message \"hello\"", run.RunID, run.State, run.Result,
					run.Error)
			}
		})
	}
}
