package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// pagesOf reads all pages of a list, and gives its entries and the number on each page.
func pagesOf[T any](
	t *testing.T, s *Store, p Page, read func(*View, Page) ([]T, string, error),
) (all []T, sizes []int) {
	t.Helper()
	for {
		var next string
		if err := s.View(t.Context(), func(v *View) error {
			list, n, err := read(v, p)
			all, sizes, next = append(all, list...), append(sizes, len(list)), n
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if p.After = next; next == "" {
			return all, sizes
		}
	}
}

func TestListsByNameArePaged(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, opFunc(func(tx *Tx) error {
			for i := range 7 {
				id := fmt.Sprintf("n%d", i)
				putRow(&tx.Workers.rows, workerKey{tenant, id},
					perdure.Worker{Tenant: tenant, ID: id,
						Queues: perdure.Value(`["` + strings.Repeat("q", 3000) + `"]`)})
				putRow(&tx.Workers.rows, workerKey{"other", id}, perdure.Worker{Tenant: "other", ID: id, Queues: "[]"})
				putRow(&tx.Keys.rows, "k"+id, perdure.Key{ID: "k" + id, Tenant: tenant, Platform: i%2 == 1})
				putRow(&tx.Queues.rows, queueKey{tenant, id}, QueueRow{Tenant: tenant, Name: id})
			}
			return nil
		}))
		workers := func(v *View, p Page) ([]perdure.Worker, string, error) { return v.Workers.Page(tenant, p) }
		all, sizes := pagesOf(t, s, Page{Limit: 3}, workers)
		if fmt.Sprint(sizes) != "[3 3 1]" || len(all) != 7 || all[6].ID != "n6" || all[0].Tenant != tenant {
			t.Errorf("workers, 3 a page: pages of %v, want [3 3 1]", sizes)
		}
		if _, sizes = pagesOf(t, s, Page{Limit: 1000, Bytes: 7000}, workers); fmt.Sprint(sizes) != "[2 2 2 1]" {
			t.Errorf("workers of 3 KB, 7 KB a page: pages of %v, want [2 2 2 1]", sizes)
		}
		if _, sizes = pagesOf(t, s, Page{Limit: 1000, Bytes: 10}, workers); fmt.Sprint(sizes) != "[1 1 1 1 1 1 1]" {
			t.Errorf("workers of 3 KB, 10 bytes a page: pages of %v, want one each", sizes)
		}
		for platform, want := range map[bool]string{true: "[4 3]", false: "[4]"} {
			_, sizes := pagesOf(t, s, Page{Limit: 4},
				func(v *View, p Page) ([]perdure.Key, string, error) { return v.Keys.Page(tenant, platform, p) })
			if got := fmt.Sprint(sizes); got != want && got != strings.Replace(want, "]", " 0]", 1) {
				t.Errorf("keys, with the platform's: %v: pages of %s, want %s", platform, got, want)
			}
		}
	})
}

func TestQueuesAreCountedPageByPage(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		var ops []Op
		for i := range 9 {
			ops = append(ops, opFunc(func(tx *Tx) error {
				r := newRun(fmt.Sprintf("r%d", i), tx.Now)
				r.Queue = fmt.Sprintf("q%d", i%3)
				if i == 8 {
					r.State, r.Ready = perdure.Suspended, false
				}
				r.ReadyAt = perdure.Instant(1000 + i)
				tx.Runs.Put(r, nil)
				putRow(&tx.Queues.rows, queueKey{tenant, r.Queue}, QueueRow{Tenant: tenant, Name: r.Queue})
				return nil
			}))
		}
		must(t, s, ops...)
		for most, atLeast := range map[int]bool{9: false, 8: true} {
			all, sizes := pagesOf(t, s, Page{Limit: 2},
				func(v *View, p Page) ([]QueueDepth, string, error) { return v.Queues.Page(tenant, p, most) })
			if fmt.Sprint(sizes) != "[2 1]" {
				t.Fatalf("queues, 2 a page: pages of %v, want [2 1]", sizes)
			}
			counted := 0
			for _, q := range all {
				counted += q.Queued + q.Running + q.Suspended
				if q.AtLeast != atLeast {
					t.Errorf("queue %s with %d of 9 runs counted: at least = %v, want %v", q.Name, most, q.AtLeast,
						atLeast)
				}
			}
			if counted != most {
				t.Errorf("%d runs were counted, want %d", counted, most)
			}
			if q := all[2]; !atLeast && q != (QueueDepth{QueueRow: q.QueueRow, Queued: 2, Claimable: 2,
				Suspended: 1, Oldest: 1002}) || all[2].Name != "q2" {
				t.Errorf("queue q2: %+v, want 2 queued and claimable since 1002, 1 suspended", q)
			}
		}
	})
}

