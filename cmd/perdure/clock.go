package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/store"
)

// clockShown limits the ended runs that are printed as text.
const clockShown = 20

// A clockReport compares a store's clock with the machine's.
type clockReport struct {
	Store perdure.Instant `json:"store"`
	Now   perdure.Instant `json:"now"`
	Ahead string          `json:"ahead"`
	Ended []clockEnded    `json:"ended"` // runs that ended after Now, by the store's clock
	Reset bool            `json:"reset"`
	Moved int             `json:"moved"` // live runs with instants that were moved back

	ahead time.Duration
}

// A clockEnded is a run that ended while the store's clock was ahead.
type clockEnded struct {
	Tenant     perdure.TenantID `json:"tenant"`
	RunID      perdure.RunID    `json:"run_id"`
	Kind       string           `json:"kind"`
	State      perdure.State    `json:"state"`
	Code       perdure.Code     `json:"code,omitempty"`
	FinishedAt perdure.Instant  `json:"finished_at"`
}

func clockCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("clock [reset]", `Compares the clock of a stopped server's data with this machine's, and lists the
runs that
ended while the store's clock was ahead. With "reset --yes" the store's clock is set back to this
machine's, which has to be right: check it before. Ended runs stay ended. Live runs lose the leases,
backoffs and wait timeouts that are in the future, and keep their deadlines. PostgreSQL has a clock of
its own.

  perdure clock --data perdure-data
  perdure clock reset --yes --data perdure-data`, stderr)
	data := f.String("data", "", "`folder` of the data (default: PERDURE_DATA, or perdure-data)")
	yes := f.Bool("yes", false, "set the clock back; without it nothing is changed")
	asJSON := f.Bool("json", false, "print JSON, with all runs")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	if len(words) == 1 && words[0] != "reset" || *yes && len(words) == 0 {
		f.Usage()
		return errUsage
	}
	dir := first(*data, os.Getenv("PERDURE_DATA"), settings.DefaultData)
	report, err := compareClocks(ctx, dir, *yes)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, report)
	}
	return report.print(stdout, dir)
}

// compareClocks compares the clock of a stopped server's data with this machine's. With reset it
// sets the store's clock back if it is ahead.
func compareClocks(ctx context.Context, dir string, reset bool) (r *clockReport, err error) {
	path := filepath.Join(dir, "perdure.db")
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("there is no data in %s: %w", dir, err)
	}
	s, err := store.Open(store.Options{Path: path, AnyClock: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r = &clockReport{Store: s.StoredClock(), Now: s.Now(), Ended: []clockEnded{}}
	if r.ahead = max(0, r.Store.Sub(r.Now)); r.ahead < store.ClockSlack {
		r.ahead = 0
	}
	r.Ahead = r.ahead.Round(time.Second).String()
	if r.ahead == 0 {
		return r, nil
	}
	err = s.Audit(ctx, func(v *store.View) error {
		return v.Runs.EndedAfter(r.Now, func(run *perdure.Run) error {
			e := clockEnded{Tenant: run.Tenant, RunID: run.ID, Kind: run.Kind, State: run.State,
				FinishedAt: run.FinishedAt}
			if run.Failure != nil {
				e.Code = run.Failure.Code
			}
			r.Ended = append(r.Ended, e)
			return nil
		})
	})
	if err != nil || !reset {
		return r, err
	}
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		return nil, err
	}
	r.Moved, err = e.ResetClock(ctx, r.Now, r.ahead)
	r.Reset = err == nil
	return r, err
}

func (r *clockReport) print(w io.Writer, dir string) error {
	if r.ahead == 0 {
		_, err := fmt.Fprintf(w,
			"The store's clock is not ahead of this machine's, %s: there is nothing to set back.\n", r.Now)
		return err
	}
	fmt.Fprintf(w, "the store's last instant  %s\nthis machine's clock      %s\nahead by                  %s\n\n",
		r.Store, r.Now, r.Ahead)
	fmt.Fprintf(w, "%d runs have ended after now, by the store's clock", len(r.Ended))
	if len(r.Ended) > clockShown {
		fmt.Fprintf(w, "; the first %d (--json prints all)", clockShown)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range r.Ended[:min(len(r.Ended), clockShown)] {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", e.RunID, printable(e.Kind), e.State, printable(string(e.Code)),
			e.FinishedAt)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !r.Reset {
		_, err := fmt.Fprintf(w,
			"\nNothing was changed. If this machine's clock is right, \"perdure clock reset --yes --data %s\" "+
				"sets the "+
				"store's clock back to it.\n", dir)
		return err
	}
	_, err := fmt.Fprintf(w,
		"\nThe store's clock was set back by %s. Times of %d live runs were moved back with it. The server can be "+
			"started.\n", r.Ahead, r.Moved)
	return err
}

// printable removes characters that are not printable.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, text)
}
