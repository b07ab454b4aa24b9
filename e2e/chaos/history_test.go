package chaos

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A call is the kind of an operation.
type call string

// The kinds of operations. Clients make the first five, workers the next five. The last three are no calls
// of Perdure: a handler begins, a step has its effect, a follower gets a line of a log.
const (
	submit call = "submit"
	signal call = "signal"
	cancel call = "cancel"
	read   call = "read"
	probe  call = "probe"

	grant   call = "grant"
	begin   call = "begin" // the call start of the worker protocol
	beat    call = "beat"
	commit  call = "commit"
	release call = "release"

	execute call = "execute"
	effect  call = "effect"
	frame   call = "frame"
)

// An answer is how an operation ended.
type answer string

const (
	ok      answer = "ok"
	refused answer = "refused"
	unknown answer = "" // it may or may not have happened
)

// An Op is an operation with its answer. Instants are nanoseconds of the monotonic clock.
type Op struct {
	Call   call   `json:"op"`
	By     string `json:"by"` // a client or a worker process
	Begin  int64  `json:"begin"`
	End    int64  `json:"end,omitempty"` // zero: there was no answer
	Answer answer `json:"answer,omitempty"`
	Code   string `json:"code,omitempty"` // of a refusal, or of an answer that leaves the outcome open

	Run   string `json:"run,omitempty"`
	Epoch int64  `json:"epoch,omitempty"`
	// Key is an idempotency key, a commit_id, the key of an effect, or the name of a follower.
	Key string `json:"key,omitempty"`
	// Value is the input of a submit, the data of a signal, the result of a commit, or the content of a frame.
	Value string `json:"value,omitempty"`
	// State is that of a run that was read, or the type of a commit's outcome.
	State string `json:"state,omitempty"`
	// Keys are the journal keys of a commit. Children are the journal keys of the children that it spawns.
	Keys     []string `json:"keys,omitempty"`
	Children []string `json:"children,omitempty"`
	Attempt  int      `json:"attempt,omitempty"`
	// Once tells that the run has a single attempt.
	Once bool `json:"once,omitempty"`
	// Seq is the number of a line that a follower got.
	Seq int64 `json:"seq,omitempty"`
	// Applied tells that an effect happened, and was no repetition.
	Applied bool `json:"applied,omitempty"`
	// At is the node that was called.
	At string `json:"at,omitempty"`

	// ID connects the two lines of an operation in a file.
	ID int64 `json:"id,omitempty"`
}

// String is one line of a report.
func (o Op) String() string {
	end := "no answer"
	if o.End > 0 {
		end = fmt.Sprintf("%.3f", float64(o.End)/1e9)
	}
	s := fmt.Sprintf("%.3f … %s  %-8s %-7s %s", float64(o.Begin)/1e9, end, o.By, o.Call, o.Answer)
	for _, part := range []struct {
		name  string
		value any
		empty bool
	}{{"code", o.Code, o.Code == ""}, {"run", o.Run, o.Run == ""}, {"epoch", o.Epoch, o.Epoch == 0},
		{"key", o.Key, o.Key == ""}, {"value", o.Value, o.Value == ""}, {"state", o.State, o.State == ""},
		{"keys", o.Keys, len(o.Keys) == 0}, {"attempt", o.Attempt, o.Attempt == 0},
		{"line", o.Seq, o.Seq == 0}, {"applied", o.Applied, !o.Applied}, {"at", o.At, o.At == ""}} {
		if !part.empty {
			s += fmt.Sprintf(" %s=%v", part.name, part.value)
		}
	}
	return s
}

// monotonic is the instant on the machine's monotonic clock, which is the same for all processes.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// A recorder collects operations. With a file, each is written there twice: before the call, and with its
// answer. So a process that is killed leaves a record of what it had asked for.
type recorder struct {
	mu   sync.Mutex
	file *os.File
	last int64
	ops  []Op
}

// begin records that a call is about to be made, and returns the function that records its answers.
func (r *recorder) begin(ops ...Op) func(answered ...Op) {
	now := monotonic()
	r.mu.Lock()
	defer r.mu.Unlock()
	at := len(r.ops)
	for i := range ops {
		r.last++
		ops[i].ID, ops[i].Begin = r.last, now
		r.write(ops[i])
	}
	if r.file == nil {
		r.ops = append(r.ops, ops...)
	}
	return func(answered ...Op) {
		end := monotonic()
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range answered {
			answered[i].ID, answered[i].Begin, answered[i].End = ops[i].ID, now, end
			r.write(answered[i])
			if r.file == nil {
				r.ops[at+i] = answered[i]
			}
		}
	}
}

// add records operations that have happened, with their instants.
func (r *recorder) add(ops ...Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ops {
		r.last++
		ops[i].ID = r.last
		r.write(ops[i])
	}
	if r.file == nil {
		r.ops = append(r.ops, ops...)
	}
}

// write writes a line to the file. The recorder is locked.
func (r *recorder) write(o Op) {
	if r.file == nil {
		return
	}
	b, err := json.Marshal(o)
	if err == nil {
		_, err = r.file.Write(append(b, '\n'))
	}
	if err != nil {
		panic(fmt.Errorf("recording the history: %w", err))
	}
}

// all returns what was recorded so far.
func (r *recorder) all() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Op(nil), r.ops...)
}

// readHistory reads the file of a process. The last line may be cut off by a kill.
func readHistory(path string) ([]Op, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // it was killed before its first call
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ops []Op
	at := make(map[int64]int)
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var o Op
		if json.Unmarshal(s.Bytes(), &o) != nil {
			continue
		}
		if i, known := at[o.ID]; known {
			ops[i] = o
			continue
		}
		at[o.ID] = len(ops)
		ops = append(ops, o)
	}
	return ops, s.Err()
}

// A clocks maps instants of the store, which are those of the wall clock of this machine, to the monotonic
// clock. The wall clock is adjusted while it runs, so it has many samples.
type clocks struct {
	mu      sync.Mutex
	samples []sample
}

type sample struct{ wall, mono int64 } // nanoseconds

// take adds a sample.
func (c *clocks) take() {
	var wall unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME, &wall)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(c.samples, sample{wall.Nano(), monotonic()})
}

// follow takes a sample every second, and calls also, until the channel is closed.
func (c *clocks) follow(stop chan struct{}, also func()) *sync.WaitGroup {
	var done sync.WaitGroup
	c.take()
	done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		defer c.take()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				c.take()
				also()
			}
		}
	})
	return &done
}

// mono maps an instant of the store, in microseconds.
func (c *clocks) mono(at int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := at * 1000
	best := sample{}
	for _, s := range c.samples {
		if best = s; s.wall >= wall {
			break
		}
	}
	return best.mono + wall - best.wall
}

// A span is a time on the monotonic clock.
type span struct{ from, to int64 }

func (s span) length() time.Duration { return time.Duration(s.to - s.from) }

// united sorts spans, and joins those that overlap or touch.
func united(spans []span) (out []span) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for _, s := range spans {
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}
