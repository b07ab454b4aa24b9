package worker_test

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// An agent reads its thread by its lease: neither does its worker's key need to read what it has no lease for, nor is it
// in the way that the thread is another tenant's.
func TestAnAgentReadsItsThreadWhateverItsWorkersKeyIs(t *testing.T) {
	for name, scopes := range map[string][]string{
		"a key that only works": {string(perdure.ScopePoll), string(perdure.ScopeReport)},
		"one of the platform":   nil, // and for all tenants
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t, false, nil)
			key := func(scopes []string) *client.Client {
				k, err := w.c.CreateTenantKey(w.ctx, "elsewhere", api.CreateKey{Name: "k", Scopes: scopes})
				if err != nil {
					t.Fatal(err)
				}
				return client.New(w.url, k.Secret, client.Options{Transport: w.wire})
			}
			by := w.c
			if scopes != nil {
				by = key(scopes)
			}
			w.c = key([]string{string(perdure.ScopeRead), string(perdure.ScopeCreate)})
			thread, err := w.c.CreateThread(w.ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.c.AppendMessage(w.ctx, thread.ThreadID, perdure.Message{Role: "user", Content: []byte(`"hello"`)}); err != nil {
				t.Fatal(err)
			}
			wk := worker.New(by, worker.Options{AllTenants: scopes == nil})
			worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (string, error) {
				said, err := ctx.History()
				if err != nil || len(said) != 1 {
					return "", err
				}
				return string(said[0].Content), nil
			})
			w.work(wk)
			run := w.end(w.start(perdure.Submission{Kind: "agent", ThreadID: thread.ThreadID, MaxAttempts: 1}))
			if string(run.Result) != `"\"hello\""` {
				t.Errorf("%s %s: %+v", run.State, run.Result, run.Error)
			}
		})
	}
}
