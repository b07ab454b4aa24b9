package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/worker"
)

const (
	replays      = 5 // the most that are measured
	replayPage   = 1000
	backWithin   = 10 * time.Second // all streams reconnect within this time
	whatByStream = "by stream"
	whatByPoll   = "by polling"
	whatAllBack  = "all streams caught up"
	whatEachBack = "each stream, from when it came back"
	whatMean     = "get meanwhile"
	whatTokens   = "streamed"
	whatText     = "text"
	whatLines    = "log"
	whatStored   = "store"
)

// write adds a number of lines to the log of each run, in this process.
func (p *place) write(ctx context.Context, b *Bench, runs []heldRun, lines int, end bool) (err error) {
	t, err := openProcess(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	const atOnce = 10_000 // lines of a batch
	said := make([]perdure.Emitted, 0, perdure.MaxList)
	for done := 0; done < lines; done += len(said) {
		said = said[:0]
		for i := range min(lines-done, perdure.MaxList) {
			said = append(said, sampleLine(done+i))
		}
		for from := 0; from < len(runs) && ctx.Err() == nil; {
			var ops []kernel.Op
			for ; from < len(runs) && len(ops)*len(said) < atOnce; from++ {
				c := runs[from].says(fmt.Sprint("lines-", done), said...)
				if end && done+len(said) == lines {
					c.Outcome = &perdure.Outcome{Type: perdure.OutcomeComplete, Result: benchResult}
				}
				ops = append(ops, &life.Commit{Tenant: tenant, Worker: workerName, Commit: c})
				runs[from].seq += int64(len(said))
			}
			for _, err := range t.engine.Step(t.store.Now(), ops...) {
				if err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
			b.did(len(ops) * len(said))
		}
	}
	return ctx.Err()
}

// measureReplay measures reading the whole log of an ended run.
func measureReplay(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	runs, err := p.hold(ctx, b, 1)
	if err != nil {
		return nil, err
	}
	b.phase("writing %d lines", b.Lines)
	if err := p.write(ctx, b, runs, b.Lines, true); err != nil {
		return nil, err
	}
	runs[0].seq++ // the line of its end
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for _, how := range []struct {
		what string
		read func(context.Context, *httpTarget, heldRun, func(*frame) error) error
	}{{whatByStream, byStream}, {whatByPoll, byPoll}} {
		b.phase("reading, %s", how.what)
		var s samples
		begin := time.Now()
		for n := 0; n < replays && (n == 0 || time.Since(begin) < b.Duration) && err == nil; n++ {
			var seq int64
			at := time.Now()
			err = how.read(ctx, t, runs[0], func(f *frame) error {
				if seq++; f.id != seq {
					return fmt.Errorf("line %d comes where %d should", f.id, seq)
				}
				b.did(1)
				return nil
			})
			s.add(time.Since(at))
			if err == nil && seq != runs[0].seq {
				err = fmt.Errorf("%d lines of %d were told", seq, runs[0].seq)
			}
		}
		if err != nil {
			return f, fmt.Errorf("%s: %w", how.what, err)
		}
		slowest := s.spread().Max / 1e3
		f = append(f, Figure{What: how.what, Loop: closedLoops, Count: int(runs[0].seq), Seconds: slowest,
			Value: slowest, Unit: unitSeconds})
	}
	return f, nil
}

// byStream reads a log by one stream, to its end.
func byStream(ctx context.Context, t *httpTarget, run heldRun, on func(*frame) error) error {
	return readStream(ctx, t.url, t.key, run.id, 0, func(f *frame) error {
		if bytes.HasPrefix(f.event, []byte("stream:")) {
			return nil
		}
		return on(f)
	})
}

// byPoll reads a log page by page.
func byPoll(ctx context.Context, t *httpTarget, run heldRun, on func(*frame) error) error {
	for after := int64(0); ; {
		var page struct {
			Events []struct {
				Seq  int64           `json:"seq"`
				Type string          `json:"type"`
				Data json.RawMessage `json:"data"`
			} `json:"events"`
			Next  int64 `json:"next_after"`
			Ended bool  `json:"ended"`
		}
		if err := t.call(ctx, "GET", fmt.Sprintf("/runs/%s/events?after=%d&limit=%d", run.id, after, replayPage), nil,
			&page); err != nil {
			return err
		}
		for _, e := range page.Events {
			if err := on(&frame{id: e.Seq, event: []byte(e.Type), data: e.Data}); err != nil {
				return err
			}
		}
		if after = page.Next; page.Ended {
			return nil
		}
		if len(page.Events) == 0 {
			return fmt.Errorf("the log of a run that has ended stops at %d", after)
		}
	}
}

// measureReconnect attaches streams, each to a run of its own, and stops the server. Every run gets
// some more lines. When the server is up again, all streams reconnect.
func measureReconnect(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	runs, err := p.hold(ctx, b, b.Streams)
	if err != nil {
		return nil, err
	}
	c, err := startClients(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	b.phase("attaching %d streams", b.Streams)
	_, err = c.ask(ctx, t.attach(runs, b.Streams))
	if err == nil {
		_, err = c.ask(ctx, upto(runs))
	}
	if err := errors.Join(err, t.close()); err != nil {
		return nil, err
	}
	b.phase("writing %d lines to each of %d runs", b.Behind, len(runs))
	if err := p.write(ctx, b, runs, b.Behind, false); err != nil {
		return nil, err
	}
	if t, err = openServer(ctx, p, "node"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("%d streams come back within %s", b.Streams, backWithin)
	var gets samples
	probing, stop := context.WithCancel(ctx)
	defer stop()
	probed := make(chan error, 1)
	go func() {
		probed <- openLoop(probing, probeRate, allEnded, func(at time.Time) error {
			_, err := t.ended(ctx, runs[gets.count()%len(runs)].id)
			gets.add(time.Since(at))
			return err
		})
	}()
	a := t.attach(runs, b.Streams)
	a.Over = min(backWithin, b.Duration)
	w := startWatch(t)
	var reply clientReply
	if _, err = c.ask(ctx, a); err == nil {
		reply, err = c.ask(ctx, upto(runs))
	}
	cpu := t.cpu() - w.cpu
	stop()
	if perr := <-probed; !errors.Is(perr, context.Canceled) {
		err = errors.Join(err, perr)
	}
	if err != nil {
		return nil, err
	}
	var each samples
	first, last := reply.Due[0], reply.At[0]
	for i, at := range reply.At {
		each.add(time.Duration(at - reply.Due[i]))
		first, last = min(first, reply.Due[i]), max(last, at)
	}
	took := time.Duration(last - first).Seconds()
	return []Figure{{What: whatAllBack, Loop: openLoops, Count: b.Streams, Seconds: took, Value: took,
		Unit: unitSeconds, CPU: float64(cpu.Microseconds()) / float64(b.Streams)},
		each.latencies(whatEachBack, openLoops), gets.latencies(whatMean, openLoops)}, nil
}

// token returns a token of a text. Some contain characters that JSON escapes, or that take several
// bytes.
func token(n int) string {
	if n%50 == 49 {
		return fmt.Sprintf(" „%d”\n", n)
	}
	return fmt.Sprintf(" w%d", n)
}

// measureTokens measures a worker that streams a text token by token, evenly over the duration,
// and reads it again.
func measureTokens(ctx context.Context, b *Bench, p *place, _ string) (f []Figure, err error) {
	before, err := p.size(ctx)
	if err != nil {
		return nil, err
	}
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	b.phase("streaming %d tokens", b.Tokens)
	run, text, took, err := b.stream(ctx, t)
	if err != nil {
		return nil, err
	}
	var lines int
	var again [2]time.Duration
	for i, read := range []func(context.Context, *httpTarget, heldRun, func(*frame) error) error{byStream, byPoll} {
		at := time.Now()
		if lines, err = replayText(ctx, t, run, text, read); err != nil {
			return nil, err
		}
		again[i] = time.Since(at)
	}
	if err := t.close(); err != nil {
		return nil, err
	}
	after, err := p.size(ctx)
	return []Figure{{What: whatTokens, Count: b.Tokens, Seconds: took.Seconds(), Value: took.Seconds(),
		Unit: unitSeconds},
		{What: whatText, Value: float64(len(text)) / 1e6, Unit: unitMegabytes},
		{What: whatLines, Value: float64(lines), Unit: unitLines},
		{What: whatStored, Value: float64(after-before) / 1e6, Unit: unitMegabytes},
		{What: whatByStream, Count: lines, Value: again[0].Seconds(), Unit: unitSeconds},
		{What: whatByPoll, Count: lines, Value: again[1].Seconds(), Unit: unitSeconds}}, err
}

// stream executes a run that streams a text, and returns the text and how long the run took.
func (b *Bench) stream(ctx context.Context, t *httpTarget) (run heldRun, text string, took time.Duration, err error) {
	c := client.New(t.url, t.key, client.Options{})
	defer c.Close()
	var said strings.Builder
	w := worker.New(c, worker.Options{})
	worker.Handle(w, kind, func(ctx context.Context, _ json.RawMessage) (string, error) {
		begin := time.Now()
		for n := range b.Tokens {
			timer.Sleep(ctx, time.Until(begin.Add(b.Duration*time.Duration(n)/time.Duration(b.Tokens))))
			if err := worker.Delta(ctx, token(n)); err != nil {
				return "", err
			}
			said.WriteString(token(n))
			b.did(1)
		}
		return "said", nil
	})
	working, stop := context.WithCancel(ctx)
	defer stop()
	worked := make(chan error, 1)
	go func() { worked <- w.Run(working) }()
	at := time.Now()
	got, _, err := c.Run(ctx, benchRun, b.Duration+lastRuns)
	took = time.Since(at)
	stop()
	if err = errors.Join(err, <-worked); err != nil {
		return run, "", 0, err
	}
	if got.State != perdure.Completed {
		return run, "", 0, fmt.Errorf("the run that streams is %s: %+v", got.State, got.Error)
	}
	return heldRun{grant: grant{id: string(got.RunID)}}, said.String(), took, nil
}

// replayText reads a run's deltas, which have to be equal to the text, and counts the lines of its
// log.
func replayText(ctx context.Context, t *httpTarget, run heldRun, text string,
	read func(context.Context, *httpTarget, heldRun, func(*frame) error) error) (lines int, err error) {
	var got strings.Builder
	err = read(ctx, t, run, func(f *frame) error {
		lines++
		if perdure.LineType(f.event) != perdure.LineDelta {
			return nil
		}
		var whole struct {
			Data json.RawMessage `json:"data"`
		}
		data := f.data
		if bytes.HasPrefix(data, []byte(`{"seq":`)) { // the frame of a stream has the whole event
			if err := json.Unmarshal(data, &whole); err != nil {
				return err
			}
			data = whole.Data
		}
		var delta struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(data, &delta); err != nil {
			return err
		}
		got.WriteString(delta.Text)
		return nil
	})
	if err == nil && got.String() != text {
		err = fmt.Errorf("the text of %d bytes comes back as %d others", len(text), got.Len())
	}
	return lines, err
}

// size returns the size of the database, while no server has it open.
func (p *place) size(ctx context.Context) (bytes int64, err error) {
	s, err := p.open()
	if err != nil {
		return 0, err
	}
	query := "SELECT page_count*page_size FROM pragma_page_count(), pragma_page_size()"
	if p.url != "" {
		query = "SELECT pg_database_size(current_database())"
	}
	err = s.View(ctx, func(v *store.View) error {
		return v.Rows(query, nil, func(scan func(...any) error) error { return scan(&bytes) })
	})
	return bytes, errors.Join(err, s.Close())
}
