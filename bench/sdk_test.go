package bench

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// BenchmarkLife measures callers who start a run and wait for its result, through the SDK. Server,
// callers and worker are in this process, so the allocations are those of all three.
func BenchmarkLife(b *testing.B) {
	for _, wire := range []string{"process", "http"} {
		b.Run(wire, func(b *testing.B) {
			srv, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { srv.Close() })
			url, opt := "http://perdure", client.Options{Transport: srv.Transport()}
			if wire == "http" {
				hs := httptest.NewServer(srv.Handler())
				b.Cleanup(hs.Close)
				url, opt = hs.URL, client.Options{}
			}
			c := client.New(url, srv.Key(), opt)
			w := worker.New(c, worker.Options{Slots: 256})
			worker.Handle(w, "job", func(_ context.Context, in map[string]string) (string, error) {
				return in["host"], nil
			})
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- w.Run(ctx) }()
			b.Cleanup(func() {
				stop()
				<-ended
			})
			parallel(b, "lives", func(int) error {
				run, deferred, err := c.Run(ctx, perdure.Submission{Kind: "job", Input: input}, time.Minute)
				if err == nil && (deferred || string(run.Result) != `"cube"`) {
					err = fmt.Errorf("run %s is %s with the result %s, want completed with \"cube\"", run.RunID,
						run.State, run.Result)
				}
				return err
			})
		})
	}
}
