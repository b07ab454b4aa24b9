package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A follower reads a run's stream and keeps the bytes of every frame. An empty line ends a frame.
// It reconnects with the id of the last complete frame.
type follower struct {
	base func() string // returns the address, before each connection
	key  string
	id   string
	http *http.Client

	mu     sync.Mutex
	frames []string // those of the log, without those about the stream itself
	after  int
	calls  int
	done   chan error
}

func follow(base func() string, key, id string) *follower {
	// Each time a new connection, because one that was cut can't be used again.
	f := &follower{base: base, key: key, id: id,
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, done: make(chan error, 1)}
	go func() { f.done <- f.run() }()
	return f
}

func at(addr string) func() string { return func() string { return "http://" + addr } }

// run reads until the stream has ended.
func (f *follower) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Within)
	defer cancel()
	for {
		ended, err := f.attach(ctx)
		if ended || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the stream of %s does not end; %d frames in %d connections", f.id, len(f.frames),
				f.calls)
		}
		time.Sleep(5 * time.Millisecond) // the server may be away
	}
}

// attach reads the stream over one connection. It returns errors of the server, and not of the
// network.
func (f *follower) attach(ctx context.Context) (ended bool, err error) {
	f.mu.Lock()
	f.calls++
	after := f.after
	f.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, "GET", f.base()+"/api/v1/runs/"+f.id+"/stream", nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+f.key)
	req.Header.Set("Last-Event-ID", strconv.Itoa(after))
	res, err := f.http.Do(req)
	if err != nil {
		return false, nil
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNoContent:
		return true, nil
	case http.StatusServiceUnavailable:
		return false, nil
	case http.StatusOK:
	default:
		b, _ := io.ReadAll(res.Body)
		return false, fmt.Errorf("the stream of %s after %d: %d %s", f.id, after, res.StatusCode, b)
	}
	var text []byte
	buf := make([]byte, 4096)
	for first := true; ; {
		n, err := res.Body.Read(buf)
		text = append(text, buf[:n]...)
		for {
			frame, rest, ok := bytes.Cut(text, []byte("\n\n"))
			if !ok {
				break
			}
			text = append([]byte(nil), rest...)
			ended, err := f.take(string(frame), first)
			if ended || err != nil {
				return ended, err
			}
			first = false
		}
		if errors.Is(err, io.EOF) {
			return false, errors.New("the stream ended cleanly, and did not say so")
		}
		if err != nil {
			return false, nil
		}
	}
}

func (f *follower) take(frame string, first bool) (ended bool, err error) {
	for strings.HasPrefix(frame, ":") || strings.HasPrefix(frame, "retry:") {
		_, frame, _ = strings.Cut(frame, "\n")
	}
	lines := strings.Split(frame, "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "id: ") || !strings.HasPrefix(lines[1], "event: ") ||
		!strings.HasPrefix(lines[2], "data: ") {
		return false, fmt.Errorf("a frame is %q", frame)
	}
	id, err := strconv.Atoi(lines[0][4:])
	if err != nil {
		return false, fmt.Errorf("a frame is %q", frame)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	typ := lines[1][7:]
	if (typ == "stream:attached") != first {
		return false, fmt.Errorf("the first frame of a connection is stream:attached, and no other; got %s", typ)
	}
	if strings.HasPrefix(typ, "stream:") {
		if id != f.after || typ == "stream:gap" {
			return false, fmt.Errorf("after %d: %q", f.after, frame)
		}
		return typ == "stream:end", nil
	}
	if id != f.after+1 {
		return false, fmt.Errorf("after %d comes %q", f.after, frame)
	}
	f.after = id
	f.frames = append(f.frames, frame)
	return false, nil
}

// reaches waits until the follower has a line.
func (f *follower) reaches(t *testing.T, seq int) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("line %d is told", seq), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.after >= seq
	})
}

// all waits for the end of the stream, and returns its frames as one text.
func (f *follower) all(t *testing.T) string {
	t.Helper()
	if err := <-f.done; err != nil {
		t.Fatal(err)
	}
	return strings.Join(f.frames, "\n")
}

