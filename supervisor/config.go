package supervisor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/supervisor/mcp"
	"github.com/perdure/perdure/supervisor/model"
)

// A Config is the configuration of a supervisor, as a file has it. Keys are never in it: it names a
// variable or a file for each. So it can be printed and logged.
type Config struct {
	// Models are the endpoints. The first one is called first, and the others are fallbacks.
	Models []ConfigModel `toml:"model"`
	System string        `toml:"system,omitempty"`

	MaxTurns           int              `toml:"max_turns,omitempty"`
	Window             int              `toml:"window,omitempty"`
	MaxResult          int              `toml:"max_result,omitempty"`
	MaxWorkers         int              `toml:"max_workers,omitempty"`
	MaxMemory          int64            `toml:"max_memory,omitempty"`
	MaxTenantMemory    int64            `toml:"max_tenant_memory,omitempty"`
	WorkerWait         perdure.Duration `toml:"worker_wait,omitempty"`
	RoundaboutInterval perdure.Duration `toml:"roundabout_interval,omitempty"`
	ToolTimeout        perdure.Duration `toml:"tool_timeout,omitempty"`
	SuspendTimeout     perdure.Duration `toml:"suspend_timeout,omitempty"`

	// ModelLimit is a limit of the tenant that each call of the model takes of.
	ModelLimit *Limit `toml:"model_limit,omitempty"`

	Budget Budget       `toml:"budget,omitempty"`
	Worker ConfigWorker `toml:"worker,omitempty"`
	Shell  *ConfigShell `toml:"shell,omitempty"`
	Tools  []ConfigTool `toml:"tool,omitempty"`
	MCP    []ConfigMCP  `toml:"mcp,omitempty"`
	Execs  []ConfigExec `toml:"exec,omitempty"`

	// dir is that of the file. Relative paths begin there.
	dir string
}

// A ConfigModel is an endpoint.
type ConfigModel struct {
	BaseURL  string `toml:"base_url"`
	Model    string `toml:"model"`
	Provider string `toml:"provider,omitempty"`
	// KeyEnv is the name of a variable that has the key, and KeyFile that of a file. Without both no key
	// is sent.
	KeyEnv        string           `toml:"key_env,omitempty"`
	KeyFile       string           `toml:"key_file,omitempty"`
	FirstToken    perdure.Duration `toml:"first_token,omitempty"`
	BetweenTokens perdure.Duration `toml:"between_tokens,omitempty"`
	// InputPrice, CachedInputPrice and OutputPrice are those of a million tokens.
	InputPrice       float64 `toml:"input_price,omitempty"`
	CachedInputPrice float64 `toml:"cached_input_price,omitempty"`
	OutputPrice      float64 `toml:"output_price,omitempty"`
}

// A ConfigWorker has what differs for workers.
type ConfigWorker struct {
	System string `toml:"system,omitempty"`
	Budget Budget `toml:"budget,omitempty"`
}

// A ConfigShell turns the tool shell on, for workers and for the supervisor.
type ConfigShell struct {
	// Allow has entries that are lists: see ShellOptions.
	Allow       commandList               `toml:"allow,omitempty"`
	Approve     string                    `toml:"approve,omitempty"`
	Approvers   perdure.ApprovalApprovers `toml:"approvers,omitempty"`
	Interpreter bool                      `toml:"interpreter,omitempty"`
	// User is whom commands are executed as, by a Host that can do that.
	User    string           `toml:"user,omitempty"`
	Dir     string           `toml:"dir,omitempty"`
	Env     []string         `toml:"env,omitempty"`
	Timeout perdure.Duration `toml:"timeout,omitempty"`
}

// A commandList is a list of commands, each a list of a program and its arguments.
type commandList [][]string

// UnmarshalTOML reads a list. One of names, as it once was, is refused with what to write instead.
func (l *commandList) UnmarshalTOML(v any) error {
	list, ok := v.([]any)
	if !ok {
		return errors.New(`shell.allow: it is a list of commands, such as [["df", "-h"], ["uptime"]]`)
	}
	*l = nil
	for i, e := range list {
		if name, ok := e.(string); ok {
			return fmt.Errorf("shell.allow: %q would allow every argument. Each entry is now a list of the program "+
				"and its arguments: write [%q] for it without arguments, [%q, \"-h\"] with this one. "+
				"\"*\" stands for one argument without / and without - at its beginning", name, name, name)
		}
		words, ok := e.([]any)
		if !ok {
			return fmt.Errorf("shell.allow[%d]: it is a list of a program and its arguments", i)
		}
		var entry []string
		for _, w := range words {
			word, ok := w.(string)
			if !ok {
				return fmt.Errorf("shell.allow[%d]: %v is no text", i, w)
			}
			entry = append(entry, word)
		}
		*l = append(*l, entry)
	}
	return nil
}

