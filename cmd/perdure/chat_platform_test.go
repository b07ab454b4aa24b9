package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A person with a key of the tenant is told that the platform decides, and is not asked. With a key of the
// platform the person is asked.
func TestChatAsksOnlyThoseWhoMayDecide(t *testing.T) {
	const told = "The platform decides about this"
	for _, x := range []struct {
		name     string
		platform bool
		want     string
	}{
		{"a key of the tenant", false, told},
		{"a key of the platform", true, "Approve? [type rm"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, _ := live(t)
			w := worker.New(c, worker.Options{DrainTimeout: -1, Logger: slog.New(slog.DiscardHandler)})
			worker.Agent(w, "asker", func(ctx *agent.Context, _ map[string]any) (string, error) {
				v, err := agent.Approve(ctx, agent.Approval{Name: "shell", Title: "execute rm",
					Action: map[string]string{"program": "rm"}, Approvers: perdure.ApproversPlatform,
					Timeout: time.Minute})
				text := fmt.Sprintf("approved: %t", v.Approved)
				return text, errors.Join(err, agent.Message(ctx, perdure.RoleAssistant, text))
			})
			ctx, cancel := context.WithCancel(t.Context())
			worked := make(chan error, 1)
			go func() { worked <- w.Run(ctx) }()
			defer func() {
				cancel()
				<-worked
			}()
			by := c
			if !x.platform {
				scopes := []string{string(perdure.ScopeCreate), string(perdure.ScopeRead), string(perdure.ScopeApprove)}
				key, err := admin.New(c).CreateTenantKey(ctx, embedded.DefaultTenant, api.CreateKey{Name: "p",
					Scopes: scopes})
				if err != nil {
					t.Fatal(err)
				}
				by = client.New(os.Getenv("PERDURE_URL"), key.Secret, client.Options{})
			}
			var out strings.Builder
			errs := &watched{text: x.want, seen: make(chan struct{})}
			typed := "rm\n"
			if !x.platform {
				typed = ""
				go func() { // somebody of the platform decides
					select {
					case <-errs.seen:
					case <-ctx.Done():
						return
					}
					page, err := c.Approvals(ctx, client.ApprovalFilter{})
					if err != nil || len(page.Approvals) != 1 {
						t.Errorf("open approvals = %+v (%v), want one", page, err)
						return
					}
					_, err = c.Decide(ctx, page.Approvals[0].ID, api.Decide{Decision: perdure.Approve})
					if err != nil {
						t.Error(err)
					}
				}()
			}
			ch := &conversation{c: by, kind: "asker", wait: 20 * time.Second, asks: true,
				in: typing("go\n", errs.seen, typed), stdout: &out, stderr: errs}
			if err := ch.converse(t.Context()); err != nil {
				t.Fatalf("the chat ended with %v, and has shown:\n%s", err, errs.all.String())
			}
			has(t, out.String(), "approved: true")
			has(t, errs.all.String(), "execute rm", x.want)
			if asked := strings.Contains(errs.all.String(), "Approve?"); asked != x.platform {
				t.Errorf("the person was asked: %t, want %t:\n%s", asked, x.platform, errs.all.String())
			}
		})
	}
}
