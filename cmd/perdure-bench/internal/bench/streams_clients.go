package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/cmd/internal/child"
	"github.com/perdure/perdure/internal/wire/timer"
)

// MostStreams returns how many streams a process may have. A server allows itself as many: three
// quarters of its file descriptors, with some in reserve.
func MostStreams() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > 1<<30 {
		return 1 << 30
	}
	return max(1, int(min(r.Cur/4*3, r.Cur-min(r.Cur, 512))))
}

// dialsAtOnce bounds the connections that clients open at the same time, unless Over spreads them.
const dialsAtOnce = 64

// A clientRequest is a request of the bench to the process of the clients, as one JSON object a
// line. Each is answered with a clientReply.
type clientRequest struct {
	Do  string `json:"do"`
	URL string `json:"url,omitempty"`
	Key string `json:"key,omitempty"`
	// Runs are followed by the streams in turn: stream i follows run i modulo their number.
	Runs []string `json:"runs,omitempty"`
	// Streams is how many there have to be. Streams that were cut reconnect with their cursor.
	Streams int `json:"streams,omitempty"`
	// Over spreads the connections evenly over a time.
	Over time.Duration `json:"over,omitempty"`
	// Upto has for each run the line that every stream has to have.
	Upto  []int64       `json:"upto,omitempty"`
	Limit time.Duration `json:"limit,omitempty"`
	// Note records when each event arrives, and not only the last.
	Note bool `json:"note,omitempty"`
	// Count is the number of webhooks that have to arrive.
	Count int `json:"count,omitempty"`
}

const (
	askAttach = "attach" // answered when every stream is attached
	askAwait  = "await"  // answered when every stream has the lines of Upto
	askSink   = "sink"   // answered with the sink's address, when Count webhooks have arrived
)

// A clientReply is what clients saw. Its instants are of the monotonic clock, which all processes
// share.
type clientReply struct {
	Error    string    `json:"error,omitempty"`
	Due      []int64   `json:"due,omitempty"` // when each stream was to connect
	At       []int64   `json:"at,omitempty"`  // when each stream had its last event
	Arrivals []arrival `json:"noted,omitempty"`
	Lost     int64     `json:"lost,omitempty"`    // lines that were missing
	Doubled  int64     `json:"doubled,omitempty"` // lines that came twice
	URL      string    `json:"url,omitempty"`     // of the sink
	Hits     []hit     `json:"hits,omitempty"`
}

// An arrival is when an event arrived.
type arrival struct {
	N   int64         `json:"n"` // the number in its data
	At  int64         `json:"at"`
	Age time.Duration `json:"age"` // since the instant of the event
}

// since returns the time since an instant of the store, which is on the same machine.
func since(at perdure.Instant) time.Duration { return perdure.At(time.Now()).Sub(at) }

// ClientsCommand is the first argument with which the bench starts this program as its clients.
const ClientsCommand = "bench-clients"

// Clients is the process of the clients. It serves requests until its standard input ends.
func Clients(ctx context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) != 0 {
		return errors.New("this is for the bench alone")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &clients{ctx: ctx}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(stdout)
	for {
		var a clientRequest
		if err := in.Decode(&a); err == io.EOF || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		reply, err := c.do(&a)
		if err != nil {
			reply.Error = err.Error()
		}
		if err := out.Encode(reply); err != nil {
			return err
		}
	}
}

// clients has the streams.
type clients struct {
	ctx     context.Context
	url     string // of the server
	streams []*stream
	live    atomic.Int64 // streams that are connected or connecting
	open    atomic.Int64 // streams that are attached
	lost    atomic.Int64
	doubled atomic.Int64
	note    atomic.Bool
	sink    *sink

	mu    sync.Mutex
	noted []arrival
	err   error // the first error
}

// A stream is one connection with its cursor.
type stream struct {
	due    int64
	cursor atomic.Int64
	at     atomic.Int64 // when the last event arrived
	live   atomic.Bool
}

func (c *clients) do(a *clientRequest) (reply clientReply, err error) {
	switch a.Do {
	case askAttach:
		return reply, c.attach(a)
	case askAwait:
		return c.await(a)
	case askSink:
		return c.listen(a)
	}
	return reply, fmt.Errorf("nobody knows how to %q", a.Do)
}

func (c *clients) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

func (c *clients) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *clients) attach(a *clientRequest) error {
	c.note.Store(a.Note)
	if c.url != a.URL { // another server: wait until the streams of the one before are cut
		if err := await(c.ctx, "the streams of a server that is gone are cut", time.Minute, func() (bool, error) {
			return c.live.Load() == 0, c.failed()
		}); err != nil {
			return err
		}
		c.url = a.URL
	}
	for len(c.streams) < a.Streams {
		c.streams = append(c.streams, &stream{})
	}
	begin := time.Now()
	zero := monotonic()
	doors := make(chan struct{}, dialsAtOnce)
	for i, s := range c.streams {
		if s.live.Load() {
			continue
		}
		s.live.Store(true)
		after := a.Over * time.Duration(i) / time.Duration(len(c.streams))
		s.due = zero + int64(after)
		timer.Sleep(c.ctx, time.Until(begin.Add(after)))
		if a.Over == 0 {
			doors <- struct{}{}
		}
		if c.failed() != nil || c.ctx.Err() != nil {
			break
		}
		c.live.Add(1)
		go func() {
			defer c.live.Add(-1)
			entered := sync.OnceFunc(func() {
				if a.Over == 0 {
					<-doors
				}
			})
			defer entered()
			c.follow(a, a.Runs[i%len(a.Runs)], s, entered)
		}()
	}
	return await(c.ctx, "all streams are attached", time.Minute, func() (bool, error) {
		return int(c.open.Load()) == len(c.streams), c.failed()
	})
}

