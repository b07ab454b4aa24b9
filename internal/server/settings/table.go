package settings

import (
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/sentinel"
)

// Config has the values of all settings.
type Config struct {
	embedded.Options

	Listen    string
	Insecure  bool
	LogLevel  string
	LogFormat string
	// Supervisor is the file of a supervisor, or "scripted".
	Supervisor string
	// Trial is set for "perdure dev": everybody who calls the server is its operator.
	Trial bool
	// File is the file that settings were read from. It may have passwords. Empty: none.
	File string

	// given has the names that a file, the environment or a flag has set.
	given map[string]bool
}

// Setting is a row of the table.
type Setting struct {
	perdure.Setting

	// Otherwise describes the effect of an empty or zero value.
	Otherwise string
	// Allowed describes the allowed values, if Min and Max do not.
	Allowed string
	// Address is set for a value that may contain a password.
	Address bool
}

// doorsSection is the list of doors, or in a file a section with a section for each door that is on.
const doorsSection = "doors"

// policySection is the section of the policy's settings in the file, and the flag that takes them.
const policySection = "policy"

// Env returns the name of the setting in the environment.
func (s *Setting) Env() string {
	return "PERDURE_" + strings.ToUpper(strings.ReplaceAll(s.Name, ".", "_"))
}

// Flag returns the setting as a flag, up to its value.
func (s *Setting) Flag() string {
	if name, ok := s.inPolicy(); ok {
		return "--" + policySection + " " + name + "="
	}
	return "--" + s.flagName()
}

func (s *Setting) flagName() string { return strings.NewReplacer("_", "-", ".", "-").Replace(s.Name) }

// inPolicy returns the name within the policy, and whether the setting is part of it.
func (s *Setting) inPolicy() (string, bool) { return strings.CutPrefix(s.Name, policySection+".") }

// Bounds describes the allowed values. It is empty if every value of the type is allowed.
func (s *Setting) Bounds() string {
	if s.Allowed != "" {
		return s.Allowed
	}
	return s.Setting.Bounds()
}

// DefaultListen is a loopback address: a server is reachable from elsewhere only if that is set.
const DefaultListen = "127.0.0.1:7373"

// DefaultData is the folder of the data.
const DefaultData = "perdure-data"

// Default returns the configuration without any settings.
func Default() *Config {
	c := &Config{Options: embedded.Options{Policy: new(perdure.Policy)}, given: map[string]bool{}}
	for _, s := range c.Table() {
		s.Reset()
	}
	return c
}

