package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/cmd/perdure/internal/confine"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// scriptedSupervisor is the value of the setting supervisor that stands for a scripted model.
const scriptedSupervisor = "scripted"

// supervisorWorker is the name of the worker inside the server. Its id ends with the server's
// instance.
const supervisorWorker = "supervisor@server"

// supervisorSlots is how many conversations and workers the server executes at once. They wait for the
// model most of the time, and those that wait for anything else take no slot.
const supervisorSlots = 256

// supervisorTenantSlots is how many of them one tenant may have.
const supervisorTenantSlots = supervisorSlots * 3 / 4

// supervisorMemory is how many bytes the conversations of a node hold at most, and supervisorTenantMemory
// those of one tenant, unless the configuration says otherwise.
const (
	supervisorMemory       = 256 << 20
	supervisorTenantMemory = 64 << 20
)

//go:embed scripted.toml
var script []byte

// supervisorScopes are those that the supervisor's key needs. It may not decide about approvals.
var supervisorScopes = []perdure.Scope{perdure.ScopePoll, perdure.ScopeReport, perdure.ScopeRead,
	perdure.ScopePlatformRead}

// supervisorHost returns what holds for the tools of the supervisor inside a server. One that serves
// tenants lets the platform decide about what touches its machine. Its shell is for the platform's own
// tenant, and executes commands that can't read what is the server's.
func supervisorHost(cfg *settings.Config, keyFiles []string) supervisor.Host {
	h := supervisor.Host{Confine: func(s *supervisor.ConfigShell) (func(*exec.Cmd) error, error) {
		if cfg.Trial && s.User == "" {
			return nil, nil
		}
		c, err := confine.New(confine.Options{User: s.User, Hidden: append(serverFiles(cfg), keyFiles...)})
		if err != nil {
			return nil, err
		}
		return c.Apply, nil
	}}
	if !cfg.Trial {
		h.Approvers, h.ShellTenant = perdure.ApproversPlatform, embedded.DefaultTenant
	}
	return h
}

// serverFiles returns the files and folders of the server that have secrets in them, or whose change
// would change the server.
func serverFiles(cfg *settings.Config) []string {
	out := []string{cfg.Dir, cfg.Workspace, cfg.File, cfg.TLSKey}
	out = append(out, cfg.SigningKeys...)
	for _, source := range slices.Concat(cfg.Secrets, cfg.SealKeys) {
		if file, ok := strings.CutPrefix(strings.TrimSpace(source), "file:"); ok {
			out = append(out, file)
		}
	}
	return out
}

// supervisorOptions reads the configuration of a supervisor. For a scripted one it starts the model,
// which ends with the context.
func supervisorOptions(ctx context.Context, of *settings.Config, log *slog.Logger) (supervisor.Options, error) {
	if file := of.Supervisor; file != scriptedSupervisor {
		cfg, err := supervisor.Load(file)
		if err != nil {
			return supervisor.Options{}, fmt.Errorf("supervisor: %w", err)
		}
		opt, err := cfg.OptionsFor(supervisorHost(of, cfg.KeyFiles()))
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
	host, as := supervisorHost(of, nil), ""
	if !of.Trial && os.Geteuid() == 0 {
		as = "nobody"
	}
	confined, err := host.Confine(&supervisor.ConfigShell{User: as})
	if err != nil {
		return supervisor.Options{}, fmt.Errorf("supervisor: shell: %w", err)
	}
	shell, err := supervisor.Shell(supervisor.ShellOptions{Allow: [][]string{{"df", "-h", "."}, {"uptime"}},
		Approve: supervisor.ApproveNever, Tenant: host.ShellTenant, Confine: confined})
	return supervisor.Options{Model: m, WorkerTools: []supervisor.Tool{shell}}, err
}

// startSupervisor executes conversations of all tenants inside the server. The function that it returns
// stops that: results are delivered, and unfinished runs handed back.
func startSupervisor(ctx context.Context, cfg *settings.Config, srv *embedded.Server, log *slog.Logger) (
	stop func() error, err error) {
	key, err := srv.OwnKey(supervisorWorker, supervisorScopes...)
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	opt, err := supervisorOptions(working, cfg, log)
	if err != nil {
		cancel()
		return nil, err
	}
	opt.MaxMemory = cmp.Or(opt.MaxMemory, supervisorMemory)
	opt.MaxTenantMemory = cmp.Or(opt.MaxTenantMemory, supervisorTenantMemory)
	s, err := supervisor.New(opt)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	closeServers := startServers(working, opt.MCP, log)
	c := client.New("http://perdure", key, client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{ID: supervisorWorker, AllTenants: true, AgentSlots: supervisorSlots,
		TenantSlots: supervisorTenantSlots, Full: s.Full, DrainTimeout: -1, Logger: log})
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
