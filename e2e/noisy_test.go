package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/worker"
)

// The noisy-neighbour suite has a hostile tenant that makes one attack after the other, with an
// ordinary key (attacks_test.go). Meanwhile a bystander does ordinary work on the same server. The
// attacks must hardly slow down the bystander.
//
// An attack loads what it needs before its time begins, and it counts how often it has happened: an
// attack that happens too seldom shows nothing, and fails. A route that no attack calls fails the
// suite, unless it is listed with a reason.
//
// In an ordinary test run the attacks are small and short, and the bounds are wide, so that a busy
// machine does not fail them. PERDURE_TEST_FULL=1 makes attacks of full size, with the bounds that
// the documentation promises. An attack during which other programs took the processors is repeated.
// Every attack is a test of its own, so that -run selects a store and attacks:
//
//	PERDURE_TEST_FULL=1 go test ./e2e -v -run 'HostileTenants/SQLite/interrupts'

// noise has the size and length of the attacks, and the bounds for the bystander.
type noise struct {
	full   bool
	attack time.Duration
	ratio  float64       // of its p99 to its p99 alone, or to floor where that is longer
	floor  time.Duration // is allowed as the p99 alone, however short that is
	p99    time.Duration // of the bystander's calls, whatever it is alone
	late   time.Duration // of the bystander's deadlines
	memory int64         // bytes
	tries  int
}

func noisy() noise {
	if os.Getenv("PERDURE_TEST_FULL") != "" {
		return noise{full: true, attack: 7 * time.Second, ratio: 10, floor: 10 * time.Millisecond, p99: time.Second,
			late: time.Second, memory: 600 << 20, tries: 5}
	}
	return noise{attack: 150 * time.Millisecond, ratio: 30, floor: 50 * time.Millisecond, p99: 10 * time.Second,
		late: 10 * time.Second, memory: 600 << 20, tries: 20}
}

func (no noise) scale(small, full int) int {
	if no.full {
		return full
	}
	return small
}

// least is how often an attack of a rate a second has to happen. A small one has to happen at all: a busy
// machine may have been busy all the time.
func (no noise) least(rate float64) int {
	if !no.full {
		return 1
	}
	return max(1, int(rate*no.attack.Seconds()))
}

// bound is the longest p99 that the bystander may have.
func (no noise) bound(alone time.Duration) time.Duration {
	return min(no.p99, time.Duration(no.ratio*float64(max(alone, no.floor))))
}

// attacked is the report of an attack.
type attacked struct {
	// Happened is how often it happened, and Refused how often it was told to come later.
	Happened int `json:"happened"`
	Refused  int `json:"refused"`
	// Wrong has answers that the server should never give.
	Wrong []string `json:"wrong"`
	// Routes are the routes that were called.
	Routes map[string]bool `json:"routes"`
}

// The attacker is a process of its own, so that its client does not slow down that of the bystander.

// attackVar is the variable that makes the test binary an attacker.
const attackVar = "PERDURE_ATTACK"

// attackSpec tells an attacker what to do.
type attackSpec struct {
	Addr, Key, Platform, Name string
	Lasts                     time.Duration
}

