package runner

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/process/jobdir"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/wire/session"
)

// pool starts a pool, and returns a function that ends it.
func (w *world) pool(slots int, change func(p *Pool)) (stop func()) {
	w.T.Helper()
	p := &Pool{Slots: slots, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Job: Job{
		Server: w.access(), Workspace: w.workspace, Queues: []string{"builds"},
		Env: []string{"PATH=" + os.Getenv("PATH")}, Grace: 300 * time.Millisecond,
		SentinelEvery: 100 * time.Millisecond}}
	if change != nil {
		change(p)
	}
	if err := p.Validate(); err != nil {
		w.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			w.T.Errorf("pool: %v", err)
		}
	}
	w.T.Cleanup(stop)
	return stop
}

// submit submits a run for a pool.
func (w *world) submit(input any) *started {
	w.T.Helper()
	b, err := json.Marshal(input)
	if err != nil {
		w.T.Fatal(err)
	}
	r, err := w.C.Start(w.T.Context(), perdure.Submission{Kind: Kind, Class: perdure.Process, Queue: "builds",
		MaxAttempts: 1,
		Input:       b})
	if err != nil {
		w.T.Fatal(err)
	}
	return &started{w: w, id: r.RunID}
}

func sh(script string) map[string]any { return map[string]any{"command": []string{"sh", "-c", script}} }

