package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	notify "os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/wrongclock"
	"github.com/perdure/perdure/worker"
)

// This file is the worker's program: the test binary, started with workerVar. It records its calls.

// workerVar has the specification of a worker process.
const workerVar = "PERDURE_CHAOS_WORKER"

// A workerSpec is what a worker process is told.
type workerSpec struct {
	ID, By  string // its name for the server, and in the history
	URLs    string
	Key     string
	History string // its file
	Sink    string // where effects happen
	// Clock is how wrong its wall clock is. SIGUSR1 turns that to the other side.
	Clock time.Duration
}

// input is the input of a run.
type input struct {
	Key string `json:"key"`
	// Takes is how long the work takes. Loops is how many signals an agent waits for.
	Takes time.Duration `json:"takes,omitempty"`
	Loops int           `json:"loops,omitempty"`
}

// runWorker is the program.
func runWorker(text string) error {
	var spec workerSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	if spec.Clock != 0 {
		if err := wrongclock.Shift(spec.Clock); err != nil {
			return err
		}
		jump := make(chan os.Signal, 1)
		notify.Notify(jump, syscall.SIGUSR1)
		go func() {
			for range jump {
				spec.Clock = -spec.Clock
				_ = wrongclock.Shift(spec.Clock) // the first call has worked
			}
		}()
	}
	file, err := os.OpenFile(spec.History, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	p := &program{workerSpec: spec, rec: &recorder{file: file}}
	wire := &http.Transport{MaxIdleConnsPerHost: 16, ResponseHeaderTimeout: 10 * time.Second}
	c := client.New(spec.URLs, spec.Key, client.Options{Timeout: 3 * time.Second,
		Transport: &wiretap{next: wire, by: spec.By, rec: p.rec}})
	w := worker.New(c, worker.Options{ID: spec.ID, Slots: 12, AgentSlots: 12, PollWait: 2 * time.Second,
		HeartbeatEvery: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	p.register(w)
	return w.Run(context.Background())
}

// A program has the handlers of a worker.
type program struct {
	workerSpec
	rec *recorder
}

func (p *program) register(w *worker.Worker) {
	worker.Handle(w, "job", p.job)
	worker.Handle(w, "once", p.job)
	worker.Handle(w, "flaky", func(ctx context.Context, in input) (string, error) {
		if info, _ := worker.Info(ctx); info.Attempt == 1 {
			return "", errors.New("the first attempt fails")
		}
		return p.job(ctx, in)
	})
	worker.Handle(w, "stubborn", func(ctx context.Context, in input) (string, error) {
		return p.job(context.WithoutCancel(ctx), in)
	})
	worker.Agent(w, "trip", p.trip)
	worker.Agent(w, "loop", p.loop)
}

// job works for a while.
func (p *program) job(ctx context.Context, in input) (string, error) {
	info, _ := worker.Info(ctx)
	p.rec.add(Op{Call: execute, By: p.By, Begin: monotonic(), End: monotonic(), Answer: ok, Run: string(info.RunID),
		Epoch: info.Epoch, Attempt: info.Attempt, Once: info.Kind == "once"})
	timer := time.NewTimer(in.Takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return in.Key, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// trip is an agent with steps that have an effect, a child, a timer and a signal.
func (p *program) trip(ctx *agent.Context, in input) (string, error) {
	for n := range 3 {
		if _, err := p.step(ctx, fmt.Sprint("book ", n), in.Takes); err != nil {
			return "", err
		}
		if n == 0 {
			if _, err := agent.Spawn[string](ctx, "job", input{Key: in.Key, Takes: in.Takes}).Join(ctx); err != nil {
				return "", err
			}
		}
	}
	if err := agent.Sleep(ctx, 50*time.Millisecond); err != nil {
		return "", err
	}
	word, err := agent.Signal[string](ctx, "word", time.Hour)
	return in.Key + " " + word, err
}

// loop is an agent that waits for signals, one after the other, and returns what they said.
func (p *program) loop(ctx *agent.Context, in input) (string, error) {
	var words []string
	for range in.Loops {
		word, err := agent.Signal[string](ctx, "word", time.Hour)
		if err != nil {
			return "", err
		}
		words = append(words, word)
	}
	return strings.Join(words, " "), nil
}

// step executes a step with an effect.
func (p *program) step(ctx *agent.Context, name string, takes time.Duration) (string, error) {
	return agent.Step(ctx, name, func(ctx context.Context) (string, error) {
		info, _ := worker.Info(ctx)
		key := agent.IdempotencyKey(ctx)
		_, step, _ := strings.Cut(key, "/")
		b, err := json.Marshal(Op{Call: effect, By: p.By, Begin: monotonic(), Run: string(info.RunID),
			Epoch: info.Epoch, Attempt: info.Attempt, Key: key, State: step})
		if err != nil {
			return "", err
		}
		res, err := http.Post(p.Sink, "application/json", bytes.NewReader(b))
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		receipt, err := io.ReadAll(res.Body)
		time.Sleep(takes / 4) // the effect has happened, and is not recorded yet
		return string(receipt), err
	})
}

// A wiretap records the calls of the worker protocol.
type wiretap struct {
	next http.RoundTripper
	by   string
	rec  *recorder
}

func (w *wiretap) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	asked := protocol[name].asked
	if !strings.Contains(r.URL.Path, "/workers/") || asked == nil {
		return w.next.RoundTrip(r)
	}
	ops := asked(body)
	for i := range ops {
		ops[i].By, ops[i].At = w.by, r.URL.Host
	}
	sent := monotonic()
	done := w.rec.begin(ops...)
	res, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(answer))
	if name == "poll" {
		w.granted(sent, r.URL.Host, res.StatusCode, answer)
		return res, nil
	}
	said := make([]Op, len(ops))
	copy(said, ops)
	for i := range said {
		said[i].Answer, said[i].Code = unknown, fmt.Sprint(res.StatusCode)
	}
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusConflict {
		protocol[name].answered(answer, said)
	}
	done(said...)
	return res, nil
}

// granted records the grants of a poll.
func (w *wiretap) granted(sent int64, host string, status int, answer []byte) {
	var polled api.Polled
	if status != http.StatusOK || json.Unmarshal(answer, &polled) != nil {
		return
	}
	now := monotonic()
	for _, g := range polled.Runs {
		w.rec.add(Op{Call: grant, By: w.by, Begin: sent, End: now, Answer: ok, Run: string(g.RunID), Epoch: g.Epoch,
			Attempt: g.Attempt, At: host})
	}
}

// protocol has the calls that are recorded: what they ask, and how the answers are read.
var protocol = map[string]struct {
	asked    func(body []byte) []Op
	answered func(answer []byte, ops []Op)
}{
	"poll":      {asked: func([]byte) []Op { return nil }},
	"start":     {leases(begin), results},
	"release":   {leases(release), results},
	"heartbeat": {leases(beat), lost},
	"commit":    {commits, results},
}

// leases reads the leases of a call.
func leases(c call) func([]byte) []Op {
	return func(body []byte) (ops []Op) {
		var in api.StartRuns
		if json.Unmarshal(body, &in) == nil {
			for _, l := range in.Runs {
				ops = append(ops, Op{Call: c, Run: string(l.RunID), Epoch: l.Epoch})
			}
		}
		return ops
	}
}

// results reads one result for each operation.
func results(answer []byte, ops []Op) {
	var out struct {
		Results []struct {
			OK    bool
			State perdure.State
			Error *api.Refusal
		}
		Code perdure.Code // a single entry that is refused is a problem
	}
	if json.Unmarshal(answer, &out) != nil {
		return
	}
	if len(ops) == 1 && len(out.Results) == 0 && out.Code != "" {
		ops[0].Answer, ops[0].Code = refused, string(out.Code)
	}
	for i := range min(len(ops), len(out.Results)) {
		ops[i].Answer, ops[i].Code = ok, ""
		if e := out.Results[i].Error; e != nil {
			ops[i].Answer, ops[i].Code = refused, string(e.Code)
		}
	}
}

// lost reads the answer to a heartbeat: the leases that are lost, and those that were not extended, because a
// connection that is cut still holds their rows locked.
func lost(answer []byte, ops []Op) {
	var out api.Beaten
	if json.Unmarshal(answer, &out) != nil {
		return
	}
	for i := range ops {
		ops[i].Answer, ops[i].Code = ok, ""
		for _, l := range slices.Concat(out.Lost, out.Later) {
			if string(l.RunID) == ops[i].Run && l.Epoch == ops[i].Epoch && l.Error != nil {
				ops[i].Answer, ops[i].Code = refused, string(l.Error.Code)
			}
		}
	}
}

// commits reads the commits of a call.
func commits(body []byte) (ops []Op) {
	var in api.Commits
	if json.Unmarshal(body, &in) != nil {
		return nil
	}
	for _, c := range in.Commits {
		o := Op{Call: commit, Run: string(c.RunID), Epoch: c.Epoch, Key: c.ID}
		for _, e := range c.Journal {
			o.Keys = append(o.Keys, e.Key)
		}
		for _, e := range c.Children {
			o.Children = append(o.Children, e.Key)
		}
		if c.Outcome != nil {
			o.State, o.Value = string(c.Outcome.Type), string(c.Outcome.Result)
		}
		ops = append(ops, o)
	}
	return ops
}