// An attacking process has loaded what it needs, and waits for the word to begin.
type attacking struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// attackBeside starts the process of an attack, and waits until it has loaded what it needs. An attacker
// has machines of their own. So the process has a lower priority than the server, with which it shares
// the processors.
func attackBeside(spec attackSpec) (*attacking, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("nice", "-n", "10", os.Args[0])
	cmd.Env = append(os.Environ(), attackVar+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	x := &attacking{cmd, in, bufio.NewReader(out)}
	if line, err := x.out.ReadString('\n'); err != nil || line != "ready\n" {
		_ = cmd.Process.Kill() // ends it if it has not ended itself
		return nil, fmt.Errorf("the set-up printed %q (%v) and ended with %w", line, err, cmd.Wait())
	}
	return x, nil
}

// attack makes the attack, and returns the report.
func (x *attacking) attack() (done attacked, err error) {
	if _, err := io.WriteString(x.in, "go\n"); err != nil {
		return done, err
	}
	decoding := json.NewDecoder(x.out).Decode(&done)
	if err := x.cmd.Wait(); err != nil {
		return done, err
	}
	return done, decoding
}

// attackFrom makes one attack, and prints its report.
func attackFrom(text string) error {
	var spec attackSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return fmt.Errorf("%s = %s: %w", attackVar, text, err)
	}
	i := slices.IndexFunc(attacks, func(x attack) bool { return x.name == spec.Name })
	if i < 0 {
		return fmt.Errorf("there is no attack %q", spec.Name)
	}
	a, err := newAttacker(spec)
	if err != nil {
		return err
	}
	a.no.attack = spec.Lasts
	do, err := a.prepare(attacks[i])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.no.attack)
	defer cancel()
	a.ctx = ctx
	do()
	return json.NewEncoder(os.Stdout).Encode(a.report())
}

// A bystander does ordinary work: runs with a caller that waits, and runs that no worker takes and
// that end by their deadline.
type bystander struct {
	c *client.Client

	mu    sync.Mutex
	took  []time.Duration
	late  []time.Duration
	wrong []string
}

func (b *bystander) fail(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// work works until the context ends.
func (b *bystander) work(ctx context.Context) {
	var wg sync.WaitGroup
	for k := range 2 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				want := fmt.Sprintf("%d-%d", k, i)
				input, _ := json.Marshal(want)
				began := time.Now()
				run, deferred, err := b.c.Run(context.WithoutCancel(ctx),
					perdure.Submission{Kind: "echo", Input: input},
					time.Minute)
				took := time.Since(began)
				if err != nil || deferred || string(run.Result) != string(input) {
					b.fail("run %s: deferred %v, error %v, run %+v", want, deferred, err, run)
					return
				}
				b.mu.Lock()
				b.took = append(b.took, took)
				b.mu.Unlock()
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			run, _, err := b.c.Run(context.WithoutCancel(ctx),
				perdure.Submission{Kind: "nobody", Queue: "nobody", Timeout: perdure.Duration(300 * time.Millisecond)},
				time.Minute)
			if err != nil || run.FinishedAt == nil {
				b.fail("a run with a deadline: %v %+v", err, run)
				return
			}
			b.mu.Lock()
			b.late = append(b.late, run.FinishedAt.Sub(run.DeadlineAt))
			b.mu.Unlock()
		}
	})
	wg.Wait()
}

// take returns the measurements since the last call.
func (b *bystander) take() (took, late []time.Duration, wrong []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	took, late, wrong = b.took, b.late, b.wrong
	b.took, b.late, b.wrong = nil, nil, nil
	return took, late, wrong
}

func (n *node) tenantKey(tenant string) string {
	n.t.Helper()
	var made struct {
		Secret string `json:"secret"`
	}
	scopes := []string{"runs:create", "runs:read", "runs:control", "worker:poll", "worker:report",
		"webhooks:admin", "keys:admin", "runs:approve", "kinds:admin", "audit:read"}
	if status := n.insist("POST", "/api/admin/tenants/"+tenant+"/keys", "", obj{"name": "test", "scopes": scopes},
		&made); status != 201 {
		n.t.Fatalf("making a key of %s: %d", tenant, status)
	}
	return made.Secret
}

// maxTaken is the part of the processors' time that other programs and other machines may take during
// an attack. With more, an attack that is over its bounds is repeated.
const maxTaken = 0.05

// A cpu is how much time the processors have had, and how much of it others took: other machines, and
// programs that are not part of the test.
type cpu struct{ all, taken float64 }

