package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// A place is where Perdure is measured.
type place struct{ name, store, target string }

var places = []place{
	{"SQLite, HTTP", "sqlite", "http"},
	{"PostgreSQL, HTTP", "postgres", "http"},
	{"SQLite, embedded", "sqlite", "process"},
	{"PostgreSQL, embedded", "postgres", "process"},
}

// A figure is a line of the report of "perdure-bench".
type figure struct {
	Scenario string  `json:"scenario"`
	What     string  `json:"what"`
	Value    float64 `json:"value"`
	Latency  *struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"latency_ms"`
}

// perdure runs a scenario of "perdure-bench" in a place.
func (b *bench) perdure(ctx context.Context, scenario string, p place) ([]figure, error) {
	store := p.store
	if store == "postgres" {
		store = b.postgres
	}
	cmd := exec.CommandContext(ctx, b.binary, "--json", "--scenario", scenario, "--target", p.target,
		"--store", store, "--callers", fmt.Sprint(callers), "--backlog", fmt.Sprint(b.backlog),
		"--duration", b.duration.Round(time.Millisecond).String())
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("perdure-bench --scenario %s: %w: %s", scenario, err,
			strings.TrimSpace(complaint.String()))
	}
	var r struct {
		Machine json.RawMessage `json:"machine"`
		Figures []figure        `json:"figures"`
	}
	err = json.Unmarshal(out, &r)
	b.machine = r.Machine
	return r.Figures, err
}
