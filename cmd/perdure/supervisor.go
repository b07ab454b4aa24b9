package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// scriptedSupervisor is the value of the setting supervisor that stands for a scripted model.
const scriptedSupervisor = "scripted"

// supervisorWorker is the name of the worker inside the server. Other workers are not called like that by chance.
const supervisorWorker = "supervisor@server"

// supervisorSlots is how many conversations and workers the server executes at once. They wait for the
// model most of the time, and those that wait for anything else take no slot.
const supervisorSlots = 256

// supervisorTenantSlots is how many of them one tenant may have.
const supervisorTenantSlots = supervisorSlots * 3 / 4

//go:embed scripted.toml
var script []byte

// supervisorOptions reads the configuration of a supervisor. For a scripted one it starts the model,
// which ends with the context.
func supervisorOptions(ctx context.Context, file string, log *slog.Logger) (supervisor.Options, error) {
	if file != scriptedSupervisor {
		cfg, err := supervisor.Load(file)
		if err != nil {
			return supervisor.Options{}, fmt.Errorf("supervisor: %w", err)
		}
		opt, err := cfg.Options()
		if err != nil {
			err = fmt.Errorf("supervisor: %s: %w", file, err)
		}
		return opt, err
	}
	rules, err := mockmodel.ParseTOML(script)
	if err != nil {
		return supervisor.Options{}, err
	}
	h, err := mockmodel.New(rules)
	if err != nil {
		return supervisor.Options{}, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return supervisor.Options{}, err
	}
	hs := server(h, log)
	go hs.Serve(l)
	context.AfterFunc(ctx, func() { hs.Close() })
	m, err := model.New(model.Options{Models: []model.Endpoint{
		{BaseURL: "http://" + l.Addr().String() + "/v1", Model: "scripted"}}})
	if err != nil {
		return supervisor.Options{}, err
	}
	shell, err := supervisor.Shell(supervisor.ShellOptions{Allow: []string{"df", "uptime"},
		Approve: supervisor.ApproveNever})
	return supervisor.Options{Model: m, WorkerTools: []supervisor.Tool{shell}}, err
}

// startSupervisor executes conversations of all tenants inside the server. The function that it returns
// stops that: results are delivered, and unfinished runs handed back.
func startSupervisor(ctx context.Context, file string, srv *embedded.Server, log *slog.Logger) (stop func() error,
	err error) {
	if srv.Key() == "" {
		return nil, errors.New("supervisor: it needs a platform key, and this node has none: perdure keys bootstrap")
	}
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	opt, err := supervisorOptions(working, file, log)
	if err != nil {
		cancel()
		return nil, err
	}
	s, err := supervisor.New(opt)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	closeServers := startServers(working, opt.MCP, log)
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{ID: supervisorWorker, AllTenants: true, AgentSlots: supervisorSlots,
		TenantSlots: supervisorTenantSlots, DrainTimeout: -1, Logger: log})
	s.Register(w)
	worked := make(chan error, 1)
	go func() { worked <- w.Run(working) }()
	return func() error {
		cancel()
		err := <-worked
		closeServers()
		return err
	}, nil
}

// startServers connects to MCP servers, so that the first conversation does not wait for them and the
// operator is told what is wrong. The function that it returns ends them, and their programs.
func startServers(ctx context.Context, c *mcp.Client, log *slog.Logger) (end func()) {
	if c == nil {
		return func() {}
	}
	c.SetLogger(log)
	go func() {
		tools, down := c.Tools(ctx)
		log.Info("mcp servers", "tools", len(tools), "unavailable", down)
	}()
	return c.Close
}
