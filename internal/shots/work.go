package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// jobs are the runs that work starts: a kind, its summary at the end, and how often it fails.
var jobs = []struct {
	kind, team, summary string
	fails               float64
}{
	{"summarize", "research", "12 pages in 4 sentences", 0.01},
	{"embed", "research", "2 048 vectors stored", 0.005},
	{"translate", "docs", "en to de, 1 840 words", 0.03},
	{"disk-report", "platform", "61 % of the disk is used", 0},
	{"invoice", "billing", "sent to 3 recipients", 0.06},
}

// end ends a run as its kind does.
func (f *filler) end(ctx context.Context, worker string, r run, n int) error {
	job := jobs[slices.Index(kinds, r.Kind)]
	if err := f.beat(ctx, worker, r, "llm_thinking", nil); err != nil {
		return err
	}
	outcome := obj{"type": "complete", "result": obj{"n": n}, "summary": job.summary}
	if rand.Float64() < job.fails {
		outcome = obj{"type": "fail", "error": obj{"code": "model_unavailable",
			"message": "503 of the model's server"}}
	}
	return f.commit(ctx, worker, r, obj{"outcome": outcome})
}

// kinds are those of jobs, in their order.
var kinds = []string{"summarize", "embed", "translate", "disk-report", "invoice"}

// work starts runs and ends them for a while, in waves, so that the plots of the health page have
// something to show. A small part fails, is cancelled, or is tried again.
func (f *filler) work(ctx context.Context, long time.Duration) error {
	begin := time.Now()
	for n := 0; time.Since(begin) < long; n++ {
		job := jobs[rand.IntN(len(jobs))]
		r, err := f.start(ctx, job.kind, obj{"input": obj{"page": n}, "max_attempts": 1 + rand.IntN(3),
			"metadata": obj{"team": job.team}})
		if err != nil {
			return err
		}
		if rand.Float64() < 0.01 {
			if err := f.call(ctx, "POST", "/api/v1/runs/"+r.RunID+"/cancel", obj{"reason": "no longer needed"},
				nil); err != nil {
				return err
			}
			continue
		}
		// A worker is not always free at once.
		time.Sleep(time.Duration(rand.ExpFloat64()*40) * time.Millisecond)
		worker := fmt.Sprintf("worker-%d", 1+rand.IntN(3))
		granted, err := f.poll(ctx, worker, obj{"queues": []string{"default"}, "kinds": kinds, "slots": 4,
			"start": true,
			"build": "v1.4.2"})
		if err != nil {
			return err
		}
		for _, r := range granted {
			if err := f.end(ctx, worker, r, n); err != nil {
				return err
			}
		}
		// Between one and six runs a second, up and down within ten minutes.
		wave := 1 + math.Sin(2*math.Pi*time.Since(begin).Minutes()/10)
		time.Sleep(time.Duration(float64(time.Second) / (1 + 2.5*wave)))
	}
	return nil
}
