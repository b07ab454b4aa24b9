package sim

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// digestOf hashes the whole history of a seed: its trace, with every answer, and in the end every
// row of every table. The rows have all lines of all logs, and all columns of all runs.
func digestOf(seed uint64) (string, error) {
	var trace bytes.Buffer
	var rows []string
	r, err := Run(seed, Options{Trace: &trace, End: func(v *store.View) (err error) {
		rows, err = storetest.Dump(v, "")
		return err
	}})
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(trace.Bytes())
	for _, row := range rows {
		io.WriteString(h, row+"\n")
	}
	return fmt.Sprintf("seed %d: %d steps, %d runs, %d rows, sha256 %x", seed, r.Steps, r.Runs, len(rows),
		h.Sum(nil)), nil
}

// withRestore is a seed whose store is restored from a backup.
const withRestore = 12

// TestDigests compares two runs of each seed. With PERDURE_SIM_DIGESTS it runs PERDURE_SIM_SEEDS
// seeds once instead, and writes their digests into that file. Two versions of the program whose
// files are equal have the same histories.
func TestDigests(t *testing.T) {
	path := os.Getenv("PERDURE_SIM_DIGESTS")
	n := 2
	if path != "" {
		n = int(number(t, "PERDURE_SIM_SEEDS", 100))
	}
	seeds := seedsFrom(number(t, "PERDURE_SIM_BASE", base), n)
	if path == "" {
		seeds = append(seeds, withRestore)
	}
	digests := make([]string, len(seeds))
	next := make(chan int)
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := range next {
				var err error
				if digests[i], err = digestOf(seeds[i]); err != nil {
					t.Errorf("seed %d: %v", seeds[i], err)
				}
				if path != "" || err != nil {
					continue
				}
				if again, err := digestOf(seeds[i]); err != nil || again != digests[i] {
					t.Errorf("%s\nand again\n%s (error %v)", digests[i], again, err)
				}
			}
		})
	}
	for i := range seeds {
		next <- i
	}
	close(next)
	group.Wait()
	if path == "" {
		return
	}
	var out bytes.Buffer
	for _, d := range digests {
		fmt.Fprintln(&out, d)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
