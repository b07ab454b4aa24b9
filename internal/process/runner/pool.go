package runner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// A Pool executes runs that were submitted elsewhere, each in a process-runner of its own.
type Pool struct {
	// Job is what all process-runners are told.
	Job Job
	// Slots is how many commands run at once.
	Slots int
	// Secrets names where secrets are: a file of lines NAME=value, or env:PREFIX for variables of the
	// environment. It is read again for each run.
	Secrets string
	Log     *slog.Logger

	freed chan struct{}
}

// MaxSlots bounds the slots of a pool.
const MaxSlots = 1000

// Validate checks a pool.
func (p *Pool) Validate() error {
	switch {
	case p.Slots < 1 || p.Slots > MaxSlots:
		return fmt.Errorf("slots: %d does not lie between 1 and %d", p.Slots, MaxSlots)
	case len(p.Job.Queues) == 0:
		return errors.New("queue: there is none")
	case slices.Contains(p.Job.Queues, LocalQueue):
		return fmt.Errorf("queue: %s has runs that have a runner already", LocalQueue)
	}
	if p.Job.Trust != "" {
		if _, err := perdure.ParseTrust([]byte(p.Job.Trust)); err != nil {
			return fmt.Errorf("trust: %w", err)
		}
	}
	_, err := LoadSecrets(p.Secrets)
	return err
}

// Times of a pool.
const (
	slotPause = time.Second // until slots are looked at that a former pool has left
	poolPause = 30 * time.Second
)

// Run executes runs until the context ends. Jobs that have begun go on.
func (p *Pool) Run(ctx context.Context) error {
	p.freed = make(chan struct{}, 1)
	go p.announce(ctx)
	for failed := 0; ctx.Err() == nil; {
		slot, err := p.freeSlot()
		if err != nil {
			return err
		}
		if slot == nil {
			select {
			case <-p.freed:
			case <-time.After(slotPause):
			case <-ctx.Done():
			}
			continue
		}
		err = p.next(ctx, slot)
		slot.Close()
		if failed++; err == nil {
			failed = 0
			continue
		}
		if ctx.Err() == nil {
			p.Log.Warn("runner failed", "error", err)
			timer.Sleep(ctx, min(poolPause, 2*backoff(failed)))
		}
	}
	return nil
}

// announce tells the registry of kinds what a run of a pool is, so that one that is submitted by its kind
// alone is a process with one attempt. While the server is away it tries again.
func (p *Pool) announce(ctx context.Context) {
	c, err := p.Job.Server.connect()
	for n := 1; err == nil && ctx.Err() == nil; n++ {
		_, err := session.Of(c).AnnounceKind(ctx, Kind, api.AnnounceKind{Build: announcedBuild,
			KindDef: perdure.KindDef{
				Description: "A command, executed by a pool: {\"command\": [\"program\", \"argument\"]}",
				Class:       perdure.Process, Retry: &perdure.KindRetry{MaxAttempts: 1}}})
		switch {
		case err == nil, ctx.Err() != nil:
			return
		case !client.Transient(err) || client.CodeOf(err) == perdure.CodeQuota:
			p.Log.Warn("the kind could not be announced; say --class process --max-attempts 1 with each run",
				"kind", Kind, "error", err)
			return
		}
		timer.Sleep(ctx, backoff(n))
	}
}

// announcedBuild is the build under which a pool announces its kind. It is that of the definition, so that
// pools of several releases announce the same.
const announcedBuild = "pool-1"

// freeSlot returns the lock of a free slot, or nil.
func (p *Pool) freeSlot() (*os.File, error) {
	folder := filepath.Join(p.Job.Workspace, "slots")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	for n := range p.Slots {
		f, err := os.OpenFile(filepath.Join(folder, strconv.Itoa(n+1)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the slot %d: %w", n+1, err)
		}
	}
	return nil, nil
}

// next starts a process-runner, and waits until it has a run.
func (p *Pool) next(ctx context.Context, slot *os.File) error {
	job := p.Job
	var err error
	if job.Secrets, err = LoadSecrets(p.Secrets); err != nil {
		return err
	}
	proc, err := Start(slot)
	if err != nil {
		return err
	}
	leased, over := make(chan struct{}), make(chan error, 1)
	go func() {
		defer kick(p.freed)
		defer proc.Wait()
		defer proc.Close()
		over <- p.watch(proc, leased)
	}()
	if err := proc.Give(&job); err != nil {
		proc.Leave()
		return err
	}
	select {
	case <-leased:
		return nil
	case err := <-over:
		return err
	case <-ctx.Done():
		proc.Leave() // without a run it ends now
	}
	select {
	case <-leased:
	case <-over:
	case <-time.After(callTimeout):
	}
	return nil
}

// watch logs what a process-runner reports, until it ends.
func (p *Pool) watch(proc *Process, leased chan struct{}) error {
	has := false
	for {
		r, err := proc.Next()
		if err != nil {
			if has {
				return nil
			}
			return errors.New("it ended before it had a run")
		}
		log := p.Log.With("run", r.RunID)
		switch r.Event {
		case Leased:
			has = true
			close(leased)
		case Started:
			log.Info("command started")
		case Ended:
			log.Info("command ended", "exit_code", r.ExitCode)
		case Lost:
			log.Warn("run lost", "error", r.Message)
		case Failed:
			if !has {
				return errors.New(r.Message)
			}
			log.Warn("command failed", "code", string(r.Code), "error", r.Message)
		}
	}
}

// maxSecrets bounds a file of secrets.
const maxSecrets = 1 << 20

// LoadSecrets reads secrets from a file of lines NAME=value, or from the environment with env:PREFIX.
// An empty source has none.
func LoadSecrets(source string) (map[string]string, error) {
	if source == "" {
		return nil, nil
	}
	out := make(map[string]string)
	if prefix, ok := strings.CutPrefix(source, "env:"); ok {
		if prefix == "" {
			return nil, errors.New("secrets: env: needs a prefix, such as env:SECRET_")
		}
		for _, v := range os.Environ() {
			name, value, _ := strings.Cut(v, "=")
			if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
				out[rest] = value
			}
		}
		return out, nil
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("secrets: %s can be read by others: chmod 600 %[1]s", source)
	}
	lines := bufio.NewScanner(io.LimitReader(f, maxSecrets))
	lines.Buffer(nil, maxSecrets)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("secrets: line %d of %s is not NAME=value", n, source)
		}
		out[name] = strings.TrimSpace(value)
	}
	return out, lines.Err()
}