func TestRareDeadLettersAreFoundInBoundedSteps(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, opFunc(func(tx *Tx) error {
			for i := range 25 {
				d := perdure.DeadLetter{Tenant: tenant, RunID: ref(fmt.Sprintf("r%02d", i)), Kind: "job",
					Queue: "default", Cause: "common"}
				if i == 1 || i == 14 {
					d.Cause = "rare"
				}
				putRow(&tx.DeadLetters.rows, runKey{tenant, d.RunID}, d)
			}
			return nil
		}))
		read := func(f LetterFilter) (out []string) {
			for {
				if err := s.View(t.Context(), func(v *View) error {
					list, next, err := v.DeadLetters.Page(tenant, f)
					for _, d := range list {
						out = append(out, string(d.RunID))
					}
					f.Before = next
					out = append(out, "→"+string(next))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				if f.Before == "" {
					return out
				}
			}
		}
		if got := strings.Join(read(LetterFilter{Cause: "rare", Limit: 50, Rows: 10}),
			" "); got != "→r15 r14 →r05 r01 →" {
			t.Errorf("rare letters, 10 looked at for a page: %q, want →r15 r14 →r05 r01 →", got)
		}
		if got := strings.Join(read(LetterFilter{Cause: "rare", Limit: 1}), " "); got != "r14 →r14 r01 →r01 →" {
			t.Errorf("rare letters, one a page: %q, want r14 and r01 on a page each", got)
		}
		if err := s.View(t.Context(), func(v *View) error {
			groups, err := v.DeadLetters.Groups(tenant, LetterFilter{Limit: 10, Rows: 12})
			if len(groups) != 2 || groups[0].Count != 11 || groups[1].Count != 1 {
				t.Errorf("causes of the newest 12 letters: %+v, want 11 common and 1 rare", groups)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRareApprovalsAreFoundInBoundedSteps(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, opFunc(func(tx *Tx) error {
			for i := range 9 {
				a := perdure.Approval{Tenant: tenant, RunID: "r", WaitID: fmt.Sprintf("w%d", i),
					ID: perdure.ApprovalID(fmt.Sprintf("a%d", i)), State: "closed", OpenedAt: perdure.Instant(1 + i/2)}
				if i == 7 {
					a.State = "timed_out"
				}
				tx.Approvals.Put(a)
			}
			return nil
		}))
		var got []string
		f := ApprovalFilter{State: "timed_out", Limit: 50, Bytes: 1 << 20, Rows: 4}
		for {
			if err := s.View(t.Context(), func(v *View) error {
				list, next, err := v.Approvals.Page(tenant, f)
				for _, a := range list {
					got = append(got, string(a.ID))
				}
				f.After = next
				got = append(got, "→"+string(next))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if f.After == "" {
				break
			}
		}
		if text := strings.Join(got, " "); text != "→a3 a7 →a7 →" {
			t.Errorf("approvals that timed out, 4 looked at for a page: %q, want →a3 a7 →a7 →", text)
		}
	})
}