// cpuTime reads the counters of the system, and of the programs that belong to the test.
func (n *node) cpuTime() (c cpu) {
	n.t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		n.t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, field := range strings.Fields(line)[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
		v, err := strconv.ParseFloat(field, 64)
		if err != nil {
			n.t.Fatal(err)
		}
		c.all += v
		if i < 3 || i == 7 {
			c.taken += v
		}
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		text := string(b)
		begin, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
		if begin < 0 || end < begin {
			continue
		}
		fields := strings.Fields(text[end+1:]) // from the third field on, which is the state
		pid, _ := strconv.Atoi(strings.TrimSpace(text[:begin]))
		name, parent := text[begin+1:end], fields[1]
		if pid != os.Getpid() && parent != strconv.Itoa(os.Getpid()) && name != "postgres" {
			continue
		}
		times := fields[11:13] // in user and in system mode
		if pid == os.Getpid() {
			times = fields[11:15] // and those of its children that have ended
		}
		for _, f := range times {
			v, _ := strconv.ParseFloat(f, 64)
			c.taken -= v
		}
	}
	return c
}

// takenSince returns the part of the time since then that others took.
func (c cpu) takenSince(then cpu) float64 {
	if c.all == then.all {
		return 0
	}
	return max(0, c.taken-then.taken) / (c.all - then.all)
}

// memory returns the peak resident memory of the server's process.
func (n *node) memory() int64 {
	n.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatalf("read the memory of the server: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10
		}
	}
	n.t.Fatal("/proc has no VmHWM of the server")
	return 0
}

// nearby allows webhooks to this machine, where nothing listens on their port.
var nearby = []string{"--webhook-allow", "127.0.0.0/8"}

func TestHostileTenantsDoNotSlowDownOthers(t *testing.T) {
	stage.Long(t)
	for name, args := range map[string]func(t *testing.T) []string{
		"SQLite":     func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{"--store", storetest.Postgres(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			no := noisy()
			if !no.full {
				t.Parallel()
			}
			n := prepareNode(t, slices.Concat([]string{"--supervisor", "scripted"}, nearby, args(t))...)
			n.files = no.scale(2000, 10_500) // as many connections as an attacker can open are too many
			n.start()
			s := &siege{node: n, no: no, store: name, routes: map[string]bool{}}
			s.attackAll(t)
		})
	}
}

// A siege is a series of attacks on one server.
type siege struct {
	*node
	no     noise
	store  string
	b      *bystander
	alone  []time.Duration
	rows   []siegeRow
	routes map[string]bool
}

// A siegeRow is what was measured during one attack.
type siegeRow struct {
	name       string
	done       attacked
	took, late []time.Duration
	memory     int64
	taken      float64
}

func (r siegeRow) p99() time.Duration { return quantile(r.took, 0.99) }

func (s *siege) attackAll(t *testing.T) {
	pid := s.cmd.Process.Pid
	c := client.New("http://"+s.addr, s.tenantKey("ordinary"), client.Options{})
	work, stop := context.WithCancel(context.Background())
	defer stop()
	w := worker.New(c, worker.Options{DrainTimeout: -1})
	worker.Handle(w, "echo", func(_ context.Context, in string) (string, error) { return in, nil })
	var working sync.WaitGroup
	working.Go(func() { _ = w.Run(work) })
	defer working.Wait()
	defer stop()

	s.b = &bystander{c: c}
	s.during(t, s.no.attack, func() {}) // warm up
	s.alone, _ = s.during(t, 2*s.no.attack, func() {})
	for i, x := range attacks {
		t.Run(x.name, func(t *testing.T) { s.attack(t, x, fmt.Sprint("hostile", i)) })
	}
	all := len(s.rows) == len(attacks)
	t.Logf("the bystander of hostile tenants\n%s", s.report())
	if s.cmd.Process.Pid != pid {
		t.Error("the server restarted during the attacks, want the same process")
	}
	s.sound()
	if all {
		s.checkRoutes(t)
		s.writeEvidence(t)
	}
}