// A Host says what holds for the tools of a configuration where a supervisor is executed.
type Host struct {
	// Approvers decide about shell, commands and MCP servers that name nobody. Empty means those of the
	// tenant.
	Approvers perdure.ApprovalApprovers
	// ShellTenant is the only tenant that has a shell. Empty means all.
	ShellTenant perdure.TenantID
	// Confine returns what changes the shell's commands before they are started, such as to execute them
	// as another user.
	Confine func(*ConfigShell) (func(*exec.Cmd) error, error)
}

// A ConfigTool is a kind of runs that is a tool, for workers and for the supervisor.
type ConfigTool struct {
	Name        string `toml:"name"`
	Description string `toml:"description,omitempty"`
	Kind        string `toml:"kind"`
	// Parameters is a JSON Schema.
	Parameters map[string]any   `toml:"parameters,omitempty"`
	Repeatable bool             `toml:"repeatable,omitempty"`
	Timeout    perdure.Duration `toml:"timeout,omitempty"`
}

// A ConfigMCP is an MCP server whose tools are those of workers and of the supervisor. It is a command or
// an address.
type ConfigMCP struct {
	Name    string   `toml:"name"`
	Command string   `toml:"command,omitempty"`
	Args    []string `toml:"args,omitempty"`
	Dir     string   `toml:"dir,omitempty"`
	Env     []string `toml:"env,omitempty"`
	// PassEnv names variables of this process that the command gets, such as one with a key.
	PassEnv []string `toml:"pass_env,omitempty"`

	URL     string            `toml:"url,omitempty"`
	Headers map[string]string `toml:"headers,omitempty"`
	// KeyEnv is the name of a variable that has a key, and KeyFile that of a file. The key is sent as
	// the header Authorization: Bearer.
	KeyEnv  string `toml:"key_env,omitempty"`
	KeyFile string `toml:"key_file,omitempty"`

	Allow          []string         `toml:"allow,omitempty"`
	Approve        string           `toml:"approve,omitempty"`
	Timeout        perdure.Duration `toml:"timeout,omitempty"`
	SuspendTimeout perdure.Duration `toml:"suspend_timeout,omitempty"`

	Approvers perdure.ApprovalApprovers `toml:"approvers,omitempty"`
}

// A ConfigExec is a command that is a tool, for workers and for the supervisor. A runner executes it.
type ConfigExec struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description,omitempty"`
	Command     []string          `toml:"command"`
	Engine      string            `toml:"engine,omitempty"`
	Queue       string            `toml:"queue,omitempty"`
	Dir         string            `toml:"dir,omitempty"`
	Env         []string          `toml:"env,omitempty"`
	Secrets     map[string]string `toml:"secrets,omitempty"`
	Approve     string            `toml:"approve,omitempty"`
	Timeout     perdure.Duration  `toml:"timeout,omitempty"`

	Approvers perdure.ApprovalApprovers `toml:"approvers,omitempty"`
}

// maxConfig limits the bytes of a configuration, and of a file with a key.
const (
	maxConfig = 1 << 20
	maxKey    = 16 << 10
)

// Load reads a configuration from a TOML file, and checks it. It does not read keys.
func Load(path string) (*Config, error) {
	text, err := readFile(path, maxConfig)
	if err != nil {
		return nil, err
	}
	c, err := ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c.dir = filepath.Dir(path)
	return c, nil
}

// ParseConfig reads a configuration from TOML, and checks it. A name that it does not have is an error.
func ParseConfig(text []byte) (*Config, error) {
	var c Config
	meta, err := toml.Decode(string(text), &c)
	var syntax toml.ParseError
	switch {
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("line %d: %s: %s", syntax.Position.Line, syntax.LastKey,
			orElse(syntax.Message, syntax.Error()))
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "toml: "))
	}
	for _, key := range meta.Undecoded() {
		if len(key) == 2 && key[0] == "model" && key[1] == "key" {
			return nil, errors.New("model.key: a key does not belong into this file: use key_env or key_file")
		}
		if len(key) > 1 && key[0] == "tool" && key[1] == "parameters" {
			continue
		}
		return nil, fmt.Errorf("%s: there is no such setting", key)
	}
	return &c, c.Validate()
}

