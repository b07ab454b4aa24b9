package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/doorbell"
)

// config is everything that can be set. Each item has one name: as a flag, in capitals with PERDURE_ before
// it in the environment, and in the file. What comes later in that order of files, environment and flags wins.
type config struct {
	Listen    string             `toml:"listen"`
	Data      string             `toml:"data"`
	Store     string             `toml:"store"`
	Doorbell  string             `toml:"doorbell"`
	Hosts     []string           `toml:"hosts"`
	Origins   []string           `toml:"origins"`
	Streams   int                `toml:"max_streams"`
	PerTenant int                `toml:"max_streams_per_tenant"`
	TLSCert   string             `toml:"tls_cert"`
	TLSKey    string             `toml:"tls_key"`
	Insecure  bool               `toml:"insecure"`
	Calls     int64              `toml:"tenant_max_calls"`
	Polls     int64              `toml:"tenant_max_polls"`
	LiveRuns  int64              `toml:"tenant_max_live_runs"`
	Bytes     int64              `toml:"tenant_max_bytes_per_hour"`
	PublicURL string             `toml:"public_url"`
	Hooks     []string           `toml:"webhook_allow"`
	HookPorts []int              `toml:"webhook_ports"`
	Signing   []string           `toml:"signing_keys"`
	Required  []string           `toml:"signing_required"`
	Secrets   []string           `toml:"secrets"`
	OpenKey   bool               `toml:"insecure_key_file"`
	Seal      []string           `toml:"seal_keys"`
	LogLevel  string             `toml:"log_level"`
	LogFormat string             `toml:"log_format"`
	Policy    map[string]setting `toml:"policy"`
	Liveness  livenessConfig     `toml:"liveness"`

	policy perdure.Policy
}

// defaultListen is loopback: a server is reachable from elsewhere only when somebody says so.
const defaultListen = "127.0.0.1:7373"

func defaults() config {
	return config{Listen: defaultListen, Data: "perdure-data", LogLevel: "info", LogFormat: "text", Policy: map[string]setting{}}
}

// A setting of the policy is a text, as in the environment and in flags; a whole number may be given as one in the file.
type setting string

func (s *setting) UnmarshalTOML(v any) error {
	switch v := v.(type) {
	case string:
		*s = setting(v)
	case int64:
		*s = setting(strconv.FormatInt(v, 10))
	default:
		return errors.New("a setting of the policy is a text such as \"30s\", or a whole number of bytes")
	}
	return nil
}

// configFlags are the flags of the commands that run a server.
type configFlags struct {
	file   *string
	items  map[string]*string
	policy policyFlag
}

// policyFlag collects name=duration.
type policyFlag []string

func (p *policyFlag) String() string     { return strings.Join(*p, ",") }
func (p *policyFlag) Set(s string) error { *p = append(*p, s); return nil }

func addConfigFlags(f *flagSet) *configFlags {
	d := defaults()
	c := &configFlags{items: map[string]*string{}}
	c.file = f.String("config", "", "TOML `file` with the same names as these flags")
	c.items["listen"] = f.String("listen", "", "`address` to listen on (default "+d.Listen+")")
	c.items["data"] = f.String("data", "", "`folder` of the data (default "+d.Data+")")
	addNodeFlags(f, c.items)
	addTLSFlags(f, c.items)
	c.items["hosts"] = f.String("hosts", "", "host `names` that requests may be addressed to, separated by commas")
	c.items["origins"] = f.String("origins", "", "`origins` of pages in browsers that may call the API, separated by commas, such as https://app.example.com")
	c.items["max_streams"] = f.String("max-streams", "", "`number` of streams that may be open at once (default, and at most: three quarters of the file descriptors)")
	c.items["max_streams_per_tenant"] = f.String("max-streams-per-tenant", "", "`number` of these that one tenant may have (default: three quarters of them as soon as others call, too)")
	for _, l := range d.tenantLimits() {
		c.items[l.name] = f.String(strings.ReplaceAll(l.name, "_", "-"), "", l.about)
	}
	c.items["public_url"] = f.String("public-url", "", "`address` at which clients reach the API, such as https://perdure.example.com: links in webhooks begin with it (default: they are paths)")
	c.items["webhook_allow"] = f.String("webhook-allow", "", "private `networks` that webhooks may go to, separated by commas, such as 10.1.0.0/16 (default: none)")
	c.items["webhook_ports"] = f.String("webhook-ports", "", "`ports` that webhooks may go to on other networks, separated by commas (default 80,443,8080,8443)")
	c.items["signing_keys"] = f.String("signing-keys", "", "`files` of private keys that runs are signed with, separated by commas: the first signs, all verify (default: runs are not signed)")
	c.items["signing_required"] = f.String("signing-required", "", "`tenants` of which nothing is handed over unsigned, separated by commas, or * for all (default: those of which the store says so)")
	c.items["secrets"] = f.String("secrets", "", "`names` of secrets that must not be written anywhere, env:NAME or file:PATH, separated by commas (default: none)")
	c.items["insecure_key_file"] = optional(f, "insecure-key-file", "start although others than its owner can read admin.key")
	c.items["seal_keys"] = f.String("seal-keys", "", "`names` of keys that seal the store's root secret, env:NAME or file:PATH, separated by commas: the first seals, all open (default: it is not sealed)")
	c.items["log_level"] = f.String("log-level", "", "debug, info, warn or error (default "+d.LogLevel+")")
	c.items["log_format"] = f.String("log-format", "", "text or json (default "+d.LogFormat+")")
	f.Var(&c.policy, "policy", "`name=duration` of the policy, such as lease=30s; may be given again")
	return c
}

