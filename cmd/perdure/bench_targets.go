package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/watchdog"
)

var benchInput = json.RawMessage(`{"host":"cube","check":"disk"}`)

const benchTenant perdure.TenantID = "bench"

// processTarget is the engine without the API.
type processTarget struct {
	store  *store.Store
	engine *engine.Engine
	bell   *doorbell.Local
	stop   context.CancelFunc
	ended  chan error
}

func newProcessTarget(dir string) (benchTarget, error) {
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db")})
	if err != nil {
		return nil, err
	}
	t := &processTarget{store: s, bell: &doorbell.Local{}, ended: make(chan error, 1)}
	if t.engine, err = engine.New(s, engine.Options{Bell: t.bell}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	go func() { t.ended <- watchdog.New(t.engine, nil).Run(ctx) }()
	return t, nil
}

func (t *processTarget) name() string { return "process" }

func (t *processTarget) close() error {
	t.stop()
	return errors.Join(<-t.ended, t.store.Close())
}

func (t *processTarget) submit(ctx context.Context) error {
	return t.engine.Do(ctx, &engine.Submit{Tenant: benchTenant, Submission: perdure.Submission{Kind: "bench", Input: benchInput}})
}

func (t *processTarget) take(ctx context.Context, worker string, slots int, wait time.Duration) ([]benchLease, error) {
	op := &engine.Claim{Tenant: benchTenant, Worker: worker, Kinds: []string{"bench"}, Slots: slots, Start: true}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		rung, stop := t.bell.Listen(doorbell.Queue(benchTenant, perdure.DefaultQueue))
		err := t.engine.Do(ctx, op)
		if err != nil || len(op.Grants) > 0 || wait == 0 {
			stop()
			out := make([]benchLease, len(op.Grants))
			for i, g := range op.Grants {
				out[i] = benchLease{string(g.Run.ID), g.Run.Epoch}
			}
			return out, err
		}
		select {
		case <-rung:
			stop()
		case <-limit.C:
			stop()
			return nil, nil
		}
	}
}

func (t *processTarget) finish(ctx context.Context, worker string, l []benchLease) error {
	return together(len(l), func(i int) error {
		return t.engine.Do(ctx, &engine.Commit{Tenant: benchTenant, Worker: worker, Commit: benchDone(l[i])})
	})
}

func benchDone(l benchLease) perdure.Commit {
	return perdure.Commit{ID: "done", RunID: perdure.RunID(l.id), Epoch: l.epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: json.RawMessage(`{"used":"45%"}`)}}
}

// httpTarget is a whole server on a loopback socket.
type httpTarget struct {
	srv    *embedded.Server
	server *http.Server
	url    string
	client *http.Client
}

func newHTTPTarget(dir string) (benchTarget, error) {
	srv, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	t := &httpTarget{srv: srv, server: &http.Server{Handler: srv.Handler(), ReadHeaderTimeout: 5 * time.Second}, url: "http://" + l.Addr().String() + api.Prefix,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	go t.server.Serve(l)
	return t, nil
}

func (t *httpTarget) name() string { return "http" }

func (t *httpTarget) close() error {
	t.client.CloseIdleConnections()
	return errors.Join(t.server.Close(), t.srv.Close())
}

func (t *httpTarget) call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", t.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+t.srv.Key())
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

func (t *httpTarget) submit(ctx context.Context) error {
	var run api.Run
	return t.call(ctx, "/runs", map[string]any{"kind": "bench", "input": benchInput}, &run)
}

func (t *httpTarget) take(ctx context.Context, worker string, slots int, wait time.Duration) ([]benchLease, error) {
	var got api.Polled
	in := api.Poll{Kinds: []string{"bench"}, Slots: slots, Start: true, Wait: perdure.Duration(max(wait, time.Millisecond))}
	if err := t.call(ctx, "/workers/"+worker+"/poll", in, &got); err != nil {
		return nil, err
	}
	out := make([]benchLease, len(got.Runs))
	for i, g := range got.Runs {
		out[i] = benchLease{string(g.RunID), g.Epoch}
	}
	return out, nil
}

func (t *httpTarget) finish(ctx context.Context, worker string, l []benchLease) error {
	var in api.Commits
	for _, x := range l {
		in.Commits = append(in.Commits, benchDone(x))
	}
	var out api.CommitResults
	if err := t.call(ctx, "/workers/"+worker+"/commit", in, &out); err != nil {
		return err
	}
	for _, r := range out.Results {
		if r.Error != nil {
			return fmt.Errorf("commit of %s: %s", r.RunID, r.Error.Code)
		}
	}
	return nil
}
