package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/wire/timer"
)

const (
	starts     = 10 // the most that are measured
	whatFirst  = "first start to accepted run"
	whatAgain  = "start again to accepted run"
	whatMemory = "memory, idle"
	whatBinary = "binary"
)

// measureStart starts the program on new data, and again on the same, and measures its memory and
// size.
func measureStart(ctx context.Context, b *Bench, p *place, _ string) ([]Figure, error) {
	var fresh, again samples
	begin := time.Now()
	for i := 0; i < starts && (i < 2 || time.Since(begin) < b.Duration); i++ {
		b.phase("start %d", i+1)
		if err := b.startTwice(ctx, p, &fresh, &again); err != nil {
			return nil, err
		}
	}
	b.phase("idling for %s", b.Settle)
	t, err := startBare(ctx, p, "node")
	if err != nil {
		return nil, err
	}
	timer.Sleep(ctx, b.Settle)
	memory, err := residentMemory(t.server.Cmd.Process.Pid)
	if err := errors.Join(err, t.close()); err != nil {
		return nil, err
	}
	program, err := os.Stat(p.program)
	if err != nil {
		return nil, err
	}
	return []Figure{fresh.latencies(whatFirst, closedLoops), again.latencies(whatAgain, closedLoops),
		{What: whatMemory, Value: float64(memory) / 1e6, Unit: unitMegabytes},
		{What: whatBinary, Value: float64(program.Size()) / 1e6, Unit: unitMegabytes}}, nil
}

// startTwice starts a server in a new place, and a second time in the same.
func (b *Bench) startTwice(ctx context.Context, p *place, fresh, again *samples) (err error) {
	q, err := b.newPlace(ctx, p.template())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.remove(context.WithoutCancel(ctx))) }()
	for _, s := range []*samples{fresh, again} {
		begin := time.Now()
		t, err := startBare(ctx, q, "node")
		if err != nil {
			return err
		}
		_, err = t.submit(ctx, benchRun)
		s.add(time.Since(begin))
		b.did(1)
		if err := errors.Join(err, t.close()); err != nil {
			return err
		}
	}
	return nil
}

// residentMemory returns the resident memory of a process.
func residentMemory(pid int) (bytes int64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, err := fmt.Sscanf(rest, "%d kB", &bytes)
			return bytes * 1024, err
		}
	}
	return 0, errors.New("/proc does not say how much memory the process has")
}