// optional adds a flag that may stand without a value, which means true.
func optional(f *flagSet, name, about string) *string {
	var text string
	f.BoolFunc(name, about, func(v string) error {
		text = v
		return nil
	})
	return &text
}

// addNodeFlags adds what several nodes have in common.
func addNodeFlags(f *flagSet, items map[string]*string) {
	items["store"] = f.String("store", "", "`address` of a PostgreSQL database that several nodes share, postgres://… (default: SQLite in the data folder)")
	items["doorbell"] = f.String("doorbell", "", "`address` of the NATS that wakes other nodes, nats://… (default: LISTEN/NOTIFY where PostgreSQL is the store; none: by looking alone)")
}

// addTLSFlags adds what a listener needs to be reached from elsewhere.
func addTLSFlags(f *flagSet, items map[string]*string) {
	items["tls_cert"] = f.String("tls-cert", "", "`file` of the TLS certificate and its chain, in PEM; read again when it changes (default: plain HTTP)")
	items["tls_key"] = f.String("tls-key", "", "`file` of the certificate's private key, in PEM")
	items["insecure"] = new(string)
	f.Var((*boolFlag)(items["insecure"]), "insecure", "listen beyond this machine without TLS: behind a proxy that has it, or where everybody may read the keys")
}

// A boolFlag is a flag that needs no value, kept as the text that the environment would have.
type boolFlag string

func (b *boolFlag) String() string     { return string(*b) }
func (b *boolFlag) IsBoolFlag() bool   { return true }
func (b *boolFlag) Set(s string) error { *b = boolFlag(s); return nil }

// configure reads the flags of a command that runs a server, and everything else that is set.
func configure(f *flagSet, args []string) (config, error) {
	c := addConfigFlags(f)
	if err := parse(f, args); err != nil {
		return config{}, err
	}
	cfg, err := c.load(os.Getenv)
	if err == nil {
		err = cfg.checkListen()
	}
	return cfg, err
}

// load puts the configuration together and checks it.
func (c *configFlags) load(env func(string) string) (config, error) {
	cfg := defaults()
	file := *c.file
	if file == "" {
		file = env("PERDURE_CONFIG")
	}
	if file != "" {
		meta, err := toml.DecodeFile(file, &cfg)
		if err != nil {
			return cfg, fmt.Errorf("%s: %w", file, err)
		}
		if unknown := meta.Undecoded(); len(unknown) > 0 {
			return cfg, fmt.Errorf("%s: there is no setting %q", file, unknown[0].String())
		}
		for _, key := range meta.Keys() {
			if isSection(key) && meta.Type(key...) != "Hash" { // which is not read, and not told
				return cfg, fmt.Errorf("%s: %s is a section, [%s], and not a value", file, key, key)
			}
		}
		if cfg.Policy == nil {
			cfg.Policy = map[string]setting{}
		}
	}
	names := make([]string, 0, len(c.items))
	for name := range c.items {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, value := range []string{env("PERDURE_" + strings.ToUpper(name)), *c.items[name]} {
			if err := cfg.set(name, value); err != nil {
				return cfg, err
			}
		}
	}
	policy := perdure.DefaultPolicy()
	for _, s := range policy.Settings() {
		if v := env("PERDURE_POLICY_" + strings.ToUpper(s.Name)); v != "" {
			cfg.Policy[s.Name] = setting(v)
		}
	}
	for _, s := range policy.Sizes() {
		if v := env("PERDURE_POLICY_" + strings.ToUpper(s.Name)); v != "" {
			cfg.Policy[s.Name] = setting(v)
		}
	}
	for _, item := range c.policy {
		name, v, ok := strings.Cut(item, "=")
		if !ok {
			return cfg, fmt.Errorf("--policy takes name=duration, not %q", item)
		}
		cfg.Policy[name] = setting(v)
	}
	cfg.policy = policy
	return cfg, cfg.check()
}