// Validate checks the configuration, without the keys.
func (c *Config) Validate() error {
	_, err := c.options(func(string, string) (string, error) { return "", nil }, &Host{
		Confine: func(*ConfigShell) (func(*exec.Cmd) error, error) { return nil, nil }})
	return err
}

// Options reads the keys, and returns the options of a supervisor.
func (c *Config) Options() (Options, error) { return c.OptionsFor(Host{}) }

// OptionsFor is Options for a host with rules of its own.
func (c *Config) OptionsFor(h Host) (Options, error) { return c.options(c.key, &h) }

// KeyFiles returns the files with keys that the configuration names.
func (c *Config) KeyFiles() (out []string) {
	for i := range c.Models {
		out = append(out, c.path(c.Models[i].KeyFile))
	}
	for i := range c.MCP {
		out = append(out, c.path(c.MCP[i].KeyFile))
	}
	return slices.DeleteFunc(out, func(p string) bool { return p == "" })
}

// path returns where a file is that the configuration names.
func (c *Config) path(file string) string {
	if file == "" || filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(c.dir, file)
}

// A keyReader reads a key from a variable or a file.
type keyReader func(env, file string) (string, error)

// key reads a key from a variable or a file.
func (c *Config) key(env, file string) (string, error) {
	switch {
	case env != "":
		key := os.Getenv(env)
		if key == "" {
			return "", fmt.Errorf("key_env: the variable %s is not set", env)
		}
		return key, nil
	case file != "":
		path := c.path(file)
		key, err := readFile(path, maxKey)
		if err != nil {
			return "", fmt.Errorf("key_file: %w", err)
		}
		if len(strings.TrimSpace(string(key))) == 0 {
			return "", fmt.Errorf("key_file: %s is empty", path)
		}
		return strings.TrimSpace(string(key)), nil
	}
	return "", nil
}

// options returns the options of a supervisor, with keys that a function reads.
func (c *Config) options(key keyReader, h *Host) (Options, error) {
	models := model.Options{Prices: map[string]model.Price{}}
	for i := range c.Models {
		m := &c.Models[i]
		if m.KeyEnv != "" && m.KeyFile != "" {
			return Options{}, fmt.Errorf("model[%d]: key_env and key_file: only one of them is possible", i)
		}
		k, err := key(m.KeyEnv, m.KeyFile)
		if err != nil {
			return Options{}, fmt.Errorf("model[%d]: %w", i, err)
		}
		models.Models = append(models.Models, model.Endpoint{BaseURL: m.BaseURL, Model: m.Model, Provider: m.Provider,
			Key: k, FirstToken: time.Duration(m.FirstToken), BetweenTokens: time.Duration(m.BetweenTokens)})
		price := model.Price{Input: m.InputPrice, Output: m.OutputPrice, CachedInput: m.CachedInputPrice}
		if price != (model.Price{}) {
			models.Prices[m.Model] = price
		}
	}
	client, err := model.New(models)
	if err != nil {
		return Options{}, err
	}
	tools, err := c.tools(h)
	if err != nil {
		return Options{}, err
	}
	servers, err := c.servers(key, h.Approvers)
	if err != nil {
		return Options{}, err
	}
	opt := Options{Model: client, System: c.System, WorkerSystem: c.Worker.System, Tools: tools, WorkerTools: tools,
		MCP:      servers,
		MaxTurns: c.MaxTurns, Window: c.Window, MaxResult: c.MaxResult, MaxWorkers: c.MaxWorkers,
		MaxMemory: c.MaxMemory, MaxTenantMemory: c.MaxTenantMemory,
		Budget: c.Budget, WorkerBudget: c.Worker.Budget, WorkerWait: time.Duration(c.WorkerWait),
		RoundaboutInterval: time.Duration(c.RoundaboutInterval), ToolTimeout: time.Duration(c.ToolTimeout),
		SuspendTimeout: time.Duration(c.SuspendTimeout)}
	if c.ModelLimit != nil {
		opt.ModelLimit = *c.ModelLimit
	}
	return opt, opt.Validate()
}

