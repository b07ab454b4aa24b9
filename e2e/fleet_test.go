package e2e

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/natstest"
	"github.com/perdure/perdure/internal/pgtest"
)

func TestKillingServersOfAFleet(t *testing.T) {
	t.Parallel()
	kills := int(number("PERDURE_KILLS", 6))
	for _, x := range []struct {
		name string
		bell func(*testing.T) []string
	}{
		{"NATS", func(t *testing.T) []string {
			return []string{"--doorbell", natstest.Start(t, natstest.Options{}).URL()}
		}},
		{"LISTEN and NOTIFY", func(*testing.T) []string { return nil }},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := newFleet(t, 3, pgtest.New(t), append(x.bell(t), leases...)...)
			l := f.load(8, 6)
			for range kills {
				n := f.nodes[rand.IntN(len(f.nodes))]
				time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
				n.kill(syscall.SIGKILL)
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				n.start()
			}
			l.enough(10*kills, 5*kills)
			l.finish()
			p50 := quantile(l.wakes, 0.5)
			t.Logf("%d kills; acknowledged: %d submits, %d results; the end of a run is known at another node after %s (p50), %s (p99), %s (max)",
				kills, len(l.submitted), len(l.completed), p50, quantile(l.wakes, 0.99), quantile(l.wakes, 1))
			if p50 > 300*time.Millisecond { // without a ring it would be found by looking, once in two seconds
				t.Errorf("who waits at another node is not woken: p50 %s", p50)
			}
		})
	}
}