// isSection tells whether a name in the file is that of a section.
func isSection(key []string) bool {
	switch {
	case key[0] == "policy", len(key) == 1:
		return len(key) == 1 && (key[0] == "policy" || key[0] == "liveness")
	case key[0] != "liveness":
		return false
	case key[1] == "kind" && len(key) > 3:
		return key[3] == "activity" && len(key) < 6
	}
	return len(key) < 4
}

func (cfg *config) set(name, value string) (err error) {
	if value == "" {
		return nil
	}
	switch name {
	case "listen":
		cfg.Listen = value
	case "data":
		cfg.Data = value
	case "store":
		cfg.Store = value
	case "doorbell":
		cfg.Doorbell = value
	case "hosts":
		cfg.Hosts = strings.Split(value, ",")
	case "origins":
		cfg.Origins = strings.Split(value, ",")
	case "max_streams":
		if cfg.Streams, err = strconv.Atoi(value); err != nil || cfg.Streams < 1 {
			return fmt.Errorf("max_streams: %q is no number of streams", value)
		}
	case "max_streams_per_tenant":
		if cfg.PerTenant, err = strconv.Atoi(value); err != nil || cfg.PerTenant < 1 {
			return fmt.Errorf("max_streams_per_tenant: %q is no number of streams", value)
		}
	case "tls_cert":
		cfg.TLSCert = value
	case "tls_key":
		cfg.TLSKey = value
	case "insecure":
		if cfg.Insecure, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("insecure: %q is neither true nor false", value)
		}
	case "tenant_max_calls", "tenant_max_polls", "tenant_max_live_runs", "tenant_max_bytes_per_hour":
		for _, l := range cfg.tenantLimits() {
			if l.name != name {
				continue
			}
			if *l.value, err = strconv.ParseInt(value, 10, 64); err != nil || *l.value < 1 {
				return fmt.Errorf("%s: %q is no number above 0", name, value)
			}
		}
	case "public_url":
		cfg.PublicURL = value
	case "webhook_allow":
		cfg.Hooks = strings.Split(value, ",")
	case "webhook_ports":
		cfg.HookPorts = nil
		for _, text := range strings.Split(value, ",") {
			port, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("webhook_ports: %q is no port, 1 to 65535", text)
			}
			cfg.HookPorts = append(cfg.HookPorts, port)
		}
	case "signing_keys":
		cfg.Signing = strings.Split(value, ",")
	case "signing_required":
		cfg.Required = strings.Split(value, ",")
	case "secrets":
		cfg.Secrets = strings.Split(value, ",")
	case "insecure_key_file":
		if cfg.OpenKey, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("insecure_key_file: %q is neither true nor false", value)
		}
	case "seal_keys":
		cfg.Seal = strings.Split(value, ",")
	case "log_level":
		cfg.LogLevel = value
	case "log_format":
		cfg.LogFormat = value
	}
	return nil
}

// A tenantLimit is a setting for tenants that have no limit of their own.
type tenantLimit struct {
	name, about, otherwise string
	value                  *int64
}

func (cfg *config) tenantLimits() []tenantLimit {
	return []tenantLimit{
		{"tenant_max_calls", "`number` of calls that a tenant may have under way on this node (default: 1536)", "1536", &cfg.Calls},
		{"tenant_max_polls", "`number` of polls of a tenant that may wait on this node (default: three quarters of those of the node as soon as others call, too)", "three quarters of those of the node", &cfg.Polls},
		{"tenant_max_live_runs", "`number` of live runs that a tenant may have (default: 2000000)", "2000000", &cfg.LiveRuns},
		{"tenant_max_bytes_per_hour", "`bytes` of request bodies that this node accepts from a tenant in an hour while others call, too (default: 64 GiB)", "64 GiB", &cfg.Bytes},
	}
}