// same fails the test unless a follower has the same bytes as another one.
func (f *follower) same(t *testing.T, what, want string) {
	t.Helper()
	if got := f.all(t); got != want {
		t.Errorf("%s: %d bytes, want %d: not the same", what, len(got), len(want))
	}
}

// shears is a proxy that cuts connections after a random number of bytes: in the headers, between
// frames, or within one.
type shears struct {
	to string
	l  net.Listener

	mu   sync.Mutex
	rng  *rand.Rand
	left int
	cuts int
}

func newShears(t *testing.T, to string, cuts int) *shears {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	seed := rand.Uint64()
	t.Logf("seed of the cuts: %d", seed)
	x := &shears{to: to, l: l, rng: rand.New(rand.NewPCG(seed, 1)), left: cuts}
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			go x.carry(a)
		}
	}()
	return x
}

// draw returns after how many bytes of the answer a connection is cut. After enough cuts that is
// never.
func (x *shears) draw() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left == 0 {
		return 1 << 40
	}
	x.left--
	return 1 + x.rng.Int64N(2000)
}

func (x *shears) carry(a net.Conn) {
	defer a.Close()
	b, err := net.Dial("tcp", x.to)
	if err != nil {
		return
	}
	defer b.Close()
	go func() {
		io.Copy(b, a)
		b.Close() // the client has gone
	}()
	limit := x.draw()
	if n, _ := io.CopyN(a, b, limit); n == limit {
		x.mu.Lock()
		x.cuts++
		x.mu.Unlock()
	}
}

// all fails the test unless every cut was made.
func (x *shears) all(t *testing.T, want int) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cuts != want {
		t.Errorf("cut %d times, want %d", x.cuts, want)
	}
}

// A scribe is a worker that holds one run and writes to its log.
type scribe struct {
	t    *testing.T
	call func(path string, in, out any) int
	run  runView
	seq  int // of the last line
	n    int
}

// scribble starts a run and leases it. call repeats a call until it is answered.
func scribble(t *testing.T, call func(path string, in, out any) int) *scribe {
	t.Helper()
	s := &scribe{t: t, call: call}
	var r runView
	if status := call("/api/v1/runs", obj{"kind": "story"}, &r); status != 201 {
		t.Fatalf("submit: %d", status)
	}
	var p polled
	if status := call("/api/v1/workers/scribe/poll", obj{"slots": 1, "start": true, "wait": "10s"},
		&p); status != 200 || len(p.Runs) != 1 || p.Runs[0].RunID != r.RunID {
		t.Fatalf("poll: %d %+v", status, p)
	}
	s.run, s.seq = p.Runs[0], 3 // created, dispatched, started
	return s
}

// write commits a few lines of very different lengths.
func (s *scribe) write() {
	s.t.Helper()
	var events []obj
	for i := range 1 + s.n%4 {
		size := 20 + 13*(s.n*7+i*3)%200
		if s.n%15 == 14 {
			size = 6000
		}
		events = append(events, obj{"type": "x:line",
			"data": obj{"n": s.n, "text": strings.Repeat("ü<\u2028\n", size/6)}})
	}
	s.commit(obj{"events": events})
	s.seq += len(events)
}

func (s *scribe) end() {
	s.t.Helper()
	s.commit(obj{"outcome": obj{"type": "complete", "result": "told"}})
	s.seq++
}

func (s *scribe) commit(c obj) {
	s.t.Helper()
	c["commit_id"], c["run_id"], c["epoch"] = fmt.Sprint("c", s.n), s.run.RunID, s.run.Epoch
	s.n++
	if status := s.call("/api/v1/workers/scribe/commit", obj{"commits": []obj{c}}, nil); status != 200 {
		s.t.Fatalf("commit: %d", status)
	}
}

// insister returns the call function of a scribe for a node that may be away.
func (n *node) insister() func(path string, in, out any) int {
	return func(path string, in, out any) int { return n.insist("POST", path, "", in, out) }
}

const cuts = 20

