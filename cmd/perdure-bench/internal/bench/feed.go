package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/timer"
)

// The scenario feed measures the WebSocket of a dashboard: many sockets that show the same page of
// runs while these change, and the lists beside it.
//
// Most of the sockets only read and discard bytes, so that the bench leaves the processors to the
// server. A few decode what they get and measure.

const (
	feedSockets  = 200
	feedDecoding = 4   // sockets that decode
	feedRate     = 500 // changes a second
	feedRuns     = 200 // runs of the page
	listCalls    = 20  // calls of each list

	whatSocketMemory = "memory of a socket"
	whatWithout      = "cpu without sockets"
	whatSockets      = "cpu of the sockets"
	whatSocketsIdle  = "cpu of idle sockets"
	whatToSocket     = "change to socket"
)

// feedWatches are the watches of a page: its list and the counts above it.
var feedWatches = []string{
	fmt.Sprintf(`{"type":"watch","id":"list","of":"runs","limit":%d,"events":true}`, feedRuns),
	`{"type":"watch","id":"counts","of":"counts"}`,
}

// feedLists are the lists that are called, with their parameters.
var feedLists = []struct{ name, path string }{
	{"list", "/runs?limit=50"},
	{"list, running", "/runs?limit=50&status=running"},
	{"list, failed", "/runs?limit=50&status=failed,timeout"},
	{"list, completed", "/runs?limit=50&status=completed"},
	{"list, a kind", "/runs?limit=50&kind=" + kind},
	{"list, a rare kind", "/runs?limit=50&kind=rare"},
	{"list, a queue", "/runs?limit=50&queue=default"},
	{"list, metadata", "/runs?limit=50&metadata.team=none"},
	{"list, a time", "/runs?limit=50&created_before=2999-01-01T00:00:00Z&created_after=" +
		url.QueryEscape(time.Now().Add(-24*time.Hour).UTC().Format(time.RFC3339))},
	{"search, an id", "/runs?limit=50&id_part=0000aaaa"},
	{"search, a prefix", "/runs?limit=50&kind_prefix=" + kind[:2]},
	{"search, a value", "/runs?limit=50&metadata_value=none"},
	{"search, a worker", "/runs?limit=50&worker_id=none"},
	{"search, a code", "/runs?limit=50&error_code=none"},
	{"search, holds", "/runs?limit=50&held=true"},
	{"search, deadlines", "/runs?limit=50&deadline_before=2999-01-01T00:00:00Z"},
	{"attention", "/attention"},
	{"stats of a kind", "/kinds/" + kind + "/stats"},
	{"counts", "/runs/counts"},
	{"history", "/history?since=24h"},
}

func measureFeed(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	if err := b.grow(ctx, p); err != nil {
		return nil, err
	}
	runs, err := p.hold(ctx, b, min(feedRuns, b.Live))
	if err != nil {
		return nil, err
	}
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	lists, err := b.measureLists(ctx, t)
	if err != nil {
		return nil, err
	}
	rate := b.rateOr(feedRate)
	b.phase("%g changes a second, without sockets", rate)
	w := startWatch(t)
	first, err := b.tickAll(ctx, t, runs, rate, 0)
	if err != nil {
		return nil, err
	}
	without := percentOf(w, t)
	sockets := min(feedSockets, b.Streams)
	b.phase("opening %d sockets", sockets)
	pid := t.server.Cmd.Process.Pid
	before, err := residentMemory(pid)
	if err != nil {
		return nil, err
	}
	page, err := t.openSockets(ctx, sockets)
	if err != nil {
		return nil, err
	}
	defer page.close()
	b.phase("idling for %s", b.Settle)
	timer.Sleep(ctx, b.Settle)
	w = startWatch(t)
	timer.Sleep(ctx, b.Duration)
	idle := percentOf(w, t)
	after, err := residentMemory(pid)
	if err != nil {
		return nil, err
	}
	b.phase("%g changes a second, to %d sockets", rate, sockets)
	page.reset()
	w = startWatch(t)
	due, err := b.tickAll(ctx, t, runs, rate, int64(len(first)))
	if err != nil {
		return nil, err
	}
	with := percentOf(w, t)
	seen, err := page.await(ctx, due)
	if err != nil {
		return nil, err
	}
	f = []Figure{
		seen.latencies(whatToSocket, openLoops),
		{What: whatWithout, Count: len(due), Value: without, Unit: unitPercent},
		{What: whatSockets, Count: sockets, Value: with - without, Unit: unitPercent},
		{What: whatSocketsIdle, Count: sockets, Value: idle, Unit: unitPercent},
		{What: whatSocketMemory, Count: sockets, Value: float64(after-before) / 1e3 / float64(sockets),
			Unit: unitKilobytes},
	}
	return append(f, lists...), nil
}

// percentOf returns the CPU time of a target since the start of a watch, in percent of a core.
func percentOf(w stopwatch, t cpuMeter) float64 {
	return 100 * (t.cpu() - w.cpu).Seconds() / time.Since(w.begin).Seconds()
}

