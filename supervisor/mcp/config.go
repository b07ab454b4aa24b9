package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/perdure/perdure"
)

// Options configure a Client.
type Options struct {
	Servers []Server
	// Timeout limits a call, and SuspendTimeout the time that a person has to allow one. A server with a
	// longer time of its own has that. The defaults are one minute and ten minutes.
	Timeout, SuspendTimeout time.Duration
	// MaxResult limits the bytes of a result. The whole of a longer one is an artifact. The default is
	// 32 KiB.
	MaxResult int
	// Logger gets what servers do wrong. The default is the default logger.
	Logger *slog.Logger
}

// A Server is a program that is started, or an address.
type Server struct {
	// Name is the beginning of the names of its tools: 1 to 20 lower-case letters, digits and hyphens.
	Name string

	// Command is a program, with its arguments. It is started when it is needed.
	Command string
	Args    []string
	// Dir is its working directory. Empty means that of this process.
	Dir string
	// Env is its environment, as NAME=value. PATH, HOME and LANG are those of this process, and nothing
	// else of its environment is passed on.
	Env []string

	// URL is the address of a server that speaks streamable HTTP. Headers are sent with every request.
	URL     string
	Headers map[string]string

	// Connect returns a transport for another kind of server, such as one in this process.
	Connect func(ctx context.Context) (sdk.Transport, error)

	// Allow lists tools by the names that the server gives them. "*" means all.
	Allow []string
	// Approve says for which tools a person is asked: see the constants. Empty means ApproveUnlisted.
	Approve string
	// Approvers says whose keys decide. Empty means the approvers of the tenant.
	Approvers perdure.ApprovalApprovers
	// Timeout limits a call, and SuspendTimeout the time that a person has to allow one.
	Timeout, SuspendTimeout time.Duration
}

// Values of Server.Approve.
const (
	ApproveAlways   = "always"   // a person is asked about every call
	ApproveUnlisted = "unlisted" // tools on the list are called at once, and a person is asked about others
	ApproveNever    = "never"    // tools on the list are called at once, and there are no others
)

var (
	serverName = regexp.MustCompile(`^[a-z0-9-]{1,20}$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

// Validate checks the options.
func (o *Options) Validate() error {
	switch {
	case o.Timeout < 0 || o.SuspendTimeout < 0 || o.MaxResult < 0:
		return errors.New("mcp: a limit is negative")
	case len(o.Servers) > maxServers:
		return fmt.Errorf("mcp: there are %d servers, and %d are possible", len(o.Servers), maxServers)
	}
	seen := make(map[string]bool)
	for i := range o.Servers {
		s := &o.Servers[i]
		if err := s.validate(); err != nil {
			return fmt.Errorf("mcp[%d]: %w", i, err)
		}
		if seen[s.Name] {
			return fmt.Errorf("mcp[%d]: two servers have the name %s", i, s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

func (s *Server) validate() error {
	ways := 0
	for _, is := range []bool{s.Command != "", s.URL != "", s.Connect != nil} {
		if is {
			ways++
		}
	}
	switch {
	case !serverName.MatchString(s.Name):
		return fmt.Errorf("name: %q is not 1 to 20 lower-case letters, digits and hyphens", s.Name)
	case ways != 1:
		return errors.New("command and url: exactly one of them is needed")
	case s.Command == "" && (len(s.Args) > 0 || len(s.Env) > 0 || s.Dir != ""):
		return errors.New("args, env and dir: they belong to a command")
	case s.URL == "" && len(s.Headers) > 0:
		return errors.New("headers: they belong to a url")
	case strings.Contains(s.Command+s.Dir+strings.Join(s.Args, "")+strings.Join(s.Env, ""), "\x00"):
		return errors.New("command, args, env and dir: they can't have a NUL character")
	case s.Timeout < 0 || s.SuspendTimeout < 0:
		return errors.New("timeout and suspend_timeout: are not negative")
	case !slices.Contains([]string{"", ApproveAlways, ApproveUnlisted, ApproveNever}, s.Approve):
		return fmt.Errorf("approve: is %q, and may be always, unlisted or never", s.Approve)
	case s.Approve == ApproveNever && len(s.Allow) == 0:
		return errors.New("allow: is empty, and approve is never, so that no tool could be called")
	case slices.Contains(s.Allow, ""):
		return errors.New("allow: one name is empty")
	}
	if err := perdure.CheckApprovers("approvers", s.Approvers); err != nil {
		return err
	}
	for _, e := range s.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return fmt.Errorf("env: %q is not NAME=value", name)
		}
	}
	for name, value := range s.Headers {
		if !headerName.MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			return fmt.Errorf("headers: %q is no header", name)
		}
	}
	if s.URL == "" {
		return nil
	}
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("url: is no address that begins with http:// or https://")
	case u.User != nil:
		return errors.New("url: a password does not belong into it")
	}
	return nil
}

// withDefaults fills in what is not set.
func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.SuspendTimeout = cmp.Or(o.SuspendTimeout, 10*time.Minute)
	o.MaxResult = cmp.Or(o.MaxResult, maxResult)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Servers = slices.Clone(o.Servers)
	for i := range o.Servers {
		s := &o.Servers[i]
		s.Approve = cmp.Or(s.Approve, ApproveUnlisted)
		s.Timeout, s.SuspendTimeout = max(s.Timeout, o.Timeout), max(s.SuspendTimeout, o.SuspendTimeout)
	}
	return o
}

// listed tells whether a tool is on the list.
func (s *Server) listed(tool string) bool {
	return slices.Contains(s.Allow, "*") || slices.Contains(s.Allow, tool)
}

// offered tells whether a tool may be called at all, and asked whether a person is asked before.
func (s *Server) offered(tool string) bool { return s.Approve != ApproveNever || s.listed(tool) }
func (s *Server) asked(tool string) bool {
	return s.Approve == ApproveAlways || s.Approve == ApproveUnlisted && !s.listed(tool)
}

// header returns the headers of requests.
func (s *Server) header() http.Header {
	h := make(http.Header)
	for name, value := range s.Headers {
		h.Set(name, value)
	}
	return h
}