func TestCutStreamHasTheSameBytes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := scribble(t, n.insister())
	steady := follow(at(n.addr), n.key, s.run.RunID)
	x := newShears(t, n.addr, cuts)
	cut := follow(at(x.l.Addr().String()), n.key, s.run.RunID)
	for range 100 {
		s.write()
		cut.reaches(t, s.seq) // so that it gets the lines as they are written
	}
	s.end()
	want := steady.all(t)
	if steady.calls != 1 || steady.after != s.seq {
		t.Errorf("%d lines over %d connections, want %d over one", steady.after, steady.calls, s.seq)
	}
	cut.same(t, "cut while it happened", want)
	x.all(t, cuts)

	x = newShears(t, n.addr, cuts)
	follow(at(x.l.Addr().String()), n.key, s.run.RunID).same(t, "cut after the end", want)
	x.all(t, cuts)
	follow(at(n.addr), n.key, s.run.RunID).same(t, "read after the end", want)
}

func TestStreamAcrossRestartHasTheSameBytes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := scribble(t, n.insister())
	x := newShears(t, n.addr, cuts)
	one, other := follow(at(n.addr), n.key, s.run.RunID), follow(at(x.l.Addr().String()), n.key, s.run.RunID)
	for i := range 60 {
		s.write()
		if i%20 == 10 {
			one.reaches(t, s.seq)
			sig := syscall.SIGKILL
			if i == 30 {
				sig = syscall.SIGTERM
			}
			n.kill(sig)
			n.start()
		}
	}
	s.end()
	want := one.all(t)
	if one.calls < 4 || one.after != s.seq {
		t.Errorf("%d lines over %d connections, want %d over more than three", one.after, one.calls, s.seq)
	}
	other.same(t, "cut as well", want)
	follow(at(n.addr), n.key, s.run.RunID).same(t, "read after the end", want)
	n.kill(syscall.SIGKILL)
	n.start()
	follow(at(n.addr), n.key, s.run.RunID).same(t, "read after one more restart", want)
}

func TestStreamsOfAllNodesHaveTheSameBytes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, pgtest.New(t), "--log-level", "error")
	first, second := f.nodes[0], f.nodes[1]
	// The worker calls any node that answers. The first node will be killed.
	s := scribble(t, func(path string, in, out any) int {
		status, _ := f.insist("POST", path, "", in, out)
		return status
	})
	id := s.run.RunID
	x := newShears(t, second.addr, cuts)
	steady, cut := follow(at(second.addr), f.key, id), follow(at(x.l.Addr().String()), f.key, id)
	// One follower reads from the first node, and from the second after the kill.
	moving := first.addr
	var mu sync.Mutex
	mover := follow(func() string {
		mu.Lock()
		defer mu.Unlock()
		return "http://" + moving
	}, f.key, id)
	for i := range 60 {
		s.write()
		cut.reaches(t, s.seq)
		if i == 30 {
			mover.reaches(t, s.seq)
			first.kill(syscall.SIGKILL)
			mu.Lock()
			moving = second.addr
			mu.Unlock()
		}
	}
	s.end()
	want := steady.all(t)
	if steady.calls != 1 || steady.after != s.seq {
		t.Errorf("%d lines over %d connections, want %d over one", steady.after, steady.calls, s.seq)
	}
	cut.same(t, "cut at the second node", want)
	mover.same(t, "begun at a node that was killed", want)
	x.all(t, cuts)
	first.start()
	follow(at(first.addr), f.key, id).same(t, "read at the first node after its restart", want)
}

func TestCtrlCDetachesAndPrintsHowToAttach(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := scribble(t, n.insister())
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "fg", s.run.RunID, "--url", "http://"+n.addr, "--key", n.key)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "run:started") {
	}
	// A restart of the server is not visible at the terminal.
	n.kill(syscall.SIGKILL)
	n.start()
	s.write()
	for lines.Scan() && !strings.Contains(lines.Text(), "x:line") {
	}
	cmd.Process.Signal(os.Interrupt)
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(string(rest), "perdure fg "+s.run.RunID) {
		t.Errorf("exit code %d: %s", code, rest)
	}
	s.write() // it goes on
	s.end()
}
