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
	"github.com/perdure/perdure/internal/child"
)

// MostStreams is how many streams a process may have here: as many as a server allows itself, three quarters of its
// file descriptors with some in reserve.
func MostStreams() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > 1<<30 {
		return 1 << 30
	}
	return max(1, int(min(r.Cur/4*3, r.Cur-min(r.Cur, 512))))
}

// dialsAtOnce bounds the connections that clients are about to open, when nobody says how quickly they come.
const dialsAtOnce = 64

// A crowdAsk is what the bench asks its clients, one JSON object a line. They answer each with a crowdTold.
type crowdAsk struct {
	Do      string        `json:"do"`
	URL     string        `json:"url,omitempty"`
	Key     string        `json:"key,omitempty"`
	Runs    []string      `json:"runs,omitempty"`    // stream i follows run i modulo their number
	Streams int           `json:"streams,omitempty"` // how many there are to be; those that are cut come back with their cursor
	Over    time.Duration `json:"over,omitempty"`    // spread evenly over that time
	Upto    []int64       `json:"upto,omitempty"`    // for each run, the line that every stream has to have
	Limit   time.Duration `json:"limit,omitempty"`
	Note    bool          `json:"note,omitempty"`  // when each event arrives, not the last alone
	Count   int           `json:"count,omitempty"` // of webhooks that have to come
}

const (
	askAttach = "attach" // answered when every stream has said that it is attached
	askAwait  = "await"  // answered when every stream has what it has to
	askSink   = "sink"   // answered with its address, when so many webhooks came
)

// A crowdTold is what clients saw. Instants are those of the clock that all processes share.
type crowdTold struct {
	Error   string  `json:"error,omitempty"`
	Due     []int64 `json:"due,omitempty"` // when each stream was to come
	At      []int64 `json:"at,omitempty"`  // when each stream had its last event
	Noted   []noted `json:"noted,omitempty"`
	Lost    int64   `json:"lost,omitempty"`    // lines that were left out
	Doubled int64   `json:"doubled,omitempty"` // lines that came again
	URL     string  `json:"url,omitempty"`     // of the sink
	Hits    []hit   `json:"hits,omitempty"`
}

// noted is when an event came.
type noted struct {
	N   int64         `json:"n"` // the number that it has as its data
	At  int64         `json:"at"`
	Age time.Duration `json:"age"` // since the instant that the event itself bears
}

// since is how old something is that bears an instant of the store, which is on this machine.
func since(at perdure.Instant) time.Duration { return perdure.At(time.Now()).Sub(at) }

// Clients is the process of the clients. It does what it is asked for until nobody asks any more.
func Clients(ctx context.Context, args []string, stdout, _ io.Writer) error {
	if len(args) != 0 {
		return errors.New("this is for perdure bench alone")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &clients{ctx: ctx}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(stdout)
	for {
		var a crowdAsk
		if err := in.Decode(&a); err == io.EOF || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		told, err := c.do(&a)
		if err != nil {
			told.Error = err.Error()
		}
		if err := out.Encode(told); err != nil {
			return err
		}
	}
}

// clients are streams that are read.
type clients struct {
	ctx     context.Context
	url     string // of the server
	streams []*benchStream
	live    atomic.Int64 // that are read, attached or about to be
	open    atomic.Int64 // that are attached
	lost    atomic.Int64
	doubled atomic.Int64
	note    atomic.Bool
	sink    *sink

	mu    sync.Mutex
	noted []noted
	err   error // the first of all
}

// A benchStream is a stream with its cursor.
type benchStream struct {
	due    int64
	cursor atomic.Int64
	at     atomic.Int64 // when the last event came
	live   atomic.Bool
}

func (c *clients) do(a *crowdAsk) (told crowdTold, err error) {
	switch a.Do {
	case askAttach:
		return told, c.attach(a)
	case askAwait:
		return c.await(a)
	case askSink:
		return c.listen(a)
	}
	return told, fmt.Errorf("nobody knows how to %q", a.Do)
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

func (c *clients) attach(a *crowdAsk) error {
	c.note.Store(a.Note)
	if c.url != a.URL { // another server: those of the one before are on their way out
		if err := await(c.ctx, "the streams of a server that is gone are cut", time.Minute, func() (bool, error) { return c.live.Load() == 0, c.failed() }); err != nil {
			return err
		}
		c.url = a.URL
	}
	for len(c.streams) < a.Streams {
		c.streams = append(c.streams, &benchStream{})
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
		child.Pause(c.ctx, time.Until(begin.Add(after)))
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

// follow reads a stream until it is cut, and holds every event against the one before it.
func (c *clients) follow(a *crowdAsk, run string, s *benchStream, entered func()) {
	here := false
	err := readStream(c.ctx, a.URL, a.Key, run, s.cursor.Load(), func(f *benchFrame) error {
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
		s.cursor.Store(f.id) // last: who sees the cursor sees the rest
		return nil
	})
	s.live.Store(false)
	if here {
		c.open.Add(-1)
	} else if err != nil { // one that was attached may be cut; one that was not was refused
		c.fail(err)
	}
}

// took notes an event of the bench's own.
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
	c.noted = append(c.noted, noted{e.N, now, age})
	c.mu.Unlock()
}

func (c *clients) await(a *crowdAsk) (told crowdTold, err error) {
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
		return told, fmt.Errorf("%d of %d streams are behind: %w", behind, len(c.streams), err)
	}
	for _, s := range c.streams {
		told.Due = append(told.Due, s.due)
		told.At = append(told.At, s.at.Load())
	}
	c.mu.Lock()
	told.Noted, c.noted = c.noted, nil
	c.mu.Unlock()
	told.Lost, told.Doubled = c.lost.Load(), c.doubled.Load()
	return told, nil
}

// A crowd is the bench's side of the clients' process.
type crowd struct {
	*child.Process
	in *json.Encoder
}

func startCrowd(ctx context.Context) (*crowd, error) {
	p, err := child.Start(ctx, "clients", nil, "bench-clients")
	if err != nil {
		return nil, err
	}
	p.Out.Buffer(nil, 1<<30) // an answer may be long
	return &crowd{Process: p, in: json.NewEncoder(p.In)}, nil
}

// ask waits for what the clients tell, who must not have missed anything.
func (c *crowd) ask(ctx context.Context, a crowdAsk) (told crowdTold, err error) {
	if err := c.in.Encode(a); err != nil {
		return told, errors.Join(err, c.Gone(ctx))
	}
	if !c.Out.Scan() {
		return told, c.Gone(ctx)
	}
	if err := json.Unmarshal(c.Out.Bytes(), &told); err != nil {
		return told, err
	}
	switch {
	case told.Error != "":
		return told, errors.New(told.Error)
	case told.Lost+told.Doubled > 0:
		return told, fmt.Errorf("streams left out %d lines and told %d twice", told.Lost, told.Doubled)
	}
	return told, nil
}

// close lets the clients go.
func (c *crowd) close() error {
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