// check refuses a configuration that could not work, or would not be safe.
func (cfg *config) check() error {
	if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
		return fmt.Errorf("listen: %q is not an address such as %s", cfg.Listen, defaultListen)
	}
	if cfg.Data == "" {
		return errors.New("data: a folder is needed")
	}
	if err := cfg.options(nil).Validate(); err != nil {
		return err
	}
	if _, err := cfg.logger(io.Discard); err != nil {
		return err
	}
	for name, given := range cfg.Policy {
		found, text := false, string(given)
		for _, s := range cfg.policy.Settings() {
			if s.Name != name {
				continue
			}
			d, err := time.ParseDuration(text)
			if err != nil {
				return fmt.Errorf("policy.%s: %q is not a duration such as 30s", name, text)
			}
			*s.Value, found = d, true
		}
		for _, s := range cfg.policy.Sizes() {
			if s.Name != name {
				continue
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("policy.%s: %q is not a number of bytes", name, text)
			}
			*s.Value, found = n, true
		}
		if !found {
			return fmt.Errorf("policy.%s: there is no such setting", name)
		}
	}
	cfg.policy.Liveness = cfg.Liveness.policy()
	if err := cfg.policy.Validate(); err != nil {
		return policyError(err)
	}
	return nil
}

// policyError names a setting as the file does.
func policyError(err error) error {
	var e *perdure.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	if strings.HasPrefix(e.Field, "liveness.") {
		return fmt.Errorf("%s: %s", e.Field, e.Message)
	}
	return fmt.Errorf("policy.%s: %s", e.Field, e.Message)
}

func (cfg *config) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		return nil, fmt.Errorf("log_level: %q is none of debug, info, warn, error", cfg.LogLevel)
	}
	opt := &slog.HandlerOptions{Level: level}
	switch cfg.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opt)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opt)), nil
	}
	return nil, fmt.Errorf("log_format: %q is neither text nor json", cfg.LogFormat)
}

func (cfg *config) options(log *slog.Logger) embedded.Options {
	return embedded.Options{Dir: cfg.Data, Store: cfg.Store, Doorbell: cfg.Doorbell, Policy: &cfg.policy, Hosts: cfg.Hosts, Origins: cfg.Origins,
		MaxStreams: cfg.Streams, TenantStreams: cfg.PerTenant, TenantLimits: perdure.TenantLimits{MaxCalls: cfg.Calls, MaxPolls: cfg.Polls, MaxLiveRuns: cfg.LiveRuns, MaxBytesPerHour: cfg.Bytes}, PublicURL: cfg.PublicURL, WebhookAllow: cfg.Hooks, WebhookPorts: cfg.HookPorts, Secrets: cfg.Secrets, SigningKeys: cfg.Signing, SigningRequired: cfg.Required, InsecureKeyFile: cfg.OpenKey,
		SealKeys: cfg.Seal, TLSCert: cfg.TLSCert, TLSKey: cfg.TLSKey, Logger: log}
}

// storeText and doorbellText say what is in force, without passwords.
func (cfg *config) storeText() string {
	if cfg.Store == "" {
		return "SQLite in the data folder"
	}
	return doorbell.Mask(cfg.Store)
}

func (cfg *config) doorbellText() string {
	switch {
	case cfg.Doorbell == "" && cfg.Store == "":
		return "in the process"
	case cfg.Doorbell == "":
		return "LISTEN/NOTIFY on the store"
	}
	return doorbell.Mask(cfg.Doorbell)
}

