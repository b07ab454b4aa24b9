package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// BenchmarkLargeCommit measures the largest commits: a thousand entries of 7 KB each. What a commit
// costs must not depend much on which of its lists they are in.
func BenchmarkLargeCommit(b *testing.B) {
	ctx := context.Background()
	action := func(i int) json.RawMessage {
		var fields []string
		for f := range 70 {
			fields = append(fields, fmt.Sprintf(`"field %d": {"text": "%s", "n": %d}`, f, strings.Repeat("x", 70), i))
		}
		return json.RawMessage("{" + strings.Join(fields, ", ") + "}")
	}
	for _, c := range []struct {
		name string
		add  func(*perdure.Commit, int)
	}{
		{"journal", func(c *perdure.Commit, i int) {
			c.Journal = append(c.Journal, perdure.JournalEntry{Key: fmt.Sprint(i), Value: action(i)})
		}},
		{"approvals", func(c *perdure.Commit, i int) {
			c.Waits = append(c.Waits, perdure.WaitSpec{ID: fmt.Sprint(i), Name: "may", Type: perdure.WaitApproval,
				Approval: &perdure.ApprovalSpec{Title: "may it", Action: action(i)}})
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := open(b)
			var commit perdure.Commit
			for i := range 1000 {
				c.add(&commit, i)
			}
			b.SetBytes(int64(commit.Size()))
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				submit := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}}
				if err := e.Do(ctx, submit); err != nil {
					b.Fatal(err)
				}
				poll := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1, Start: true}
				if err := e.Do(ctx, poll); err != nil || len(poll.Grants) != 1 {
					b.Fatalf("%d grants, error %v, want one", len(poll.Grants), err)
				}
				r := &poll.Grants[0].Run
				commit.RunID, commit.Epoch, commit.ID = r.ID, r.Epoch, string(r.ID)
				b.StartTimer()
				if err := e.Do(ctx, &life.Commit{Tenant: tenant, Worker: "w", Commit: commit}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
