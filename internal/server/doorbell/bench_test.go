package doorbell_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// media opens two connected nodes, by medium.
var media = map[string]func(testing.TB) (a, b doorbell.Bell){
	"local": func(testing.TB) (a, b doorbell.Bell) {
		l := &doorbell.Local{}
		return l, l
	},
	"nats": func(t testing.TB) (a, b doorbell.Bell) {
		opt := doorbell.Options{URL: natstest.Start(t, natstest.Options{}).URL()}
		return node(t, opt), node(t, opt)
	},
	"postgres": func(t testing.TB) (a, b doorbell.Bell) {
		opt := doorbell.Options{URL: pgtest.New(t)}
		return node(t, opt), node(t, opt)
	},
}

// BenchmarkRing measures Ring for runs without a local listener.
func BenchmarkRing(b *testing.B) {
	topics := make([]doorbell.Topic, 4096)
	for i := range topics {
		topics[i] = doorbell.Run("tenant", fmt.Sprint(i))
	}
	for name, open := range media {
		b.Run(name, func(b *testing.B) {
			x, y := open(b)
			hears(b, x, y)
			hears(b, y, x)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.Ring(topics[i%len(topics)])
				i++
			}
		})
	}
}

// BenchmarkRingQueue measures Ring for runs of a few queues without listeners.
func BenchmarkRingQueue(b *testing.B) {
	var l doorbell.Local
	topics := []doorbell.Topic{doorbell.Queue("tenant", "default").Of("job"),
		doorbell.Queue("tenant", "mail").Of("job")}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l.Ring(topics[i%len(topics)])
		i++
	}
}

// BenchmarkWake measures the time from a ring on one node to the wake-up on another, with little
// load.
func BenchmarkWake(b *testing.B) {
	for name, open := range media {
		b.Run(name, func(b *testing.B) {
			x, y := open(b)
			hears(b, x, y)
			hears(b, y, x)
			var took []time.Duration
			for b.Loop() {
				c, stop := y.Listen(doorbell.Run("t", "r"))
				time.Sleep(2 * time.Millisecond)
				begin := time.Now()
				x.Ring(doorbell.Run("t", "r"))
				<-c
				took = append(took, time.Since(begin))
				stop()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}
