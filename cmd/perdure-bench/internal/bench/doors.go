package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/timer"
	"github.com/perdure/perdure/worker"
)

// This file compares the doors with the API that they call. The callers are the same, and take turns within one
// server: what else the machine does meanwhile falls on all of them. A ratio is the median of those of the turns.

const (
	// doorTurn is the part of the duration for which there is a turn, and doorAlone is how much of a turn has one
	// caller alone.
	doorTurn  = 2 * time.Second
	doorAlone = 0.3
	// doorStreams are the most streams that are held open at each door.
	doorStreams = 1000
)

// doorWays are the ways to start a run and wait for its result. The first is the API, beside which the others are.
var doorWays = []struct {
	name string
	path string
	body string
	done string // is in the answer of a run that has completed
	// follow is the path of the stream of a run, or empty for none.
	follow func(run string) string
}{
	{"API", "/api/v1/runs", `{"kind":"bench","input":{"messages":[]},"wait":"60s"}`, `"result":{"n":1}`,
		func(run string) string { return "/api/v1/runs/" + run + "/stream" }},
	{"LangGraph", "/doors/langgraph/runs/wait", `{"assistant_id":"bench","input":{"messages":[]}}`, `"n":1`,
		func(run string) string { return "/doors/langgraph/runs/" + run + "/stream" }},
	{"OpenAI", "/doors/openai/v1/responses", `{"model":"bench","input":"hello"}`, `"status":"completed"`, nil},
}

// overAPI and ofAPI name the figures of a door beside the API.
func overAPI(door string) string  { return door + ", alone, p50 over the API's" }
func ofAPI(door string) string    { return door + ", calls of the API's" }
func streamOf(way string) string  { return "memory of a stream, " + way }
func aloneAt(door string) string  { return door + ", alone" }
func doorFlags(p *place) []string { return append(p.flags, "--doors", "langgraph,openai") }

// measureDoors measures callers who wait for results at the API and at each door, and streams that are open there.
func measureDoors(ctx context.Context, b *Bench, p *place, _ string) ([]Figure, error) {
	p.flags = doorFlags(p)
	f, err := b.doorCalls(ctx, p)
	if err != nil {
		return nil, err
	}
	next, err := b.newPlace(ctx, p.template())
	if err != nil {
		return nil, err
	}
	next.flags, next.profiles = p.flags, p.profiles
	streams, err := b.doorStreams(ctx, next)
	return append(f, streams...), errors.Join(err, next.remove(context.WithoutCancel(ctx)))
}

