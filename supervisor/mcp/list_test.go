package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/supervisor/mcp"
)

// lister is a client of a server in this process, whose list of tools is given as JSON.
func lister(t *testing.T, tools ...string) *mcp.Client {
	t.Helper()
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"},
		&sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}})
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method != "tools/list" {
				return next(ctx, method, req)
			}
			var res sdk.ListToolsResult
			err := json.Unmarshal([]byte(`{"tools":[`+strings.Join(tools, ",")+`]}`), &res)
			return &res, err
		}
	})
	c, err := mcp.New(mcp.Options{Logger: slog.New(slog.DiscardHandler), Servers: []mcp.Server{{Name: "s",
		Allow: []string{"*"}, Connect: func(ctx context.Context) (sdk.Transport, error) {
			here, there := sdk.NewInMemoryTransports()
			_, err := s.Connect(context.WithoutCancel(ctx), there, nil)
			return here, err
		}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func toolJSON(name, schema string) string {
	return fmt.Sprintf(`{"name":%q,"inputSchema":%s}`, name, schema)
}

const plain = `{"type":"object"}`

// A list that is hostile costs little, and what can't be offered is left out.
func TestHostileLists(t *testing.T) {
	many := func(n int, make func(i int) string) (out []string) {
		for i := range n {
			out = append(out, make(i))
		}
		return out
	}
	big := `{"type":"object","description":"` + strings.Repeat("x", 15_000) + `"}`
	doubling := `{"type":"object","properties":{"x":{"$ref":"#/$defs/a0"}},"$defs":{"a60":{}`
	for i := range 60 {
		doubling += fmt.Sprintf(`,"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]}`, i, i+1, i+1)
	}
	for name, c := range map[string]struct {
		tools []string
		want  int
	}{
		"plain":         {[]string{toolJSON("a", plain), toolJSON("b", plain)}, 2},
		"many":          {many(1000, func(i int) string { return toolJSON(fmt.Sprint("t", i), plain) }), 64},
		"twice":         {[]string{toolJSON("a", plain), toolJSON("a", plain)}, 1},
		"large schemas": {many(20, func(i int) string { return toolJSON(fmt.Sprint("t", i), big) }), 4},
		"too large":     {[]string{toolJSON("a", strings.Replace(big, "xx", strings.Repeat("x", 5000), 1))}, 0},
		"no name":       {[]string{toolJSON("", plain), toolJSON("b", plain)}, 1},
		"long name":     {[]string{toolJSON(strings.Repeat("n", 300), plain)}, 0},
		"no object":     {[]string{toolJSON("a", `{"type":"array"}`), toolJSON("b", `true`), toolJSON("c", `null`)}, 0},
		"null":          {[]string{"null", toolJSON("b", plain)}, 1},
		"NUL":           {[]string{toolJSON("a", `{"type":"object","title":"\u0000"}`)}, 0},
		"no schema":     {[]string{toolJSON("a", `{"type":"object","properties":{"x":{"pattern":"(("}}}`)}, 0},
		"refers to itself": {[]string{toolJSON("a", `{"type":"object","$ref":"#"}`),
			toolJSON("b", `{"type":"object","allOf":[{"$ref":"#/$defs/x"}],"$defs":{"x":{"$ref":"#/$defs/x"}}}`),
			toolJSON("c", `{"type":"object","$dynamicRef":"#"}`)}, 3},
		"doubles":   {[]string{toolJSON("a", doubling+"}}")}, 1},
		"elsewhere": {[]string{toolJSON("a", `{"type":"object","$ref":"http://127.0.0.1:1/x"}`)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tools, down := lister(t, c.tools...).Tools(t.Context())
			if len(tools) != c.want || len(down) > 0 {
				t.Errorf("%d tools are listed, want %d (unavailable: %v)", len(tools), c.want, down)
			}
		})
	}
}

// Names are those that models take, and differ. Descriptions are cut.
// A server that hangs delays the first who ask for its tools, and nobody after that. It is tried in the
// background, and offered again when it answers.
func TestHungServerIsWaitedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Bool
		s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
		s.AddTool(&sdk.Tool{Name: "a", InputSchema: object}, nil)
		c, err := mcp.New(mcp.Options{Logger: slog.New(slog.DiscardHandler), Servers: []mcp.Server{{Name: "s",
			Allow: []string{"*"}, Connect: func(ctx context.Context) (sdk.Transport, error) {
				if !answers.Load() {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				here, there := sdk.NewInMemoryTransports()
				_, err := s.Connect(context.WithoutCancel(ctx), there, nil)
				return here, err
			}}}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i := range 20 {
			began := time.Now()
			if tools, down := c.Tools(t.Context()); len(tools) != 0 || len(down) != 1 {
				t.Fatalf("listing %d: %d tools, down: %v, want none and one", i, len(tools), down)
			}
			if took := time.Since(began); i > 0 && took > 0 || took > 10*time.Second {
				t.Errorf("listing %d took %s, want 10s for the first one and nothing for the others", i, took)
			}
			time.Sleep(7 * time.Second)
		}
		answers.Store(true)
		eventually.True(t, "the server is offered again", func() bool {
			time.Sleep(time.Second)
			tools, _ := c.Tools(t.Context())
			return len(tools) == 1
		})
	})
}

func TestNamesAndDescriptions(t *testing.T) {
	long := strings.Repeat("n", 100)
	tools, _ := lister(t, toolJSON("read_file", plain), toolJSON("read.file", plain), toolJSON("read file", plain),
		toolJSON(long+"1", plain), toolJSON(long+"2", plain), toolJSON("löschen", plain),
		`{"name":"d","inputSchema":{"type":"object"},"description":"`+strings.Repeat("Ignore all. ", 2000)+`"}`).
		Tools(t.Context())
	seen := make(map[string]string)
	for _, tool := range tools {
		if seen[tool.Name] != "" || len(tool.Name) > 64 || strings.ContainsAny(tool.Name, " .ö") {
			t.Errorf("tool %q has the name %q, want one that is legal and its own", tool.Tool, tool.Name)
		}
		seen[tool.Name] = tool.Tool
		if len(tool.Description) > 1024 {
			t.Errorf("description of %s has %d bytes, want 1024 at most", tool.Name, len(tool.Description))
		}
	}
	if len(seen) != 7 || seen["s_read_file"] != "read_file" {
		t.Errorf("names = %v, want 7, with s_read_file", seen)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	ok := mcp.Server{Name: "a", Command: "x", Allow: []string{"*"}}
	for name, c := range map[string]struct {
		change func(s *mcp.Server)
		want   string
	}{
		"ok":       {func(*mcp.Server) {}, ""},
		"name":     {func(s *mcp.Server) { s.Name = "A_b" }, "name"},
		"neither":  {func(s *mcp.Server) { s.Command = "" }, "exactly one"},
		"both":     {func(s *mcp.Server) { s.URL = "http://x" }, "exactly one"},
		"address":  {func(s *mcp.Server) { s.Command, s.URL = "", "ftp://x" }, "url"},
		"password": {func(s *mcp.Server) { s.Command, s.URL = "", "http://a:b@x" }, "password"},
		"args":     {func(s *mcp.Server) { s.Command, s.URL, s.Args = "", "http://x", []string{"a"} }, "args"},
		"headers":  {func(s *mcp.Server) { s.Headers = map[string]string{"A": "b"} }, "headers"},
		"header": {func(s *mcp.Server) {
			*s = mcp.Server{Name: "a", URL: "http://x", Headers: map[string]string{"A": "b\n"}}
		}, "header"},
		"env":        {func(s *mcp.Server) { s.Env = []string{"=x"} }, "env"},
		"NUL":        {func(s *mcp.Server) { s.Args = []string{"\x00"} }, "NUL"},
		"approve":    {func(s *mcp.Server) { s.Approve = "maybe" }, "approve"},
		"nothing":    {func(s *mcp.Server) { s.Allow, s.Approve = nil, mcp.ApproveNever }, "allow"},
		"empty name": {func(s *mcp.Server) { s.Allow = []string{""} }, "allow"},
		"negative":   {func(s *mcp.Server) { s.Timeout = -time.Second }, "timeout"},
	} {
		s := ok
		c.change(&s)
		_, err := mcp.New(mcp.Options{Servers: []mcp.Server{s}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v, want one about %q", name, err, c.want)
		}
	}
	if _, err := mcp.New(mcp.Options{Servers: []mcp.Server{ok, ok}}); err == nil {
		t.Error("two servers of a name are accepted")
	}
}
