package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/tcpline"
)

// The size of a fleet.
const (
	nodeCount   = 3
	workerCount = 3
)

// timing is the policy of a fleet: leases of seconds.
var timing = policy{lease: 2500 * time.Millisecond, gapAfter: 1500 * time.Millisecond, gapSpare: time.Second}

// A fleet is the processes, and the lines between them.
type fleet struct {
	t       *testing.T
	dir     string
	pg      *pgtest.Cluster
	nats    *natstest.Server // nil: the nodes ring by LISTEN and NOTIFY
	nodes   [nodeCount]*process
	workers [workerCount]*process
	addrs   [nodeCount]string
	lines   [nodeCount]map[string]*tcpline.Line // by edge
	key     string
	rng     *rand.Rand

	mu        sync.Mutex
	histories []string // files of worker processes
	wrong     map[string]bool
	healthy   [nodeCount][]span

	effects sync.Map // channels by the begin of a worker's name, which are closed by its next effect
}

// newFleet starts everything but the workers.
func newFleet(t *testing.T, program string, seed uint64, nats bool) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), rng: rand.New(rand.NewPCG(seed, 2)), wrong: make(map[string]bool)}
	var err error
	if f.pg, err = pgtest.Start(pgtest.Options{InMemory: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.pg.Stop(); err != nil {
			t.Error(err)
		}
	})
	if nats {
		f.nats = natstest.Start(t, natstest.Options{})
	}
	store, err := url.Parse(f.pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	direct := store.Host
	for i := range f.nodes {
		f.addrs[i] = freeAddr(t)
		f.lines[i] = map[string]*tcpline.Line{"clients": tcpline.New(t, f.addrs[i]),
			"workers": tcpline.New(t, f.addrs[i]), "PostgreSQL": tcpline.New(t, direct)}
		store.Host = f.lines[i]["PostgreSQL"].Addr()
		args := []string{"serve", "--listen", f.addrs[i], "--data", filepath.Join(f.dir, fmt.Sprint("node", i)),
			"--store", store.String(), "--log-level", "warn"}
		for name, d := range map[string]time.Duration{"lease": timing.lease, "gap_after": timing.gapAfter,
			"gap_spare": timing.gapSpare, "backoff_base": 50 * time.Millisecond, "dispatched_retry": time.Second,
			"dispatched_timeout": 4 * time.Second, "active_reap": time.Minute, "cancel_grace": 5 * time.Second} {
			args = append(args, "--policy", name+"="+d.String())
		}
		if nats {
			f.lines[i]["NATS"] = tcpline.New(t, fmt.Sprintf("127.0.0.1:%d", f.nats.Port()))
			args = append(args, "--doorbell", "nats://"+f.lines[i]["NATS"].Addr())
		}
		log, err := os.Create(f.logOf(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		f.nodes[i] = supervise(t, fmt.Sprint("node ", i), f.logOf(i), func() *exec.Cmd {
			fmt.Fprintln(log, startMark)
			cmd := exec.Command(program, args...)
			cmd.Stdout, cmd.Stderr = log, log
			return cmd
		})
		f.ready(i)
	}
	for i := range f.nodes {
		if b, err := os.ReadFile(filepath.Join(f.dir, fmt.Sprint("node", i), "admin.key")); err == nil {
			f.key = strings.TrimSpace(string(b))
		}
	}
	if f.key == "" {
		t.Fatal("no node has written a key")
	}
	return f
}

func (f *fleet) logOf(i int) string { return filepath.Join(f.dir, fmt.Sprintf("node%d.log", i)) }

// freeAddr finds an address that stays free while its server is away: its port is below those that the system
// gives to outgoing connections.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port was found in 100 tries")
	return ""
}

// ready waits until a node can read and write.
func (f *fleet) ready(i int) {
	f.t.Helper()
	eventually.True(f.t, fmt.Sprintf("node %d is ready", i), func() bool { return f.readyz(i) })
}

var prober = &http.Client{Timeout: time.Second}

func (f *fleet) readyz(i int) bool {
	res, err := prober.Get("http://" + f.addrs[i] + "/readyz")
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// watch notes when each node says that it is ready, until the channel is closed. Two answers that are far
// apart do not count for the time between them: then this process, or the machine, stood still.
func (f *fleet) watch(stop chan struct{}) *sync.WaitGroup {
	const every, apart = 150 * time.Millisecond, 600 * time.Millisecond
	var all sync.WaitGroup
	for i := range f.nodes {
		all.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			last := int64(0)
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if !f.readyz(i) {
					last = 0
					continue
				}
				now := monotonic()
				if last > 0 && now-last < int64(apart) {
					f.mu.Lock()
					f.healthy[i] = append(f.healthy[i], span{last, now})
					f.mu.Unlock()
				}
				last = now
			}
		})
	}
	return &all
}

