package settings

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/perdure/perdure"
)

// Flags has the flags of a command that reads the configuration.
type Flags struct {
	file             string
	policy, liveness []string
	// given has the values by the name of the setting. It lacks names without a flag in this
	// command.
	given map[string]string
}

// AddFlags adds the flags of the settings with these names, or of all.
func AddFlags(f *flag.FlagSet, names ...string) *Flags {
	c := &Flags{given: map[string]string{}}
	f.StringVar(&c.file, "config", "", "the server's TOML `file`, with the same names as the flags of perdure serve")
	for _, s := range Default().Table() {
		if _, ok := s.inPolicy(); !ok && (len(names) == 0 || slices.Contains(names, s.Name)) {
			c.add(f, &s)
		}
	}
	if len(names) == 0 {
		f.Func(policySection, "`name=value` of the policy, such as lease=30s; may be given again", into(&c.policy))
		f.Func(livenessSection, "`name=duration` of a kind or an activity, such as kind.report.silent=2m; may be "+
			"given again",
			into(&c.liveness))
	}
	return c
}

func (c *Flags) add(f *flag.FlagSet, s *Setting) {
	c.given[s.Name] = ""
	var notes []string
	if s.IsList() {
		notes = append(notes, "separated by commas")
	}
	if s.Allowed != "" {
		notes = append(notes, s.Allowed)
	}
	if text := s.Text(); text != "" {
		notes = append(notes, "default: "+text)
	}
	help := fmt.Sprintf("%s (%s)", s.Help, strings.Join(notes, "; "))
	set := func(text string) error { c.given[s.Name] = text; return nil }
	if _, ok := s.Value.(*bool); ok {
		f.BoolFunc(s.flagName(), help, set)
		return
	}
	f.Func(s.flagName(), help, set)
}

func into(list *[]string) func(string) error {
	return func(text string) error { *list = append(*list, text); return nil }
}

// Set sets a setting as its flag would, for a command that has the flag already.
func (c *Flags) Set(name, value string) { c.given[name] = value }

// Load reads the configuration from the file, the environment and the flags, and checks it.
// The environment is read for settings that the command has flags for, and for the policy and the
// thresholds.
func (c *Flags) Load(env func(string) string) (*Config, error) {
	cfg := Default()
	table := cfg.Table()
	values := map[string]any{}
	file := cmp.Or(c.file, env("PERDURE_CONFIG"))
	if cfg.File = file; file != "" {
		if err := cfg.readFile(file, table, values); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	give := func(name, text string) {
		if text != "" {
			values[name] = text
		}
	}
	for _, s := range table {
		text, ok := c.given[s.Name]
		if _, policy := s.inPolicy(); ok || policy {
			give(s.Name, env(s.Env()))
			give(s.Name, text)
		}
	}
	for _, item := range c.policy {
		name, text, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("--%s takes name=value, not %q", policySection, item)
		}
		if name = policySection + "." + name; find(table, name) == nil {
			return nil, unknown(name)
		}
		give(name, text)
	}
	for _, s := range table {
		v, ok := values[s.Name]
		if !ok {
			continue
		}
		if err := s.set(v); err != nil {
			return nil, err
		}
		cfg.given[s.Name] = true
	}
	if err := cfg.addThresholds(env("PERDURE_LIVENESS"), c.liveness); err != nil {
		return nil, err
	}
	return cfg, cfg.check()
}

func find(table []Setting, name string) *Setting {
	if i := slices.IndexFunc(table, func(s Setting) bool { return s.Name == name }); i >= 0 {
		return &table[i]
	}
	return nil
}

func unknown(name string) error { return fmt.Errorf("%s: there is no such setting", name) }

func notSection(name string) error {
	return fmt.Errorf("%s is a section, [%s], and not a value", name, name)
}

// readFile reads the values of a file by name, and its thresholds. A name that does not exist is an
// error.
func (c *Config) readFile(file string, table []Setting, values map[string]any) error {
	var tree map[string]any
	if _, err := toml.DecodeFile(file, &tree); err != nil {
		return err
	}
	return c.readSection("", tree, table, values)
}

func (c *Config) readSection(prefix string, tree map[string]any, table []Setting, values map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		name, inner := prefix+key, false
		for _, s := range table {
			inner = inner || strings.HasPrefix(s.Name, name+".")
		}
		sub, isSection := tree[key].(map[string]any)
		var err error
		switch {
		case strings.Contains(key, "."):
			err = unknown(name)
		case name == livenessSection && isSection:
			err = c.readThresholds(nil, sub)
		case name == doorsSection && isSection:
			// TOML has no list and sections of one name, so the doors that have a section are those that are on.
			values[name] = strings.Join(slices.Sorted(maps.Keys(sub)), ",")
			err = c.readSection(name+".", sub, table, values)
		case (inner || prefix == doorsSection+".") && isSection:
			err = c.readSection(name+".", sub, table, values)
		case inner && find(table, name) == nil || name == livenessSection:
			err = notSection(name)
		case find(table, name) == nil:
			err = unknown(name)
		default:
			values[name] = tree[key]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if the configuration could not work, or would not be safe.
func (c *Config) check() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: %q is not an address such as %s", c.Listen, DefaultListen)
	}
	if c.Dir == "" {
		return errors.New("data: a folder is needed")
	}
	if err := c.Options.Validate(); err != nil {
		return err
	}
	if _, err := c.NewLogger(io.Discard); err != nil {
		return err
	}
	return plain(c.Policy.Validate(), policySection+".")
}

// plain writes an error of the domain as those of the configuration are written. prefix is the
// section of its field.
func plain(err error, prefix string) error {
	var e *perdure.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	if strings.HasPrefix(e.Field, livenessSection) {
		prefix = ""
	}
	return fmt.Errorf("%s%s: %s", prefix, e.Field, e.Message)
}

// NewLogger returns the logger of the configuration.
func (c *Config) NewLogger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return nil, fmt.Errorf("log_level: %q is none of debug, info, warn, error", c.LogLevel)
	}
	opt := &slog.HandlerOptions{Level: level}
	switch c.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opt)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opt)), nil
	}
	return nil, fmt.Errorf("log_format: %q is neither text nor json", c.LogFormat)
}

// Loopback tells whether the server is reachable only from this machine.
func (c *Config) Loopback() bool {
	host, _, _ := net.SplitHostPort(c.Listen)
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// CheckListen returns an error if the server would be reachable from elsewhere without TLS, unless
// that is allowed explicitly. Keys and inputs could be read on the way.
func (c *Config) CheckListen() error {
	if c.Loopback() || c.TLSCert != "" || c.Insecure {
		return nil
	}
	return fmt.Errorf("listen: %s is reachable from other machines, and without TLS keys and data travel in "+
		"the clear. "+
		"Give tls_cert and tls_key (--tls-cert FILE --tls-key FILE); or set insecure (--insecure) if only a proxy "+
		"with TLS "+
		"can reach this address, or the network is to be trusted; or listen on %s", c.Listen, DefaultListen)
}