// measureLists calls each list, one call after the other.
func (b *Bench) measureLists(ctx context.Context, t *httpTarget) (f []Figure, err error) {
	b.phase("calling lists")
	for _, l := range feedLists {
		var s samples
		for range listCalls {
			began := time.Now()
			var out json.RawMessage
			if err := t.call(ctx, "GET", l.path, nil, &out); err != nil {
				return nil, err
			}
			s.add(time.Since(began))
			b.did(1)
			if l.name == "counts" {
				timer.Sleep(ctx, time.Millisecond)
			}
		}
		f = append(f, s.latencies(l.name, closedLoops))
	}
	return f, nil
}

// A feedPage is the sockets that show one page.
type feedPage struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	raw  []net.Conn

	mu sync.Mutex
	// arrived has for each event when each of the decoding sockets got it.
	arrived map[int64][]int64
	failed  error
}

// openSockets opens sockets, each with the watches of a page, and waits for their first messages.
func (t *httpTarget) openSockets(ctx context.Context, n int) (*feedPage, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &feedPage{stop: stop, arrived: make(map[int64][]int64)}
	decoding := min(feedDecoding, n)
	for i := range n {
		var err error
		if i < decoding {
			err = p.decode(ctx, t)
		} else {
			err = p.discard(t)
		}
		if err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

// decode opens a socket that notes when events arrive.
func (p *feedPage) decode(ctx context.Context, t *httpTarget) error {
	conn, _, err := websocket.Dial(ctx, t.url+api.Prefix+"/ws?watch=none", &websocket.DialOptions{
		HTTPHeader:      http.Header{"Authorization": {"Bearer " + t.key}},
		CompressionMode: websocket.CompressionNoContextTakeover})
	if err != nil {
		return err
	}
	conn.SetReadLimit(64 << 20)
	for _, m := range feedWatches {
		if err := conn.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
			return err
		}
	}
	for range feedWatches { // a snapshot and counts
		if _, _, err := conn.Read(ctx); err != nil {
			return err
		}
	}
	p.wg.Go(func() {
		defer conn.CloseNow()
		for {
			_, b, err := conn.Read(ctx)
			if err != nil {
				if ctx.Err() == nil {
					p.fail(err)
				}
				return
			}
			p.note(b, monotonic())
		}
	})
	return nil
}

// note records the events of a message.
func (p *feedPage) note(b []byte, at int64) {
	type change struct{ Events []api.Event }
	var m struct {
		change
		Changes []change
	}
	if err := json.Unmarshal(b, &m); err != nil {
		p.fail(err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range append(m.Changes, m.change) {
		for _, e := range c.Events {
			if n, err := strconv.ParseInt(string(e.Data), 10, 64); err == nil && e.Type == benchTick {
				p.arrived[n] = append(p.arrived[n], at)
			}
		}
	}
}

func (p *feedPage) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
	}
}

// discard opens a socket that takes compressed messages and throws them away. It does not answer
// pings: it must be closed before the server gives it up.
func (p *feedPage) discard(t *httpTarget) error {
	u, err := url.Parse(t.url)
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return err
	}
	p.raw = append(p.raw, conn)
	_, err = fmt.Fprintf(conn, "GET %s/ws?watch=none HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
		api.Prefix, u.Host, t.key)
	if err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("a socket was refused: %s", res.Status)
	}
	for _, m := range feedWatches {
		if _, err := conn.Write(maskedFrame(m)); err != nil {
			return err
		}
	}
	p.wg.Go(func() { _, _ = io.Copy(io.Discard, in) }) // ends when the connection is closed
	return nil
}

// maskedFrame returns a text message of less than 126 bytes as a client sends it. Its mask is zero.
func maskedFrame(text string) []byte {
	const final, textFrame, masked = 0x80, 0x01, 0x80
	text = strings.TrimSpace(text)
	return append([]byte{final | textFrame, masked | byte(len(text)), 0, 0, 0, 0}, text...)
}

// reset forgets the events that have arrived.
func (p *feedPage) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.arrived)
}

// await waits until every event has arrived, and returns the times from when each was due.
func (p *feedPage) await(ctx context.Context, due map[int64]int64) (*samples, error) {
	for limit := time.Now().Add(caughtUp); ; {
		p.mu.Lock()
		missing, err := 0, p.failed
		for n := range due {
			if len(p.arrived[n]) == 0 {
				missing++
			}
		}
		p.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case missing == 0:
			var s samples
			for n, at := range due {
				for _, got := range p.arrived[n] {
					s.add(time.Duration(got - at))
				}
			}
			return &s, nil
		case time.Now().After(limit) || ctx.Err() != nil:
			return nil, fmt.Errorf("%d of %d events did not arrive", missing, len(due))
		}
		timer.Sleep(ctx, 10*time.Millisecond)
	}
}

// close ends all sockets.
func (p *feedPage) close() {
	p.stop()
	for _, c := range p.raw {
		c.Close()
	}
	p.wg.Wait()
}