// Table has a row for each setting with a fixed name. The word in backquotes in a
// help text names the argument of its flag.
func (c *Config) Table() []Setting {
	limits := &c.TenantLimits
	bell := "in the process"
	if c.Store != "" {
		bell = "LISTEN/NOTIFY on the store"
	}
	table := []Setting{
		row("listen", &c.Listen, DefaultListen, "`address` to listen on").allows("host:port"),
		row("data", &c.Dir, DefaultData, "`folder` of the data"),
		row("store", &c.Store, nil, "`address` of a PostgreSQL database that several nodes share").
			otherwise("SQLite in the data folder").allows("postgres://…").masked(),
		row("doorbell", &c.Doorbell, nil,
			"`address` of the NATS that wakes other nodes, instead of LISTEN/NOTIFY where PostgreSQL is the "+
				"store; none: "+
				"by looking alone").
			otherwise(bell).allows("nats://… or none").masked(),
		row("hosts", &c.Hosts, nil,
			"host `names` that requests may be addressed to, beside IP addresses and localhost").
			otherwise("none"),
		row("origins", &c.Origins, nil, "`origins` of pages in browsers that may call the API").
			otherwise("none").allows("such as https://app.example.com"),
		row(doorsSection, &c.Doors, nil, "`names` of protocols of others to speak as well, each under /doors/<name>").
			otherwise("none; perdure dev: all").allows(strings.Join(embedded.DoorNames(), ", ")),
		row("door_root", &c.DoorRoot, nil, "`name` of the door that is served at the root as well").
			otherwise("none").allows("one of doors"),
		row(doorsSection+".langgraph.on_disconnect", &c.LangGraphOnDisconnect, nil,
			"`what` becomes of a run of the door langgraph whose caller asked to cancel it on a disconnect").
			otherwise(embedded.DisconnectContinues).
			allows(embedded.DisconnectContinues + " or " + embedded.DisconnectAsAsked),
		row("max_streams", &c.MaxStreams, nil, "`number` of streams that may be open at once").
			otherwise("three quarters of the file descriptors, and at most that").atLeast(1),
		row("max_streams_per_tenant", &c.TenantStreams, nil, "`number` of these that one tenant may have").
			otherwise("three quarters of them as soon as others call, too").atLeast(1),
		row("tenant_max_calls", &limits.MaxCalls, nil,
			"`number` of calls that a tenant may have under way on this node").
			otherwise("1536").atLeast(int64(1)),
		row("tenant_max_polls", &limits.MaxPolls, nil, "`number` of polls of a tenant that may wait on this node").
			otherwise("three quarters of those of the node as soon as others call, too").atLeast(int64(1)),
		row("tenant_max_live_runs", &limits.MaxLiveRuns, nil, "`number` of live runs that a tenant may have").
			otherwise(strconv.Itoa(embedded.DefaultLiveRuns)).atLeast(int64(1)),
		row("tenant_max_bytes_per_hour", &limits.MaxBytesPerHour, nil,
			"`bytes` of request bodies that this node accepts from a tenant in an hour while others call, too").
			otherwise("64 GiB").atLeast(int64(1)),
		row("public_url", &c.PublicURL, nil,
			"`address` at which clients reach the API: links in webhooks begin with it").
			otherwise("none, links are paths").allows("such as https://perdure.example.com"),
		row("webhook_allow", &c.WebhookAllow, nil, "private `networks` that webhooks may go to").
			otherwise("none").allows("such as 10.1.0.0/16"),
		row("webhook_ports", &c.WebhookPorts, nil, "`ports` that webhooks may go to on other networks").
			otherwise("80,443,8080,8443").allows("1 to 65535"),
		row("tls_cert", &c.TLSCert, nil,
			"`file` of the TLS certificate and its chain, in PEM; read again when it changes").
			otherwise("none, plain HTTP"),
		row("tls_key", &c.TLSKey, nil, "`file` of the certificate's private key, in PEM").otherwise("none"),
		row("insecure", &c.Insecure, nil,
			"listen beyond this machine without TLS: behind a proxy that has it, or where everybody may read the keys"),
		row("secrets", &c.Secrets, nil, "`names` of secrets that must not be written anywhere").
			otherwise("none").allows("env:NAME or file:PATH"),
		row("seal_keys", &c.SealKeys, nil,
			"`names` of keys that seal the store's root secret: the first seals, all open").
			otherwise("none, it is not sealed").allows("env:NAME or file:PATH"),
		row("signing_keys", &c.SigningKeys, nil,
			"`files` of private keys that runs are signed with: the first signs, all verify").
			otherwise("none, runs are not signed"),
		row("signing_required", &c.SigningRequired, nil,
			"`tenants` of which nothing is handed over unsigned, or * for all").
			otherwise("those of which the store says so"),
		row("insecure_key_file", &c.InsecureKeyFile, nil, "start although others than its owner can read admin.key"),
		row("supervisor", &c.Supervisor, nil,
			"`file` of a supervisor, which then answers chats inside the server; scripted: with a script instead "+
				"of a model").
			otherwise("none").allows("a TOML file, or scripted"),
		row("workspace", &c.Workspace, nil, "`folder` of the processes that this server watches").
			otherwise("none; perdure dev: workspace in the data folder"),
		row("sentinel_scan", &c.SentinelScan, sentinel.DefaultScan, "pause between two looks at the workspace").
			atLeast(time.Millisecond),
		row("reattach_window", &c.ReattachWindow, sentinel.DefaultReattachWindow,
			"how long a start waits for processes that may have outlived the server").atLeast(time.Millisecond),
		row("presumed_dead_after", &c.PresumedDeadAfter, sentinel.DefaultPresumedDeadAfter,
			"a process with an older heartbeat is not waited for, if its lock tells nothing").atLeast(time.Millisecond),
		row("workspace_retention", &c.WorkspaceRetention, sentinel.DefaultRetention,
			"how long the folder of an ended process is kept").atLeast(time.Millisecond),
		row("start_wait", &c.StartWait, embedded.DefaultStartWait,
			"how long a start waits for PostgreSQL; 0: it gives up at once").allows("0 or a duration"),
		row("log_level", &c.LogLevel, "info", "the least `level` that is logged").
			allows("debug, info, warn or error"),
		row("log_format", &c.LogFormat, "text", "`format` of the log").allows("text or json"),
	}
	for _, s := range c.Policy.Settings() {
		s.Name = policySection + "." + s.Name
		table = append(table, Setting{Setting: s})
	}
	return table
}

func row(name string, value, standard any, help string) Setting {
	return Setting{Setting: perdure.Setting{Name: name, Value: value, Default: standard, Help: help}}
}

func (s Setting) otherwise(words string) Setting { s.Otherwise = words; return s }
func (s Setting) allows(words string) Setting    { s.Allowed = words; return s }
func (s Setting) atLeast(n any) Setting          { s.Min = n; return s }
func (s Setting) masked() Setting                { s.Address = true; return s }