func (b *Bench) doorCalls(ctx context.Context, p *place) (f []Figure, err error) {
	a, err := p.agents(ctx, targetHTTP, func(w *worker.Worker) {
		worker.Handle(w, kind, func(context.Context, any) (map[string]int, error) {
			return map[string]int{"n": 1}, nil
		})
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	t := a.server.(*httpTarget)
	turns, atOnce := max(1, int(b.Duration/doorTurn)), min(b.Callers, agentsAtOnce)
	span := b.Duration / time.Duration(turns*len(doorWays))
	rates, medians := make([][]float64, len(doorWays)), make([][]float64, len(doorWays))
	many, alone := make([]samples, len(doorWays)), make([]samples, len(doorWays))
	for turn := range turns {
		for n := range doorWays {
			i := (turn + n) % len(doorWays)
			b.phase("%s, turn %d", doorWays[i].name, turn+1)
			var one samples
			first := time.Duration(float64(span) * doorAlone)
			if _, err := b.callDoor(a.ctx, t, i, 1, first, &one, &alone[i]); err != nil {
				return nil, err
			}
			rate, err := b.callDoor(a.ctx, t, i, atOnce, span-first, &many[i])
			if err != nil {
				return nil, err
			}
			rates[i], medians[i] = append(rates[i], rate), append(medians[i], one.spread().P50)
		}
	}
	ratios := func(of [][]float64, i int) float64 {
		out := make([]float64, turns)
		for turn := range out {
			out[turn] = of[i][turn] / of[0][turn]
		}
		return middle(out)
	}
	for i, way := range doorWays {
		f = append(f, Figure{What: way.name, Loop: closedLoops, Count: many[i].count(), Value: middle(rates[i]),
			Unit: unitRate, Latency: many[i].spread()}, alone[i].latencies(aloneAt(way.name), closedLoops))
		if i > 0 {
			f = append(f, Figure{What: ofAPI(way.name), Count: turns, Value: ratios(rates, i), Unit: unitTimes},
				Figure{What: overAPI(way.name), Count: turns, Value: ratios(medians, i), Unit: unitTimes})
		}
	}
	return f, nil
}

// callDoor has callers start runs in one way, each after the other, and returns how many a second had a result.
func (b *Bench) callDoor(
	ctx context.Context, t *httpTarget, way, callers int, span time.Duration, into ...*samples,
) (float64, error) {
	var calls atomic.Int64
	begin := time.Now()
	err := parallel(callers, func(int) error {
		for calls.Load() < int64(callers) || time.Since(begin) < span {
			at := time.Now()
			text, err := t.post(ctx, doorWays[way].path, doorWays[way].body)
			if err != nil {
				return err
			}
			if !bytes.Contains(text, []byte(doorWays[way].done)) {
				return fmt.Errorf("%s answers %.300s, want %s", doorWays[way].name, text, doorWays[way].done)
			}
			for _, s := range into {
				s.add(time.Since(at))
			}
			calls.Add(1)
			b.did(1)
		}
		return nil
	})
	return float64(calls.Load()) / time.Since(begin).Seconds(), err
}

// post makes a call and returns the answer.
func (t *httpTarget) post(ctx context.Context, path, body string) ([]byte, error) {
	res, err := t.open(ctx, "POST", path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// open makes a call and returns the answer without having read it.
func (t *httpTarget) open(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+t.key)
	req.Header.Set("Content-Type", "application/json")
	if method == "POST" && strings.HasPrefix(path, api.Prefix) { // as the SDK does, and others' clients do not
		req.Header.Set("Idempotency-Key", rand.Text())
	}
	res, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		res.Body.Close()
		return nil, fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, text)
	}
	return res, nil
}

// doorStreams measures the memory of streams that follow runs at the API and at the doors, each with a run of its own.
func (b *Bench) doorStreams(ctx context.Context, p *place) (f []Figure, err error) {
	n := min(b.Streams, doorStreams)
	runs, err := p.hold(ctx, b, n)
	if err != nil {
		return nil, err
	}
	for _, way := range doorWays {
		if way.follow == nil {
			continue
		}
		figure, err := b.doorMemory(ctx, p, runs, way.name, way.follow)
		if err != nil {
			return nil, err
		}
		f = append(f, figure)
	}
	return f, nil
}

func (b *Bench) doorMemory(
	ctx context.Context, p *place, runs []heldRun, name string, follow func(string) string,
) (f Figure, err error) {
	t, err := openServer(ctx, p, "node")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	pid := t.server.Cmd.Process.Pid
	before, err := residentMemory(pid)
	if err != nil {
		return f, err
	}
	b.phase("%d streams, %s", len(runs), name)
	streaming, stop := context.WithCancel(ctx)
	defer stop()
	for i := range runs {
		res, err := t.open(streaming, "GET", follow(runs[i].id), nil)
		if err != nil {
			return f, err
		}
		defer res.Body.Close()
		b.did(1)
	}
	timer.Sleep(ctx, b.Settle)
	after, err := residentMemory(pid)
	err = errors.Join(err, p.snapshot(ctx, t))
	return Figure{What: streamOf(name), Count: len(runs), Value: float64(after-before) / 1e3 / float64(len(runs)),
		Unit: unitKilobytes}, err
}