// during has the bystander work for a while, and something else happen meanwhile.
func (s *siege) during(t *testing.T, d time.Duration, meanwhile func()) (took, late []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(meanwhile)
	s.b.work(ctx)
	wg.Wait()
	took, late, wrong := s.b.take()
	for _, x := range wrong {
		t.Error(x)
	}
	return took, late
}

// attack makes one attack, again if others took the processors meanwhile, and checks what it did.
func (s *siege) attack(t *testing.T, x attack, tenant string) {
	var row siegeRow
	var over string
	for try := 1; ; try++ {
		// The peak of memory is that of this attack and its set-up.
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0); err != nil {
			t.Fatalf("forget the peak of the server's memory: %v", err)
		}
		began := time.Now()
		lasts := s.no.attack
		if !s.no.full {
			lasts *= time.Duration(min(try, 8)) // on a busy machine a call may take longer than a short attack
		}
		beside, err := attackBeside(attackSpec{s.addr, s.tenantKey(fmt.Sprint(tenant, ".", try)), s.key, x.name, lasts})
		if err != nil {
			t.Fatal(err)
		}
		loaded := time.Since(began)
		row = siegeRow{name: x.name}
		before := s.cpuTime()
		row.took, row.late = s.during(t, lasts, func() { row.done, err = beside.attack() })
		row.taken, row.memory = s.cpuTime().takenSince(before), s.memory()
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(s.routes, row.done.Routes)
		for _, wrong := range row.done.Wrong {
			t.Errorf("the attack got a wrong answer: %s", wrong)
		}
		over = s.over(x, row)
		t.Logf("set-up %s, happened %d times, refused %d times, %d calls of the bystander, p99 %s, deadline late %s, "+
			"%d MB, %.0f %% of the processors taken by others", loaded.Round(time.Millisecond), row.done.Happened,
			row.done.Refused, len(row.took), ms(row.p99()), ms(longest(row.late)), row.memory>>20, 100*row.taken)
		if try == s.no.tries || over == "" || row.taken <= maxTaken && (s.no.full || row.done.Happened > 0) {
			break
		}
		t.Logf("again, because others took the processors: %s", over)
	}
	s.rows = append(s.rows, row)
	if over != "" {
		t.Error(over)
	}
}

// over says what is not as it should be.
func (s *siege) over(x attack, r siegeRow) string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if least := s.no.least(x.rate); r.done.Happened < least {
		say("it happened %d times (refused %d times), want at least %d", r.done.Happened, r.done.Refused, least)
	}
	if len(r.took) == 0 || len(r.late) == 0 {
		say("the bystander made %d calls and saw %d deadlines, want some", len(r.took), len(r.late))
	}
	alone := quantile(s.alone, 0.99)
	if p99, most := r.p99(), s.no.bound(alone); p99 > most {
		say("the bystander's p99 = %s, want at most %s (alone %s)", p99, most, alone)
	}
	if late := longest(r.late); late > s.no.late {
		say("a deadline was late by %s, want at most %s", late, s.no.late)
	}
	if r.memory > s.no.memory {
		say("the server had %d MB, want at most %d", r.memory>>20, s.no.memory>>20)
	}
	return strings.Join(out, "; ")
}

// checkRoutes looks for routes that nobody attacks.
func (s *siege) checkRoutes(t *testing.T) {
	paths, err := routesOf(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range paths.all {
		_, excused := harmless[route]
		switch {
		case s.routes[route] && excused:
			t.Errorf("%s is listed as harmless, and an attack calls it: take it off the list", route)
		case !s.routes[route] && !excused:
			t.Errorf("%s: no attack calls it (attacks_test.go), and harmless does not say why it needs none", route)
		}
	}
	for route := range harmless {
		if !slices.Contains(paths.all, route) {
			t.Errorf("%s is listed as harmless, and is no route", route)
		}
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func longest(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return slices.Max(d)
}
