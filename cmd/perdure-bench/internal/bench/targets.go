package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/cmd/internal/child"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

const tenant perdure.TenantID = "bench"

const kind = "bench"

// benchRun is the run that is submitted.
var benchRun = perdure.Submission{Kind: kind, Input: json.RawMessage(`{"host":"cube","check":"disk"}`)}

var benchResult = json.RawMessage(`{"used":"45%"}`)

// A system is what is measured: the engine in this process, or a server over HTTP.
type system interface {
	submit(ctx context.Context, sub perdure.Submission) (id string, err error)
	// ended tells whether a run has ended.
	ended(ctx context.Context, id string) (bool, error)
	// take polls for up to slots runs, and waits for the first.
	take(ctx context.Context, worker string, slots int, wait time.Duration) ([]grant, error)
	finish(ctx context.Context, worker string, l []grant) error
	// The CPU time of the engine in this process includes that of the callers.
	cpuMeter
	close() error
}

type grant struct {
	id    string
	epoch int64
}

func (l grant) done() perdure.Commit {
	return perdure.Commit{ID: "done", RunID: perdure.RunID(l.id), Epoch: l.epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: benchResult}}
}

// target opens a target on a place.
func (p *place) target(ctx context.Context, target string) (system, error) {
	if target == targetHTTP {
		return openServer(ctx, p, "node")
	}
	t, err := openProcess(p)
	if err != nil {
		return nil, err
	}
	t.startWatchdog()
	return t, nil
}

// processTarget is the engine without the API.
type processTarget struct {
	store  *store.Store
	engine *engine.Engine
	bell   *doorbell.Local
	stop   context.CancelFunc
	gone   chan error
}

// openProcess opens an engine without a watchdog.
func openProcess(p *place) (*processTarget, error) {
	s, err := p.open()
	if err != nil {
		return nil, err
	}
	t := &processTarget{store: s, bell: &doorbell.Local{}}
	policy := p.policy()
	if t.engine, err = engine.New(s, engine.Options{Bell: t.bell, Policy: &policy}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return t, nil
}

// never is a duration longer than any scenario. Alerts after it do not happen: they would write
// every run of a large backlog in the middle of a measurement.
const never = 24 * time.Hour

// startWatchdog runs the watchdog.
func (t *processTarget) startWatchdog() {
	ctx, stop := context.WithCancel(context.Background())
	t.stop, t.gone = stop, make(chan error, 1)
	go func() { t.gone <- watchdog.New(t.engine, nil).Run(ctx) }()
}

func (t *processTarget) close() error {
	var err error
	if t.stop != nil {
		t.stop()
		err = <-t.gone
	}
	return errors.Join(err, t.store.Close())
}

// load submits runs in large batches, which is faster than single calls. sub gets the instant at
// which they are accepted. It returns the id of the last run.
func (t *processTarget) load(ctx context.Context, b *Bench, n int,
	sub func(now perdure.Instant) perdure.Submission) (last perdure.RunID, err error) {
	const batch = 500
	for n > 0 && ctx.Err() == nil {
		now := t.store.Now()
		s := sub(now)
		ops := make([]kernel.Op, min(n, batch))
		for i := range ops {
			ops[i] = &life.Submit{Tenant: tenant, Submission: s}
		}
		for _, err := range t.engine.Step(now, ops...) {
			if err != nil {
				return "", fmt.Errorf("load: %w", err)
			}
		}
		last = ops[len(ops)-1].(*life.Submit).Run.ID
		n -= len(ops)
		b.did(len(ops))
	}
	return last, ctx.Err()
}

func (t *processTarget) cpu() time.Duration { return ownCPU() }

// ownCPU returns the CPU time of this process so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u) // can't fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (t *processTarget) submit(ctx context.Context, sub perdure.Submission) (string, error) {
	op := &life.Submit{Tenant: tenant, Submission: sub}
	err := t.engine.Do(ctx, op)
	return string(op.Run.ID), err
}

func (t *processTarget) ended(ctx context.Context, id string) (bool, error) {
	d, err := t.engine.Runs.Get(ctx, tenant, perdure.RunID(id))
	if err != nil {
		return false, err
	}
	return d.State.Terminal(), nil
}

func (t *processTarget) take(ctx context.Context, worker string, slots int, wait time.Duration) ([]grant, error) {
	op := &dispatch.Claim{Tenant: tenant, Worker: worker, Kinds: []string{kind}, Slots: slots, Start: true}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		rung, stop := t.bell.Listen(doorbell.Queue(tenant, perdure.DefaultQueue))
		err := t.engine.Do(ctx, op)
		if err != nil || len(op.Grants) > 0 {
			stop()
			out := make([]grant, len(op.Grants))
			for i, g := range op.Grants {
				out[i] = grant{string(g.Run.ID), g.Run.Epoch}
			}
			return out, err
		}
		select {
		case <-rung:
			stop()
		case <-limit.C:
			stop()
			return nil, nil
		case <-ctx.Done():
			stop()
			return nil, ctx.Err()
		}
	}
}

func (t *processTarget) finish(ctx context.Context, worker string, l []grant) error {
	return parallel(len(l), func(i int) error {
		op := &life.Commit{Tenant: tenant, Worker: worker, Commit: l[i].done()}
		if err := t.engine.Do(ctx, op); err != nil {
			return err
		}
		if op.Refused != nil {
			return op.Refused
		}
		return nil
	})
}

