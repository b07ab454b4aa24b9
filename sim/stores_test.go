package sim

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// An account is the result of a seed on one store.
type account struct {
	report *Report
	trace  []string
	rows   []string // all rows of the store at the end
}

// simulate runs a seed on a store.
func simulate(t *testing.T, seed uint64, url string) account {
	t.Helper()
	var a account
	var trace bytes.Buffer
	var err error
	anew := seed%4 == 0 // in one of four seeds runs go on anew
	opt := Options{URL: url, Even: true, Anew: anew, Trace: &trace}
	opt.End = func(v *store.View) (err error) {
		a.rows, err = storetest.Dump(v, "")
		return err
	}
	a.report, err = Run(seed, opt)
	if err != nil {
		t.Fatal(err)
	}
	a.trace = strings.Split(trace.String(), "\n")
	if v := a.report.Violation; v != nil {
		t.Errorf("seed %d breaks %s\n\n%s", seed, v, strings.Join(a.report.Tail, "\n"))
	}
	return a
}

// differ describes the first difference between two lists, with the lines before it.
func differ(what string, x, y []string) string {
	for i := range max(len(x), len(y)) {
		line := func(list []string) string {
			if i < len(list) {
				return list[i]
			}
			return "(nothing more)"
		}
		if line(x) != line(y) {
			return fmt.Sprintf("%s, from line %d on, after\n%s\non SQLite\n%s\non PostgreSQL\n%s", what, i+1,
				strings.Join(x[max(0, i-5):i], "\n"), line(x), line(y))
		}
	}
	return ""
}

// sideBySide is the number of seeds at the same time. On PostgreSQL they mostly wait for the disk.
const sideBySide = 4

// The same seed has the same result on both stores. Every batch has the same answers, and at the
// end every row of every table is the same in all its columns.
func TestBothStoresGiveTheSameTrace(t *testing.T) {
	// One in twenty of the requested seeds.
	n, until := int(number(t, "PERDURE_SIM_SEEDS", 0)+19)/20, time.Now().Add(24*time.Hour)
	if n == 0 {
		n, until = most, time.Now().Add(15*time.Second)
	}
	seeds := seedsFrom(number(t, "PERDURE_SIM_BASE", base), n)
	total := make(Counts)
	next, ran, steps, rows := 0, 0, 0, 0
	var mu sync.Mutex
	var group sync.WaitGroup
	for range sideBySide {
		group.Go(func() {
			for {
				mu.Lock()
				if next == len(seeds) || (next >= sideBySide && time.Now().After(until)) {
					mu.Unlock()
					return
				}
				seed := seeds[next]
				next++
				mu.Unlock()
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					x, y := simulate(t, seed, ""), simulate(t, seed, storetest.Postgres(t))
					if d := differ("the traces differ", x.trace, y.trace); d != "" {
						t.Errorf("%s\n\nreplay: go test ./sim -run 'BothStores/seed_%d$'", d, seed)
					} else if d := differ("the rows differ", x.rows, y.rows); d != "" {
						t.Errorf("%s\n\nreplay: go test ./sim -run 'BothStores/seed_%d$'", d, seed)
					}
					mu.Lock()
					defer mu.Unlock()
					ran++
					steps += x.report.Steps
					rows += len(x.rows)
					total.Add(x.report.Counts)
				})
			}
		})
	}
	group.Wait()
	t.Logf("%d seeds: %d steps, %d rows, %d faults\n%s", ran, steps, rows, total.Faults(), total)
}
