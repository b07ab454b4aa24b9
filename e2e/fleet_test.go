package e2e

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
)

func TestKillsOfServersOfAFleet(t *testing.T) {
	stage.Long(t)
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
				l.more(5 + rand.IntN(40))
				n.kill(syscall.SIGKILL)
				l.more(rand.IntN(15)) // at the other nodes
				n.start()
			}
			l.enough(10*kills, 5*kills)
			l.finish()
			p50 := quantile(l.wakes, 0.5)
			t.Logf("%d kills; acknowledged: %d submits, %d results; the end of a run is known at another node "+
				"after %s "+
				"(p50), %s (p99), %s (max)",
				kills, len(l.submitted), len(l.completed), p50, quantile(l.wakes, 0.99), quantile(l.wakes, 1))
			if p50 > 300*time.Millisecond { // without a ring, polling finds it every two seconds
				t.Errorf("p50 from an end at one node to the waiter at another = %s, want at most 300 ms, by a ring",
					p50)
			}
		})
	}
}
