package embedded_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// The same work on two nodes ends the same way whatever the doorbell does: there, killed again and again, or
// in the hands of somebody who forges, repeats and floods.
func TestNoDoorbellChangesAnOutcome(t *testing.T) {
	t.Parallel()
	want := story(t, "none", nil)
	if !slices.Equal(want[:3], []string{"0 good completed", "1 bad failed", "2 cancelled cancelled"}) {
		t.Fatal(want)
	}
	for name, mischief := range map[string]func(testing.TB, *natstest.Server, <-chan struct{}){
		"NATS": nil,
		"NATS that is killed": func(_ testing.TB, s *natstest.Server, done <-chan struct{}) {
			for open := true; open; {
				s.Restart()
				select {
				case <-done:
					open = false
				case <-time.After(150 * time.Millisecond):
				}
			}
		},
		"NATS that is flooded and forged": flood,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, natstest.Options{})
			var run func(<-chan struct{})
			if mischief != nil {
				run = func(done <-chan struct{}) { mischief(t, s, done) }
			}
			if got := story(t, s.URL(), run); !slices.Equal(got, want) {
				t.Errorf("%s\nwithout a doorbell:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
	t.Run("LISTEN and NOTIFY", func(t *testing.T) {
		t.Parallel()
		if got := story(t, "", nil); !slices.Equal(got, want) {
			t.Errorf("%s\nwithout a doorbell:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// flood repeats what it overhears, out of order and mutilated, a hundred times in a millisecond.
func flood(t testing.TB, s *natstest.Server, done <-chan struct{}) {
	// it may well miss something
	conn, err := nats.Connect(s.URL(), nats.NoEcho(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	heard := make(chan *nats.Msg, 1000)
	if _, err := conn.ChanSubscribe("perdure.>", heard); err != nil {
		t.Error(err)
		return
	}
	var kept []*nats.Msg
	for burst := time.NewTicker(time.Millisecond); ; {
		select {
		case <-done:
			burst.Stop()
			return
		case m := <-heard:
			kept = append(kept, m)
			continue
		case <-burst.C:
		}
		for range min(100, 100*len(kept)) {
			m := kept[rand.N(len(kept))]
			data := slices.Clone(m.Data)
			if len(data) > 0 && rand.N(2) == 0 {
				data[rand.N(len(data))] = byte(rand.N(256))
			}
			if err := conn.Publish(m.Subject, data); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// story has runs submitted, worked on and cancelled on two nodes, and gives what became of each.
func story(t *testing.T, bell string, mischief func(done <-chan struct{})) []string {
	t.Helper()
	opt := embedded.Options{Store: pgtest.New(t), Doorbell: bell}
	nodes := [2]*embedded.Server{open(t, opt), open(t, opt)}
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	if mischief != nil {
		wg.Go(func() { mischief(done) })
	}
	const runs = 24
	ids := make([]string, runs)
	var left atomic.Int64
	left.Store(runs)
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for left.Load() > 0 {
				workOff(t, nodes[i%2], fmt.Sprint("w", i), &left)
			}
		})
	}
	for i := range ids {
		kind := []string{"good", "bad", "cancelled"}[i%3]
		_, run := call(t, nodes[i%2], "POST", "/api/v1/runs", `{"kind":"`+kind+`"}`)
		ids[i] = run["run_id"].(string)
		if kind == "cancelled" {
			call(t, nodes[(i+1)%2], "POST", "/api/v1/runs/"+ids[i]+"/cancel", `{}`)
			left.Add(-1)
		}
	}
	work.Wait()
	out := make([]string, runs)
	for i, id := range ids {
		status, run := call(t, nodes[i%2], "GET", "/api/v1/runs/"+id+"/join?timeout=30s", "")
		if status != 200 {
			t.Fatalf("%d %v", status, run)
		}
		out[i] = fmt.Sprintf("%d %v %v", i, run["kind"], run["state"])
	}
	return out
}

// workOff takes what there is to do, and does it as its kind says.
func workOff(t *testing.T, s *embedded.Server, worker string, left *atomic.Int64) {
	_, polled := call(t, s, "POST", "/api/v1/workers/"+worker+"/poll",
		`{"slots":4,"start":true,"kinds":["good","bad"],"wait":"300ms"}`)
	for _, g := range polled["runs"].([]any) {
		grant := g.(map[string]any)
		outcome := `{"type":"complete","result":1}`
		if grant["kind"] == "bad" {
			outcome = `{"type":"fail","error":{"code":"broken","message":"it broke"},"retryable":false}`
		}
		call(t, s, "POST", "/api/v1/workers/"+worker+"/commit",
			fmt.Sprintf(`{"commits":[{"commit_id":"c","run_id":%q,"epoch":%v,"outcome":%s}]}`, grant["run_id"],
				grant["epoch"], outcome))
		left.Add(-1)
	}
}