// follow reads a stream until it is cut, and checks the number of every event.
func (c *clients) follow(a *clientRequest, run string, s *stream, entered func()) {
	here := false
	err := readStream(c.ctx, a.URL, a.Key, run, s.cursor.Load(), func(f *frame) error {
		if bytes.HasPrefix(f.event, []byte("stream:")) {
			switch {
			case bytes.Equal(f.event, attached):
				here = true
				c.open.Add(1)
				entered()
			case bytes.Equal(f.event, gapFrame):
				return fmt.Errorf("there is a gap: %s", f.data)
			}
			return nil
		}
		now, cursor := monotonic(), s.cursor.Load()
		switch {
		case f.id <= cursor:
			c.doubled.Add(1)
			return nil
		case f.id > cursor+1:
			c.lost.Add(f.id - cursor - 1)
		}
		if c.note.Load() && string(f.event) == benchTick {
			c.took(f.data, now)
		}
		s.at.Store(now)
		s.cursor.Store(f.id) // last, so that a reader of the cursor sees the rest
		return nil
	})
	s.live.Store(false)
	if here {
		c.open.Add(-1)
	} else if err != nil { // a stream that was attached may be cut; otherwise it was refused
		c.fail(err)
	}
}

// took records the arrival of an event of the bench.
func (c *clients) took(data []byte, now int64) {
	var e struct {
		At perdure.Instant `json:"at"`
		N  int64           `json:"data"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		c.fail(fmt.Errorf("an event that nobody has written: %s", data))
		return
	}
	age := since(e.At)
	c.mu.Lock()
	c.noted = append(c.noted, arrival{e.N, now, age})
	c.mu.Unlock()
}

func (c *clients) await(a *clientRequest) (reply clientReply, err error) {
	behind := 0
	err = await(c.ctx, "every stream has every event", a.Limit, func() (bool, error) {
		behind = 0
		cut := 0
		for i, s := range c.streams {
			if s.cursor.Load() < a.Upto[i%len(a.Upto)] {
				behind++
				if !s.live.Load() {
					cut++
				}
			}
		}
		if cut > 0 {
			return false, errors.Join(fmt.Errorf("%d streams were cut", cut), c.failed())
		}
		return behind == 0, c.failed()
	})
	if err != nil {
		return reply, fmt.Errorf("%d of %d streams are behind: %w", behind, len(c.streams), err)
	}
	for _, s := range c.streams {
		reply.Due = append(reply.Due, s.due)
		reply.At = append(reply.At, s.at.Load())
	}
	c.mu.Lock()
	reply.Arrivals, c.noted = c.noted, nil
	c.mu.Unlock()
	reply.Lost, reply.Doubled = c.lost.Load(), c.doubled.Load()
	return reply, nil
}

// A clientProcess is the bench's side of the process of the clients.
type clientProcess struct {
	*child.Process
	in *json.Encoder
}

func startClients(ctx context.Context) (*clientProcess, error) {
	p, err := child.Start(ctx, "clients", nil, ClientsCommand)
	if err != nil {
		return nil, err
	}
	p.Out.Buffer(nil, 1<<30) // an answer may be long
	return &clientProcess{Process: p, in: json.NewEncoder(p.In)}, nil
}

// ask sends a request and waits for the reply. Missing or repeated lines are an error.
func (c *clientProcess) ask(ctx context.Context, a clientRequest) (reply clientReply, err error) {
	if err := c.in.Encode(a); err != nil {
		return reply, errors.Join(err, c.Gone(ctx))
	}
	if !c.Out.Scan() {
		return reply, c.Gone(ctx)
	}
	if err := json.Unmarshal(c.Out.Bytes(), &reply); err != nil {
		return reply, err
	}
	switch {
	case reply.Error != "":
		return reply, errors.New(reply.Error)
	case reply.Lost+reply.Doubled > 0:
		return reply, fmt.Errorf("streams left out %d lines and told %d twice", reply.Lost, reply.Doubled)
	}
	return reply, nil
}

// close ends the process of the clients.
func (c *clientProcess) close() error {
	if c.Dead {
		return nil
	}
	c.Dead = true
	c.In.Close()
	if err := c.Cmd.Wait(); err != nil {
		return fmt.Errorf("the clients ended badly: %w %s", err, c.Errors.String())
	}
	return nil
}
