package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
)

// checkLimit bounds each check of a server. A check that takes longer has found nothing wrong: the store
// may be large, or busy.
const checkLimit = 10 * time.Second

// unfinished tells whether a check was ended by a time limit.
func unfinished(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || client.CodeOf(err) == perdure.CodeQueryTimeout
}

// check makes one check with a time limit of its own.
func check(ctx context.Context, name string, f func(ctx context.Context) (ok bool, note string, err error)) finding {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	ok, note, err := f(ctx)
	switch {
	case err != nil && unfinished(err):
		return finding{name, true, fmt.Sprintf("did not finish within %s: nothing is known", checkLimit)}
	case err != nil:
		return finding{name, false, err.Error()}
	}
	return finding{name, ok, note}
}

// checkServer checks the server, the key, the workers, the queues, the locks and the invariants.
func checkServer(ctx context.Context, conn *connFlags) []finding {
	if err := conn.reach(); err != nil {
		return []finding{{"server", false, err.Error()}}
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return []finding{{"key", false, err.Error()}}
	}
	ready, cancel := context.WithTimeout(ctx, checkLimit)
	health, ok, err := c.Ready(ready)
	cancel()
	if err != nil {
		hint := " (perdure serve starts one)"
		if errors.As(err, new(*tls.CertificateVerificationError)) {
			hint = " (say with --ca FILE or PERDURE_CA which authorities to trust)"
		}
		return []finding{{"server", false, "no answer: " + err.Error() + hint}}
	}
	// A server whose disk is full still serves live runs, but needs an operator.
	out := []finding{{"server", ok && health.Status != "full", strings.TrimSpace(health.Status + " " + health.Detail)}}
	online := 0
	key := check(ctx, "key", func(ctx context.Context) (bool, string, error) {
		workers, err := admin.New(c).Workers(ctx)
		for _, w := range workers {
			if !w.Offline {
				online++
			}
		}
		return true, "accepted", err
	})
	if out = append(out, key); !key.OK {
		return out
	}
	out = append(out, checkQueues(ctx, c, online)...)
	if conn.tenantName() != "" { // the others are about the whole store
		if c, err = conn.withoutTenant().connect(ctx); err != nil {
			return append(out, finding{"key", false, err.Error()})
		}
	}
	return append(append(out, checkLocks(ctx, c)...), checkInvariants(ctx, c)...)
}

// checkQueues checks that claimable runs have workers, and that no run waits in a paused queue.
func checkQueues(ctx context.Context, c *client.Client, online int) []finding {
	var paused []finding
	all := check(ctx, "workers", func(ctx context.Context) (bool, string, error) {
		queues, err := c.Queues(ctx)
		waiting, about := 0, ""
		for _, q := range queues {
			if waiting += q.Claimable; q.AtLeast {
				about = "at least "
			}
			if q.Paused != nil && q.Queued > 0 {
				note := fmt.Sprintf("the queue %s is paused, and %s%d runs wait (perdure queues resume %s)", q.Name,
					about, q.Queued, q.Name)
				if q.Paused.Reason != "" {
					note += ": " + q.Paused.Reason
				}
				paused = append(paused, finding{"paused queue", false, note})
			}
		}
		note := fmt.Sprintf("%d online, %s%d claimable runs wait", online, about, waiting)
		return online > 0 || waiting == 0, note, err
	})
	return append([]finding{all}, paused...)
}

// locksShown bounds the locked rows that are printed one by one.
const locksShown = 5

// checkLocks lists what other sessions of the database hold locked.
func checkLocks(ctx context.Context, c *client.Client) (out []finding) {
	hidden := false
	summary := check(ctx, "locks", func(ctx context.Context) (bool, string, error) {
		l, err := admin.New(c).Locks(ctx)
		if code := client.CodeOf(err); code == perdure.CodeForbidden || code == perdure.CodeNotFound {
			hidden = true // of an older server, or not for this key
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		for _, t := range l.Tables {
			note := fmt.Sprintf("the whole table %s (%s), since %s, by %s", t.Table, t.Mode,
				t.Found.Format(time.RFC3339), t.By)
			if t.Waits {
				note = fmt.Sprintf("everything waits for the table %s behind %s", t.Table, t.By)
			}
			for _, x := range t.For {
				note += "; it waits for " + x
			}
			out = append(out, finding{"locked table", false, note})
		}
		for i, r := range l.Rows {
			if i == locksShown {
				break
			}
			out = append(out, finding{"locked row", false, fmt.Sprintf("%s %s, since %s, by %s", r.Table,
				strings.Join(r.Key, " "), r.Found.Format(time.RFC3339), r.By)})
		}
		if n := len(l.Tables) + len(l.Rows); n > 0 {
			return false, fmt.Sprintf("%d tables and %d rows are locked by other sessions of the database "+
				"(end one with SELECT pg_terminate_backend(pid))", len(l.Tables), len(l.Rows)), nil
		}
		return true, "no row is locked by another session of the database", nil
	})
	if hidden {
		return nil
	}
	return append([]finding{summary}, out...)
}

// checkInvariants checks what is stored.
func checkInvariants(ctx context.Context, c *client.Client) []finding {
	generation, hidden := int64(0), false
	found := check(ctx, "invariants", func(ctx context.Context) (bool, string, error) {
		got, err := admin.New(c).Invariants(ctx)
		if client.CodeOf(err) == perdure.CodeForbidden {
			hidden = true
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		generation = got.Generation
		note := fmt.Sprintf("%d checked, %d violations, %d runs past their deadline", got.Checked, len(got.Violations),
			got.PastDeadline)
		if n := len(got.Unchecked); n > 0 {
			note += fmt.Sprintf(", %d not checked for lack of time (perdure fsck has none)", n)
		}
		return len(got.Violations) == 0 && got.PastDeadline == 0, note, nil
	})
	if hidden {
		return nil
	}
	out := []finding{found}
	if generation > 0 {
		out = append(out, finding{"generation", true,
			fmt.Sprintf("%d: the store was restored from a backup, and leases from before are refused", generation)})
	}
	return out
}