// httpTarget is "perdure serve" as a process, called with a key of a tenant. With profiles it is a server
// of this program.
type httpTarget struct {
	server *child.Process
	up     time.Duration // from the start of the process until it printed its address
	url    string
	key    string
	client *http.Client
}

// openServer starts a server on a place.
func openServer(ctx context.Context, p *place, node string) (*httpTarget, error) {
	t, err := startBare(ctx, p, node)
	if err != nil {
		return nil, err
	}
	if t.key, err = tenantKey(ctx, client.New(t.url, t.key, client.Options{})); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// tenantKey creates a key of the tenant. With a platform key the server would look up the tenant of
// each run.
func tenantKey(ctx context.Context, c *client.Client) (string, error) {
	defer c.Close()
	return keyOf(ctx, c, tenant)
}

// keyOf creates a key of a tenant.
func keyOf(ctx context.Context, c *client.Client, of perdure.TenantID) (string, error) {
	in := api.CreateKey{Name: "bench"}
	for _, s := range perdure.TenantScopes {
		in.Scopes = append(in.Scopes, string(s))
	}
	k, err := admin.New(c).CreateTenantKey(ctx, of, in)
	if err != nil {
		return "", err
	}
	return k.Secret, nil
}

// startBare starts a server and makes no calls yet. Its key is the platform key.
func startBare(ctx context.Context, p *place, node string) (*httpTarget, error) {
	begin := time.Now()
	var server *child.Process
	var err error
	if p.profiles != "" {
		server, err = child.Start(ctx, "server", p.serveEnv(),
			append([]string{ServeCommand, p.profiles}, p.serveFlags(node)...)...)
	} else {
		server, err = child.StartProgram(ctx, p.program, "server", p.serveEnv(),
			append([]string{"serve"}, p.serveFlags(node)...)...)
	}
	if err != nil {
		return nil, err
	}
	if !server.Out.Scan() { // the server prints its address
		return nil, server.Gone(ctx)
	}
	t := &httpTarget{server: server, up: time.Since(begin), url: server.Out.Text(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}}
	key, err := os.ReadFile(filepath.Join(p.data(node), embedded.KeyFile))
	if err == nil {
		p.key = strings.TrimSpace(string(key))
	} else if p.key == "" {
		return nil, errors.Join(err, t.close())
	}
	t.key = p.key
	return t, nil
}

// close ends the server with SIGTERM.
func (t *httpTarget) close() error {
	t.client.CloseIdleConnections()
	if t.server.Dead {
		return nil
	}
	t.server.Dead = true
	t.server.Cmd.Process.Signal(syscall.SIGTERM)
	if err := t.server.Cmd.Wait(); err != nil {
		return fmt.Errorf("the server ended badly: %w %s", err, strings.TrimSpace(t.server.Errors.String()))
	}
	return nil
}

func (t *httpTarget) cpu() time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.server.Cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(b), ") ") // after the name, which may contain anything
	var ticks time.Duration
	if f := strings.Fields(rest); len(f) > 12 {
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		ticks = time.Duration(user + system)
	}
	return ticks * 10 * time.Millisecond // Linux reports it in hundredths of a second
}

func (t *httpTarget) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, t.url+api.Prefix+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+t.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s: %d %s", path, res.StatusCode, b)
	}
	return json.Unmarshal(b, out)
}

// brief is the part of an answer that is decoded. Callers share the CPU with the server, so they do
// no more than necessary.
type brief struct {
	RunID string        `json:"run_id"`
	Epoch int64         `json:"epoch"`
	State perdure.State `json:"state"`
}

func (t *httpTarget) submit(ctx context.Context, sub perdure.Submission) (string, error) {
	var run brief
	err := t.call(ctx, "POST", "/runs", sub, &run)
	return run.RunID, err
}

func (t *httpTarget) ended(ctx context.Context, id string) (bool, error) {
	var run brief
	err := t.call(ctx, "GET", "/runs/"+id, nil, &run)
	return run.State.Terminal(), err
}

func (t *httpTarget) take(ctx context.Context, worker string, slots int, wait time.Duration) ([]grant, error) {
	var got struct {
		Runs []brief `json:"runs"`
	}
	in := api.Poll{Kinds: []string{kind}, Slots: slots, Start: true,
		Wait: perdure.Duration(max(wait, time.Millisecond))}
	if err := t.call(ctx, "POST", "/workers/"+worker+"/poll", in, &got); err != nil {
		return nil, err
	}
	out := make([]grant, len(got.Runs))
	for i, g := range got.Runs {
		out[i] = grant{g.RunID, g.Epoch}
	}
	return out, nil
}

func (t *httpTarget) finish(ctx context.Context, worker string, l []grant) error {
	in := api.Commits{Commits: make([]perdure.Commit, len(l))}
	for i, x := range l {
		in.Commits[i] = x.done()
	}
	var out api.CommitResults
	if err := t.call(ctx, "POST", "/workers/"+worker+"/commit", in, &out); err != nil {
		return err
	}
	for _, r := range out.Results {
		if r.Error != nil {
			return fmt.Errorf("commit of %s: %s", r.RunID, r.Error.Code)
		}
	}
	return nil
}
