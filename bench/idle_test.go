package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/wire/session"
)

// BenchmarkIdleWorkers measures a server at which a thousand workers wait for runs, and nothing
// happens, for as many seconds as the benchmark has turns. The figure is the CPU time of the process,
// which has the waiting clients as well: 2 % of a core are much.
func BenchmarkIdleWorkers(b *testing.B) {
	const workers = 1000
	srv, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	l := httptest.NewServer(srv.Handler())
	wire := &http.Transport{MaxIdleConnsPerHost: workers}
	c := client.New(l.URL, srv.Key(), client.Options{Transport: wire})
	ctx, stop := context.WithCancel(context.Background())
	var polls sync.WaitGroup
	for i := range workers {
		polls.Go(func() {
			for ctx.Err() == nil {
				session.Of(c).Poll(ctx, fmt.Sprint("w", i), api.Poll{Slots: 1, Wait: perdure.Duration(time.Minute)})
			}
		})
	}
	b.Cleanup(func() {
		stop()
		polls.Wait()
		wire.CloseIdleConnections()
		srv.Drain()
		l.Close()
		srv.Close()
	})
	for there := 0; there < workers; time.Sleep(50 * time.Millisecond) {
		list, err := admin.New(c).Workers(ctx)
		if err != nil {
			b.Fatal(err)
		}
		there = len(list)
	}
	before := used(b)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(100*(used(b)-before).Seconds()/b.Elapsed().Seconds(), "%core")
}

// used gives the CPU time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