func TestPoolExecutesRuns(t *testing.T) {
	w := newWorld(t)
	secrets := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(secrets, []byte("# ours\ntoken = abc=123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.pool(2, func(p *Pool) { p.Secrets = secrets })
	input := sh(`pwd; echo "$COLOUR $TOKEN $HOME"; echo mine > data`)
	input["env"], input["secrets"] = map[string]string{"COLOUR": "red"}, map[string]string{"TOKEN": "token"}
	s := w.submit(input)
	r := s.ended(perdure.Completed, "")
	if got, want := s.logged(jobdir.Stdout), s.dir().Path+"\nred abc=123 \n"; got != want {
		t.Errorf("output = %q, want %q: the job's folder, the input's environment, the secret, and no HOME", got, want)
	}
	if !s.dir().HasData() {
		t.Error("the job's folder has no data, want the file of the command")
	}
	for _, name := range []string{jobdir.SentinelFile, jobdir.ResultFile, jobdir.LogFile} {
		if b, err := os.ReadFile(filepath.Join(s.dir().Path, name)); err != nil ||
			strings.Contains(string(b), "abc=123") {
			t.Errorf("%s (error %v) has the secret: %s", name, err, b)
		}
	}
	if strings.Contains(string(r.Input), "abc=123") {
		t.Errorf("the run's input has the secret: %s", r.Input)
	}

	for name, bad := range map[string]struct {
		input any
		code  perdure.Code
	}{
		"no command":  {map[string]any{}, CodeSpec},
		"wrong field": {map[string]any{"command": []string{"true"}, "cmd": 1}, CodeSpec},
		"text":        {"make", CodeSpec},
		"input":       {map[string]any{"command": []string{"cat"}, "stdin_bytes": 5}, CodeSpec},
		"less input":  {map[string]any{"command": []string{"cat"}, "stdin_bytes": -1}, CodeSpec},
		"engine":      {map[string]any{"command": []string{"true"}, "engine": "nonsense"}, CodeEngine},
		"secret": {map[string]any{"command": []string{"true"}, "secrets": map[string]string{"A": "b"}},
			CodeSecret},
		"program": {map[string]any{"command": []string{"no-such-program"}}, CodeStart},
		"session": {map[string]any{"command": []string{"true"}, "session": "--evil"}, CodeSpec},
	} {
		t.Run(name, func(t *testing.T) { w.submit(bad.input).ended(perdure.Failed, bad.code) })
	}
}

func TestPoolKeepsToItsSlotsAndJobsOutliveIt(t *testing.T) {
	w := newWorld(t)
	stop := w.pool(2, nil)
	gate := filepath.Join(t.TempDir(), "gate")
	wait := sh(`echo begun; while [ ! -e ` + gate + ` ]; do sleep 0.02; done`)
	first, second, third := w.submit(wait), w.submit(wait), w.submit(wait)
	running := func() (n int) {
		for _, s := range []*started{first, second, third} {
			if s.run().State == perdure.Running {
				n++
			}
		}
		return n
	}
	eventually.True(t, "two commands run", func() bool { return running() == 2 })
	stop()
	stop = w.pool(2, nil)
	// The slots are taken by the jobs of the former pool.
	eventually.True(t, "the second pool has looked", func() bool {
		_, err := os.Stat(filepath.Join(w.workspace, "slots", "2"))
		return err == nil
	})
	// A run that the pool has just taken over is dispatched for a moment.
	eventually.True(t, "two commands run after the pool was started again", func() bool { return running() == 2 })
	stop()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.pool(2, nil)
	for _, s := range []*started{first, second, third} {
		s.ended(perdure.Completed, "")
		if got := s.logged(jobdir.Stdout); got != "begun\n" {
			t.Errorf("run %s: output = %q, want begun once", s.id, got)
		}
	}
}

func TestPoolThatEndsLeavesNoRunner(t *testing.T) {
	w := newWorld(t)
	stop := w.pool(1, nil)
	eventually.True(t, "the pool polls", func() bool {
		workers, err := admin.New(w.C).Workers(t.Context())
		return err == nil && len(workers) > 0
	})
	stop()
	eventually.True(t, "the slot is free", func() bool {
		p := Pool{Slots: 1, Job: Job{Workspace: w.workspace}}
		f, err := p.freeSlot()
		if f != nil {
			f.Close()
		}
		return err == nil && f != nil
	})
	s := w.submit(sh("true"))
	if polled, err := session.Of(w.C).Poll(t.Context(), "other", api.Poll{Queues: []string{"builds"},
		Slots: 1}); err != nil ||
		len(polled.Runs) != 1 || polled.Runs[0].RunID != s.id {
		t.Errorf("a run after the pool's end is granted to %+v (error %v), want the next worker", polled, err)
	}
}

func TestBadPools(t *testing.T) {
	open := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(open, []byte("a=b"), 0o644); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(bad, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Pool{
		"no slots":        {Job: Job{Queues: []string{"a"}}},
		"many slots":      {Slots: MaxSlots + 1, Job: Job{Queues: []string{"a"}}},
		"no queue":        {Slots: 1},
		"local queue":     {Slots: 1, Job: Job{Queues: []string{"a", LocalQueue}}},
		"missing secrets": {Slots: 1, Job: Job{Queues: []string{"a"}}, Secrets: "/no/such/file"},
		"open secrets":    {Slots: 1, Job: Job{Queues: []string{"a"}}, Secrets: open},
		"bad secrets":     {Slots: 1, Job: Job{Queues: []string{"a"}}, Secrets: bad},
		"empty prefix":    {Slots: 1, Job: Job{Queues: []string{"a"}}, Secrets: "env:"},
	} {
		if err := p.Validate(); err == nil {
			t.Errorf("%s: the pool is valid, want an error", name)
		}
	}
	t.Setenv("OUR_TOKEN", "x")
	if got, err := LoadSecrets("env:OUR_"); err != nil || got["TOKEN"] != "x" {
		t.Errorf("secrets of env:OUR_ = %v (error %v), want TOKEN", got, err)
	}
}

func TestCommandWithATerminal(t *testing.T) {
	w := newWorld(t)
	s := w.start(`test -t 1 && test -t 2 && test -t 0 && stty size; printf 'last words' >&2; exit 6`,
		func(j *Job, _ *perdure.Submission) { j.Spec.PTY, j.Rows, j.Cols = true, 33, 101 })
	if r := s.until(Ended); r.ExitCode != 6 {
		t.Errorf("exit code = %d, want 6", r.ExitCode)
	}
	s.until(Sent)
	if got := s.logged(jobdir.Stdout); got != "33 101\r\nlast words" {
		t.Errorf("output of the terminal = %q, want its size and the last words", got)
	}
}

func TestEngineFactsBecomeEvents(t *testing.T) {
	w := newWorld(t)
	s := w.start(`grep "^{" "$1"`, func(j *Job, _ *perdure.Submission) {
		file, err := filepath.Abs("../adaptor/testdata/claude-code.txt")
		if err != nil {
			t.Fatal(err)
		}
		j.Spec.Command = append(j.Spec.Command, "sh", file)
		j.Spec.Engine = "claude-code"
	})
	s.until(Sent)
	r := s.ended(perdure.Completed, "")
	var p jobdir.Process
	if err := json.Unmarshal(r.Result, &p); err != nil {
		t.Fatal(err)
	}
	if p.SessionID == "" || p.Text == "" || p.InputTokens == 0 || p.OutputTokens == 0 || p.CostUSD == 0 ||
		p.ExitCode == nil {
		t.Errorf("result = %s, want session, text, tokens, cost and exit code", r.Result)
	}
	count := map[perdure.LineType]int{}
	for _, ev := range s.events() {
		count[ev.Type]++
	}
	for _, typ := range []perdure.LineType{perdure.LineDelta, perdure.LineToolStarted, perdure.LineToolCompleted} {
		if count[typ] == 0 {
			t.Errorf("the log has no %s: %v", typ, count)
		}
	}
	sentinel, err := s.dir().ReadSentinel()
	if err != nil || sentinel.AgentEngine != "claude-code" {
		t.Errorf("sentinel = %+v (error %v), want the engine claude-code", sentinel, err)
	}
}

// A run that names the kind of a pool and nothing else is a process with one attempt.
func TestPoolAnnouncesItsKind(t *testing.T) {
	w := newWorld(t)
	w.pool(1, nil)
	eventually.True(t, "the kind is announced", func() bool {
		k, err := w.C.Kind(t.Context(), Kind)
		return err == nil && k.Class == perdure.Process
	})
	r, err := w.C.Start(t.Context(), perdure.Submission{Kind: Kind, Queue: "builds",
		Input: json.RawMessage(`{"command":["sh","-c","exit 3"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	s := &started{w: w, id: r.RunID}
	if got := s.ended(perdure.Failed, CodeExit); got.Class != perdure.Process || got.MaxAttempts != 1 {
		t.Errorf("the run is a %s with %d attempts, want a process with 1", got.Class, got.MaxAttempts)
	}
}

// A pool that trusts a key executes what that key has signed, and rejects the rest before anything starts.
func TestPoolVerifiesSignatures(t *testing.T) {
	key := func(name string) (file string, trust string) {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		file = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		signer, err := perdure.NewSigner(text)
		if err != nil {
			t.Fatal(err)
		}
		return file, string(signer.Trust().Keys()[0].PEM())
	}
	ours, trusted := key("ours")
	_, foreign := key("foreign")
	for _, x := range []struct {
		name        string
		keys        []string
		trust       string
		state       perdure.State
		code        perdure.Code
		wantStarted bool
	}{
		{"signed by a trusted key", []string{ours}, trusted, perdure.Completed, "", true},
		{"signed by another key", []string{ours}, foreign, perdure.Failed, perdure.CodeSignatureInvalid, false},
		{"not signed", nil, trusted, perdure.Failed, perdure.CodeSignatureInvalid, false},
		{"not signed, and nobody asks", nil, "", perdure.Completed, "", true},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, func(o *embedded.Options) { o.SigningKeys = x.keys })
			w.pool(1, func(p *Pool) { p.Job.Trust = x.trust })
			witness := filepath.Join(t.TempDir(), "started")
			w.submit(sh("echo > "+witness)).ended(x.state, x.code)
			if _, err := os.Stat(witness); (err == nil) != x.wantStarted {
				t.Errorf("the command was started: %t, want %t", err == nil, x.wantStarted)
			}
		})
	}
}