// loopback tells whether the server is reachable from this machine alone.
func (cfg *config) loopback() bool {
	host, _, _ := net.SplitHostPort(cfg.Listen)
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// checkListen refuses to be reached from elsewhere in the clear, unless that is asked for: keys and inputs would
// be read on the way.
func (cfg *config) checkListen() error {
	if cfg.loopback() || cfg.TLSCert != "" || cfg.Insecure {
		return nil
	}
	return fmt.Errorf("listen: %s is reachable from other machines, and without TLS keys and data travel in the clear. "+
		"Give tls_cert and tls_key (--tls-cert FILE --tls-key FILE); or set insecure (--insecure) if only a proxy with TLS can reach this address, "+
		"or the network is to be trusted; or listen on %s", cfg.Listen, defaultListen)
}

// configCommand is "perdure config check".
func configCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("config check", "Reads the configuration as the server would, says what is in force, and refuses what would not work.\n\n  perdure config check --config perdure.toml", stderr)
	c := addConfigFlags(f)
	asJSON := f.Bool("json", false, "print JSON")
	if len(args) == 0 || args[0] != "check" {
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
			f.Usage()
			return nil
		}
		fmt.Fprintln(stderr, "Usage: perdure config check [flags]")
		return errUsage
	}
	if err := parse(f, args[1:]); err != nil {
		return err
	}
	cfg, err := c.load(os.Getenv)
	if err == nil {
		err = cfg.checkListen()
	}
	if err != nil {
		return err
	}
	policy := map[string]string{}
	for _, s := range cfg.policy.Settings() {
		policy[s.Name] = s.Value.String()
	}
	for _, s := range cfg.policy.Sizes() {
		policy[s.Name] = strconv.FormatInt(*s.Value, 10)
	}
	if *asJSON {
		return printJSON(stdout, map[string]any{"listen": cfg.Listen, "data": cfg.Data, "store": doorbell.Mask(cfg.Store), "doorbell": doorbell.Mask(cfg.Doorbell), "hosts": cfg.Hosts,
			"origins": cfg.Origins, "max_streams": cfg.Streams, "max_streams_per_tenant": cfg.PerTenant, "tenant_max_calls": cfg.Calls, "tenant_max_polls": cfg.Polls,
			"tenant_max_live_runs": cfg.LiveRuns, "tenant_max_bytes_per_hour": cfg.Bytes, "tls_cert": cfg.TLSCert, "tls_key": cfg.TLSKey, "insecure": cfg.Insecure, "public_url": cfg.PublicURL, "webhook_allow": cfg.Hooks, "webhook_ports": cfg.HookPorts, "secrets": cfg.Secrets, "seal_keys": cfg.Seal, "signing_keys": cfg.Signing, "signing_required": cfg.Required, "insecure_key_file": cfg.OpenKey, "log_level": cfg.LogLevel, "log_format": cfg.LogFormat, "policy": policy, "liveness": cfg.Liveness})
	}
	streams := "three quarters of the file descriptors"
	if cfg.Streams > 0 {
		streams = strconv.Itoa(cfg.Streams)
	}
	share := "three quarters of them"
	if cfg.PerTenant > 0 {
		share = strconv.Itoa(cfg.PerTenant)
	}
	items := [][2]string{{"listen", cfg.Listen}, {"data", cfg.Data}, {"store", cfg.storeText()}, {"doorbell", cfg.doorbellText()},
		{"hosts", strings.Join(cfg.Hosts, ",")}, {"origins", strings.Join(cfg.Origins, ",")}, {"max_streams", streams}, {"max_streams_per_tenant", share},
		{"tls_cert", cfg.TLSCert}, {"tls_key", cfg.TLSKey}, {"insecure", strconv.FormatBool(cfg.Insecure)}, {"public_url", cfg.PublicURL}, {"webhook_allow", strings.Join(cfg.Hooks, ",")}, {"webhook_ports", joinPorts(cfg.HookPorts)}, {"secrets", strings.Join(cfg.Secrets, ",")}, {"seal_keys", strings.Join(cfg.Seal, ",")}, {"signing_keys", strings.Join(cfg.Signing, ",")}, {"signing_required", strings.Join(cfg.Required, ",")}, {"insecure_key_file", strconv.FormatBool(cfg.OpenKey)}, {"log_level", cfg.LogLevel}, {"log_format", cfg.LogFormat}}
	for _, l := range cfg.tenantLimits() {
		text := l.otherwise
		if *l.value > 0 {
			text = strconv.FormatInt(*l.value, 10)
		}
		items = append(items, [2]string{l.name, text})
	}
	for _, item := range items {
		fmt.Fprintln(stdout, strings.TrimRight(fmt.Sprintf("%-16s  %s", item[0], item[1]), " "))
	}
	fmt.Fprintln(stdout, "\n[policy]")
	for _, s := range cfg.policy.Settings() {
		mark := ""
		if _, ok := cfg.Policy[s.Name]; ok {
			mark = "  (set)"
		}
		fmt.Fprintf(stdout, "%-26s %s%s\n", s.Name, s.Value, mark)
	}
	for _, s := range cfg.policy.Sizes() {
		mark := ""
		if _, ok := cfg.Policy[s.Name]; ok {
			mark = "  (set)"
		}
		fmt.Fprintf(stdout, "%-26s %d%s\n", s.Name, *s.Value, mark)
	}
	cfg.Liveness.print(stdout)
	fmt.Fprintln(stdout, "\nThe configuration is good.")
	return nil
}

// joinPorts gives ports as they are given by a flag.
func joinPorts(ports []int) string {
	var list []string
	for _, p := range ports {
		list = append(list, strconv.Itoa(p))
	}
	return strings.Join(list, ",")
}
