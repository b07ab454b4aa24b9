package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// This file kills a server or a worker while ten conversations are at the boundaries of their tools, all
// at once: one kill then hits every boundary. A conversation is named after its point and its tool, as in
// "running-once". Its tool writes that name to a file each time it is executed.

// The points at which a conversation is killed.
const (
	// pointBefore: the model has called the tool, which is recorded, and the tool has not begun.
	pointBefore = "before"
	// pointRunning: the tool has had its effect, and has not returned.
	pointRunning = "running"
	// pointReturned: the tool has returned, and the commit with its result does not arrive.
	pointReturned = "returned"
	// pointRecorded: the result is recorded, and the model has not begun to answer.
	pointRecorded = "recorded"
	// pointAnswering: the model has written a part of its answer.
	pointAnswering = "answering"
)

// Variables that make this test program a worker, and a program of the tool shell.
const (
	toolsVar = "PERDURE_TEST_TOOLS"
	shellVar = "PERDURE_TEST_SHELL"
)

// A bench is a folder through which tools and test talk with each other.
type bench string

// newBench makes a bench that every user may use, with this program in it.
func newBench(t *testing.T) bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "perdure-bench-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := bench(dir)
	if os.Link(self, b.program()) == nil {
		return b
	}
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(b.program(), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// program is the path of this program, for the tool shell.
func (b bench) program() string { return filepath.Join(string(b), "program") }

// note appends a line to a file of the bench.
func (b bench) note(file, line string) error {
	f, err := os.OpenFile(filepath.Join(string(b), file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	f.Chmod(0o666) // commands of the shell are executed as another user
	_, err = fmt.Fprintln(f, line)
	return err
}

// count counts the lines of a file of the bench that have a text.
func (b bench) count(file, line string) (n int) {
	text, _ := os.ReadFile(filepath.Join(string(b), file)) // no file has no lines
	for l := range strings.Lines(string(text)) {
		if strings.TrimSpace(l) == line {
			n++
		}
	}
	return n
}

// wait waits until there is a file.
func (b bench) wait(ctx context.Context, file string) error {
	for {
		if _, err := os.Stat(filepath.Join(string(b), file)); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// execute is the work of a tool: it has its effect, and takes as long as its point needs.
func (b bench) execute(ctx context.Context, name string) (string, error) {
	if err := b.note("executed", name); err != nil {
		return "", err
	}
	if point, _, _ := strings.Cut(name, "-"); point == pointRunning || point == pointReturned {
		if err := b.wait(ctx, "go-"+point); err != nil {
			return "", err
		}
	}
	return name + " is done", b.note("returned", name)
}

// A toolCall is the input of a tool.
type toolCall struct {
	Name string `json:"name"`
}

// toolSpec is the specification that a worker which also has the supervisor uses.
type toolSpec struct {
	URL, Key, Bench string
	// Model is the address of the model, for a worker that has the supervisor.
	Model string
	// Late also serves the kinds of tools that must not begin before the kill.
	Late bool
}

// toolWorker is a worker process. With a model it has a supervisor with two tools that are functions, and
// otherwise it serves them as kinds of runs.
func toolWorker(text string) error {
	var spec toolSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	w := worker.New(client.New(spec.URL, spec.Key, client.Options{}), worker.Options{
		HeartbeatEvery: 300 * time.Millisecond, AgentSlots: 64, Slots: 64, Logger: slog.New(slog.DiscardHandler)})
	b := bench(spec.Bench)
	if spec.Model == "" {
		for _, prefix := range []string{"tool.", "late."} {
			for _, name := range []string{"once", "again"} {
				if prefix == "tool." || spec.Late {
					worker.Handle(w, prefix+name, func(ctx context.Context, in toolCall) (string, error) {
						return b.execute(ctx, in.Name)
					})
				}
			}
		}
		return w.Run(context.Background())
	}
	m, err := model.New(model.Options{Models: []model.Endpoint{{BaseURL: spec.Model, Model: "m",
		FirstToken: modelTimeout, BetweenTokens: modelTimeout}}})
	if err != nil {
		return err
	}
	opt := supervisor.Options{Model: m}
	for _, name := range []string{"once", "again"} {
		opt.Tools = append(opt.Tools, &gatedTool{b, supervisor.Func(
			supervisor.Spec{Name: name, Repeatable: name == "again"},
			func(ctx context.Context, in toolCall) (string, error) { return b.execute(ctx, in.Name) })})
	}
	s, err := supervisor.New(opt)
	if err != nil {
		return err
	}
	s.Register(w)
	return w.Run(context.Background())
}

// modelTimeout is how long a call of the model may be silent. The points recorded and answering hold the
// model for so long, unless the caller is killed.
const modelTimeout = 2 * time.Second

// A gatedTool is a tool that waits before it begins, at the point before.
type gatedTool struct {
	bench bench
	supervisor.Tool
}

func (g *gatedTool) Start(ctx *agent.Context, call supervisor.Call) (supervisor.Pending, error) {
	var in toolCall
	if err := json.Unmarshal(call.Arguments, &in); err != nil {
		return supervisor.Pending{}, err
	}
	if strings.HasPrefix(in.Name, pointBefore) {
		if err := g.bench.note("waiting", in.Name); err != nil {
			return supervisor.Pending{}, err
		}
		if err := g.bench.wait(ctx, "go-"+pointBefore); err != nil {
			return supervisor.Pending{}, err
		}
	}
	return g.Tool.Start(ctx, call)
}

// A talk is a conversation at one point.
type talk struct {
	point, tool string
	thread, run string
}

func (k *talk) name() string { return k.point + "-" + k.tool }

// A crash is one row of the table: where the supervisor is, and which process is killed.
type crash struct {
	// inside tells that the supervisor is in the server. The tools are then kinds of a worker's runs, and
	// the tool shell. Otherwise they are functions in the worker that has the supervisor.
	inside bool
	// server kills the server, otherwise the worker.
	server bool

	t     *testing.T
	bench bench
	model string
	node  *node
	relay *relay
	talks []*talk
}

// Every tool boundary, in real processes. After every kill, a tool with a recorded result is not executed
// again. One without is executed again only if it is declared repeatable, and otherwise the model is told
// that its outcome is unknown. Every thread gets its answer.
func TestKillAtEveryToolBoundary(t *testing.T) {
	stage.Long(t)
	for _, c := range []crash{{}, {server: true}, {inside: true}, {inside: true, server: true}} {
		where, who := "worker", "worker"
		if c.inside {
			where = "server"
		}
		if c.server {
			who = "server"
		}
		name := fmt.Sprintf("supervisor in the %s, the %s is killed/", where, who)
		t.Run(name+"SQLite", func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
		t.Run(name+"PostgreSQL", func(t *testing.T) {
			t.Parallel()
			c.run(t, "--store", pgtest.New(t))
		})
	}
}

func (c crash) run(t *testing.T, store ...string) {
	c.t = t
	c.bench = newBench(c.t)
	for _, point := range []string{pointBefore, pointRunning, pointReturned, pointRecorded, pointAnswering} {
		for _, tool := range []string{"once", "again"} {
			c.talks = append(c.talks, &talk{point: point, tool: tool})
		}
		if c.inside && (point == pointRunning || point == pointRecorded) {
			c.talks = append(c.talks, &talk{point: point, tool: "shell"})
		}
	}
	c.model = startModel(c.t, string(c.bench), c.script())
	args := append(append([]string{}, short...), store...)
	if c.inside {
		args = append(args, "--supervisor", c.config())
	}
	c.node = newNode(c.t, args...)
	c.relay = newRelay(c.t, c.node)
	first := c.startWorker(false)
	for _, k := range c.talks {
		var asked struct {
			ThreadID string `json:"thread_id"`
			RunID    string `json:"run_id"`
		}
		if status := c.node.insist("POST", "/api/v1/chat", k.name(), obj{"message": k.name()},
			&asked); status != 201 && status != 200 {
			c.t.Fatalf("chat = %d, want 201", status)
		}
		k.thread, k.run = asked.ThreadID, asked.RunID
	}
	for _, k := range c.talks {
		eventually.True(c.t, k.name()+" is at its point", func() bool { return c.atPoint(k) })
	}
	// From now on no commit of the worker arrives, and the tools at the point returned return.
	c.relay.hold.Store(true)
	c.open(pointReturned)
	eventually.True(c.t, "the tools have returned, and a commit is on its way", func() bool {
		return c.bench.count("returned", pointReturned+"-once") == 1 &&
			c.bench.count("returned", pointReturned+"-again") > 0 && c.relay.held.Load() > 0
	})
	if c.server {
		c.node.kill(syscall.SIGKILL)
		c.relay.release()
		c.node.start()
	} else {
		killWorker(first)
		c.relay.release()
	}
	c.open(pointBefore)
	c.open(pointRunning)
	c.startWorker(true)
	for _, k := range c.talks {
		c.check(k)
	}
	c.node.sound()
}

// open lets the tools go on that wait at a point.
func (c *crash) open(point string) {
	c.t.Helper()
	if err := c.bench.note("go-"+point, ""); err != nil {
		c.t.Fatal(err)
	}
}

// atPoint tells whether a conversation has come to its point.
func (c *crash) atPoint(k *talk) bool {
	switch k.point {
	case pointBefore:
		if !c.inside {
			return c.bench.count("waiting", k.name()) == 1
		}
		var page struct {
			Runs []runView `json:"runs"`
		}
		c.node.insist("GET", "/api/v1/runs?parent_run_id="+k.run, "", nil, &page)
		return len(page.Runs) == 1 && page.Runs[0].State == "queued"
	case pointRunning, pointReturned:
		return c.bench.count("executed", k.name()) > 0
	case pointRecorded:
		return c.node.counts(k.run)[string(perdure.LineToolCompleted)] == 1
	default:
		return c.node.counts(k.run)[string(perdure.LineDelta)] > 0
	}
}

// check waits for the answer of a conversation, and counts how often its tool was executed.
func (c *crash) check(k *talk) {
	c.t.Helper()
	var said []string
	eventually.True(c.t, k.name()+" is answered", func() bool {
		said = c.node.said(k.thread, "assistant")
		return len(said) > 0 && c.node.get(k.run).State == "completed"
	})
	// The result is lost if the tool's process is killed before the result is recorded.
	lost := !c.server && (k.point == pointRunning || k.point == pointReturned)
	if k.tool == "shell" {
		lost = c.server && k.point == pointRunning
	}
	// It may be lost if the server is away for longer than the lease of the worker that executes the tool.
	maybe := c.server && (k.point == pointRunning || k.point == pointReturned) && k.tool != "shell"
	done, unknown := k.name()+" is done", "outcome unknown"
	least, most, want := 1, 1, []string{done}
	switch {
	case k.tool == "again" && lost:
		least, most = 2, 2
	case k.tool == "again" && maybe:
		most = 2
	case lost:
		want = []string{unknown}
	case maybe:
		want = []string{done, unknown}
	}
	if k.tool == "again" {
		// On a busy machine a worker may be silent for longer than its short lease.
		most = max(most, c.grants(k))
	}
	if len(said) != 1 || !slices.ContainsFunc(want, func(w string) bool { return strings.Contains(said[0], w) }) {
		c.t.Errorf("%s: answers = %q, want one with %q", k.name(), said, want)
	}
	if n := c.bench.count("executed", k.name()); n < least || n > most {
		c.t.Errorf("%s: the tool was executed %d times, want %d to %d", k.name(), n, least, most)
	}
}

// grants counts how often the run that executes the tool of a conversation was handed to a worker, up to
// the tool's result.
func (c *crash) grants(k *talk) (n int) {
	c.t.Helper()
	if !c.inside {
		return c.node.countsUntil(k.run, string(perdure.LineToolCompleted))[string(perdure.LineDispatched)]
	}
	var page struct {
		Runs []runView `json:"runs"`
	}
	c.node.insist("GET", "/api/v1/runs?parent_run_id="+k.run, "", nil, &page)
	for _, r := range page.Runs {
		n += c.node.counts(r.RunID)[string(perdure.LineDispatched)]
	}
	return n
}

// said returns the messages of a role in a thread.
func (n *node) said(thread, role string) (out []string) {
	n.t.Helper()
	var page struct {
		Messages []struct {
			Role    string `json:"role"`
			Content any    `json:"content"`
		} `json:"messages"`
	}
	n.insist("GET", "/api/v1/threads/"+thread+"/messages?limit=1000", "", nil, &page)
	for _, m := range page.Messages {
		if m.Role == role {
			out = append(out, fmt.Sprint(m.Content))
		}
	}
	return out
}

// script is that of the model: it calls the tool of each conversation, and repeats its result.
func (c *crash) script() mockmodel.Script {
	var rules []mockmodel.Rule
	for _, k := range c.talks {
		call := mockmodel.Call{Name: k.tool, Arguments: obj{"name": k.name()}}
		switch {
		case k.tool == "shell":
			call.Arguments = obj{"program": c.bench.program(), "args": []string{k.name()}}
		case c.inside && k.point == pointBefore:
			call.Name = "late_" + k.tool
		}
		rules = append(rules, mockmodel.Rule{Match: mockmodel.Match{Role: "user", Last: k.name()},
			Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{call}}})
		match := mockmodel.Match{Role: "tool", Last: k.name()}
		switch k.point {
		case pointRecorded:
			rules = append(rules, mockmodel.Rule{Times: 1, Match: match,
				Answer: mockmodel.Answer{Fault: mockmodel.FaultHang}})
		case pointAnswering:
			rules = append(rules, mockmodel.Rule{Times: 1, Match: match, Answer: mockmodel.Answer{
				Text: "I am about to say that", Fault: mockmodel.FaultSilence, FaultAfter: 4}})
		}
	}
	return mockmodel.Script{Rules: append(rules, mockmodel.Rule{Match: mockmodel.Match{Role: "tool"},
		Answer: mockmodel.Answer{Text: "Answer: {{last}}"}})}
}

// config writes the file of a supervisor inside the server.
func (c *crash) config() string {
	c.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "[[model]]\nbase_url = %q\nmodel = \"m\"\nfirst_token = %q\nbetween_tokens = %q\n", c.model,
		modelTimeout, modelTimeout)
	for _, prefix := range []string{"", "late_"} {
		for _, name := range []string{"once", "again"} {
			kind := "tool." + name
			if prefix != "" {
				kind = "late." + name
			}
			fmt.Fprintf(&b, "[[tool]]\nname = %q\nkind = %q\nrepeatable = %t\n"+
				"parameters = { type = \"object\", properties = { name = { type = \"string\" } } }\n",
				prefix+name, kind, name == "again")
		}
	}
	fmt.Fprintf(&b, "[shell]\nallow = [[%q, \"*\"]]\napprove = \"never\"\nenv = [%q]\n", c.bench.program(),
		shellVar+"="+string(c.bench))
	if os.Geteuid() == 0 {
		b.WriteString("user = \"nobody\"\n")
	}
	file := filepath.Join(string(c.bench), "supervisor.toml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// startWorker starts a worker process behind the relay.
func (c *crash) startWorker(late bool) *exec.Cmd {
	c.t.Helper()
	spec := toolSpec{URL: c.relay.url, Key: c.node.key, Bench: string(c.bench), Late: late}
	if !c.inside {
		spec.Model = c.model
	}
	text, err := json.Marshal(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), toolsVar+"="+string(text))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { killWorker(cmd) })
	return cmd
}

// startModel starts "perdure mock-model" with a script, and returns its address.
func startModel(t *testing.T, dir string, script mockmodel.Script) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(script)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "script.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "mock-model", "--listen", "127.0.0.1:0", "--script", file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killWorker(cmd) })
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("mock-model printed %q: %v", url, err)
	}
	return strings.TrimSpace(url)
}

// A relay is between a worker and its server. It can keep commits to itself.
type relay struct {
	url  string
	hold atomic.Bool
	// held counts the commits that were kept.
	held atomic.Int64

	mu    sync.Mutex
	until chan struct{} // is closed when the kept commits are dropped
}

func newRelay(t *testing.T, n *node) *relay {
	t.Helper()
	to, err := url.Parse("http://" + n.addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = log.New(discard{}, "", 0)
	r := &relay{until: make(chan struct{})}
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.hold.Load() && strings.HasSuffix(req.URL.Path, "/commit") {
			r.held.Add(1)
			select {
			case <-r.until:
			case <-req.Context().Done():
			}
			panic(http.ErrAbortHandler) // no answer
		}
		proxy.ServeHTTP(w, req)
	}))
	hs.Config.ErrorLog = proxy.ErrorLog
	t.Cleanup(func() {
		r.release()
		hs.CloseClientConnections()
		hs.Close()
	})
	r.url = hs.URL
	return r
}

// release drops the kept commits, and passes on those that come.
func (r *relay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold.Swap(false) {
		close(r.until)
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