// tools returns the tools of the configuration.
func (c *Config) tools(h *Host) (out []Tool, err error) {
	if s := c.Shell; s != nil {
		opt := ShellOptions{Allow: s.Allow, Approve: s.Approve, Interpreter: s.Interpreter, Dir: s.Dir, Env: s.Env,
			Timeout: time.Duration(s.Timeout), Approvers: cmp.Or(s.Approvers, h.Approvers), Tenant: h.ShellTenant}
		switch {
		case h.Confine != nil:
			if opt.Confine, err = h.Confine(s); err != nil {
				return nil, fmt.Errorf("shell: %w", err)
			}
		case s.User != "":
			return nil, errors.New("shell: user: this program can't execute commands as another user")
		}
		t, err := Shell(opt)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	for i, t := range c.Tools {
		if err := perdure.CheckName("kind", t.Kind); err != nil {
			return nil, fmt.Errorf("tool[%d]: %w", i, err)
		}
		spec := Spec{Name: t.Name, Description: t.Description, Repeatable: t.Repeatable,
			Timeout: time.Duration(t.Timeout)}
		if t.Parameters != nil {
			if spec.Parameters, err = json.Marshal(t.Parameters); err != nil {
				return nil, fmt.Errorf("tool[%d]: parameters: %w", i, err)
			}
		}
		out = append(out, Run(spec, t.Kind, agent.Options{}))
	}
	for i, e := range c.Execs {
		t, err := Exec(ExecOptions{Name: e.Name, Description: e.Description, Command: e.Command, Engine: e.Engine,
			Queue: e.Queue, Dir: e.Dir, Env: e.Env, Secrets: e.Secrets, Approve: e.Approve,
			Approvers: cmp.Or(e.Approvers, h.Approvers),
			Timeout:   time.Duration(e.Timeout)})
		if err != nil {
			return nil, fmt.Errorf("exec[%d]: %w", i, err)
		}
		out = append(out, t)
	}
	return out, nil
}

// servers returns the MCP servers of the configuration.
func (c *Config) servers(key keyReader, approvers perdure.ApprovalApprovers) (*mcp.Client, error) {
	if len(c.MCP) == 0 {
		return nil, nil
	}
	opt := mcp.Options{Timeout: time.Duration(c.ToolTimeout), SuspendTimeout: time.Duration(c.SuspendTimeout),
		MaxResult: c.MaxResult}
	for i := range c.MCP {
		s, err := c.MCP[i].server(key, approvers)
		if err != nil {
			return nil, fmt.Errorf("mcp[%d]: %w", i, err)
		}
		opt.Servers = append(opt.Servers, s)
	}
	return mcp.New(opt)
}

// server returns an MCP server, with its key.
func (m *ConfigMCP) server(key keyReader, approvers perdure.ApprovalApprovers) (mcp.Server, error) {
	s := mcp.Server{Name: m.Name, Command: m.Command, Args: m.Args, Dir: m.Dir, Env: slices.Clone(m.Env), URL: m.URL,
		Headers: maps.Clone(m.Headers), Allow: m.Allow, Approve: m.Approve, Timeout: time.Duration(m.Timeout),
		SuspendTimeout: time.Duration(m.SuspendTimeout), Approvers: cmp.Or(m.Approvers, approvers)}
	switch {
	case m.KeyEnv != "" && m.KeyFile != "":
		return s, errors.New("key_env and key_file: only one of them is possible")
	case (m.KeyEnv != "" || m.KeyFile != "") && m.URL == "":
		return s, errors.New("key_env and key_file: they belong to a url; a command gets variables by pass_env")
	case len(m.PassEnv) > 0 && m.Command == "":
		return s, errors.New("pass_env: it belongs to a command")
	}
	for name := range m.Headers {
		if strings.EqualFold(name, "Authorization") {
			return s, errors.New("headers: a key does not belong into this file: use key_env or key_file")
		}
	}
	for _, name := range m.PassEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return s, fmt.Errorf("pass_env: %q is no name of a variable", name)
		}
		value, err := key(name, "")
		if err != nil {
			return s, fmt.Errorf("pass_env: the variable %s is not set", name)
		}
		s.Env = append(s.Env, name+"="+value)
	}
	k, err := key(m.KeyEnv, m.KeyFile)
	if err != nil {
		return s, err
	}
	if k != "" {
		if s.Headers == nil {
			s.Headers = make(map[string]string)
		}
		s.Headers["Authorization"] = "Bearer " + k
	}
	return s, nil
}

// readFile reads a file that is not too large.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, and may have %d", path, info.Size(), most)
	}
	return os.ReadFile(path)
}
