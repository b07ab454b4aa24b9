package agenttest

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// A mutex that is held while its holder waits stops the clock of a bubble: synctest takes a goroutine that
// waits for a mutex for one that is about to go on. An agent that holds one over a step or a wait therefore
// never ends. watchClock finds that from outside of the bubble, where time goes on.

// stuckAfter is how long, in real time, the goroutines of a bubble may all wait without the clock moving.
var stuckAfter = 5 * time.Second

// watchClock ends the process with an explanation if a goroutine of a bubble waits for a mutex, and all
// others wait too, for stuckAfter. The returned function ends the watch.
func watchClock(test string, handlers *runningHandlers) (stop func()) {
	done := make(chan struct{})
	go func() {
		before := ""
		for {
			select {
			case <-done:
				return
			case <-time.After(stuckAfter):
			}
			now := waitsForMutex()
			if now != "" && now == before {
				fmt.Fprintf(os.Stderr, "agenttest: %s: the clock has stopped: a goroutine waits for a mutex whose "+
					"holder waits for a step or for time. Release a mutex before a step and before a wait. "+
					"These functions have not returned: %s\n\n%s\n", test, handlers, now)
				os.Exit(1)
			}
			before = now
		}
	}()
	return func() { close(done) }
}

// goroutineHead is the first line of a goroutine in a stack trace: its number, its state, for how long,
// and its bubble.
var goroutineHead = regexp.MustCompile(`^goroutine (\d+) \[([^\]]*)\]:`)

// waitsForMutex returns the stacks of the goroutines of bubbles that wait for a mutex. It returns nothing
// if there are none, or if another goroutine of the same bubble is not waiting.
func waitsForMutex() string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	type bubble struct {
		stuck []string
		busy  bool
	}
	bubbles := make(map[string]*bubble)
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		m := goroutineHead.FindStringSubmatch(stack)
		if m == nil {
			continue
		}
		_, name, in := strings.Cut(m[2], "synctest bubble ")
		if !in {
			continue
		}
		name, _, _ = strings.Cut(name, ",")
		b := bubbles[name]
		if b == nil {
			b = new(bubble)
			bubbles[name] = b
		}
		doing, _, _ := strings.Cut(m[2], ",")
		doing, _, _ = strings.Cut(doing, " (")
		switch {
		case strings.HasPrefix(doing, "sync.Mutex") || strings.HasPrefix(doing, "sync.RWMutex"):
			// The minutes that it has waited would make one stack two.
			b.stuck = append(b.stuck, fmt.Sprintf("goroutine %s, %s\n%s", m[1], doing, stack[len(m[0]):]))
		case doing == "running" || doing == "runnable" || doing == "syscall" || doing == "waiting":
			b.busy = true
		}
	}
	for _, b := range bubbles {
		if len(b.stuck) > 0 && !b.busy {
			return strings.Join(b.stuck, "\n\n")
		}
	}
	return ""
}