// work starts the workers. The clock of each but the first is wrong.
func (f *fleet) work(sink string) {
	f.t.Helper()
	var urls []string
	for i := range f.nodes {
		urls = append(urls, "http://"+f.lines[i]["workers"].Addr())
	}
	for i := range f.workers {
		born := 0
		var wrong time.Duration
		if i > 0 && runtime.GOARCH == "amd64" {
			wrong = time.Duration(1+f.rng.IntN(5000)) * time.Hour
			if i%2 == 0 {
				wrong = -wrong
			}
		}
		f.workers[i] = supervise(f.t, fmt.Sprint("worker ", i), "", func() *exec.Cmd {
			born++
			spec := workerSpec{ID: fmt.Sprint("worker-", i), By: fmt.Sprintf("w%d.%d", i, born), Key: f.key, Sink: sink,
				Clock: wrong, URLs: strings.Join(append(urls[i%nodeCount:], urls[:i%nodeCount]...), ",")}
			spec.History = filepath.Join(f.dir, spec.By+".jsonl")
			f.mu.Lock()
			f.histories = append(f.histories, spec.History)
			f.wrong[spec.By] = wrong != 0
			f.mu.Unlock()
			text, err := json.Marshal(spec)
			if err != nil {
				panic(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), workerVar+"="+string(text))
			cmd.Stderr = os.Stderr
			return cmd
		})
	}
}

// A process is started again whenever it ends, unless it was taken down.
type process struct {
	name    string
	log     string // its file; empty: it has none
	command func() *exec.Cmd

	mu      sync.Mutex
	changed *sync.Cond
	cmd     *exec.Cmd
	down    bool
	closed  bool
	ended   []string // how it ended by itself, with the end of its log
}

// supervise runs a process until the test ends.
func supervise(t *testing.T, name, log string, command func() *exec.Cmd) *process {
	p := &process{name: name, log: log, command: command}
	p.changed = sync.NewCond(&p.mu)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		// The kernel kills the process when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.run()
	}()
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.kill(syscall.SIGKILL)
		p.changed.Broadcast()
		p.mu.Unlock()
		<-gone
	})
	return p
}

func (p *process) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.down && !p.closed {
			p.changed.Wait()
		}
		if p.closed {
			return
		}
		cmd := p.command()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := cmd.Start()
		if err == nil {
			p.cmd = cmd
			p.changed.Broadcast()
			p.mu.Unlock()
			err = cmd.Wait()
			p.mu.Lock()
			p.cmd = nil
			p.changed.Broadcast()
		}
		if !p.down && !p.closed {
			why := fmt.Sprint(err)
			if p.log != "" {
				why += ": " + tail(p.log, 500)
			}
			p.ended = append(p.ended, why)
			p.mu.Unlock()
			time.Sleep(300 * time.Millisecond) // as systemd would
			p.mu.Lock()
		}
	}
}

// kill sends a signal. The process is locked.
func (p *process) kill(sig syscall.Signal) bool {
	return p.cmd != nil && p.cmd.Process.Signal(sig) == nil
}

// signal sends a signal, and tells whether there was a process.
func (p *process) signal(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kill(sig)
}

// take ends the process, and keeps it down.
func (p *process) take(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	done := p.kill(sig)
	for p.cmd != nil {
		p.changed.Wait()
	}
	return done
}

// give lets the process start again.
func (p *process) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
	p.changed.Broadcast()
}

// tail is the end of a file.
func tail(path string, size int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(b) > size {
		b = b[len(b)-size:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// build builds the server once, with the fault that PERDURE_PLANT names.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "perdure-chaos-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	path := filepath.Join(dir, "perdure")
	args := []string{"build", "-ldflags=-s -w", "-o", path}
	if os.Getenv("PERDURE_PLANT") != "" { // a fault of the product, which the rules have to find
		args = append(args, "-tags=plant")
	}
	out, err := exec.Command("go", append(args, "../../cmd/perdure")...).CombinedOutput()
	if err != nil {
		err = errors.Join(err, errors.New(string(out)))
	}
	return path, err
})

// builtIn is the folder of the server that was built, which is removed after all tests.
var builtIn string
