package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// mcpVar makes this test program an MCP server. Its value is a file in which it notes calls.
const mcpVar = "PERDURE_TEST_MCP_SERVER"

// mcpServer has two tools, which end when there is a file. One says that it only reads.
func mcpServer(file string) error {
	s := sdk.NewServer(&sdk.Implementation{Name: "box", Version: "1"}, nil)
	for _, name := range []string{"read", "pay"} {
		sdk.AddTool(s, &sdk.Tool{Name: name, Annotations: &sdk.ToolAnnotations{ReadOnlyHint: name == "read"}},
			func(ctx context.Context, _ *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
				f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil {
					return nil, nil, err
				}
				fmt.Fprintln(f, name, os.Getpid())
				f.Close()
				for ctx.Err() == nil {
					if _, err := os.Stat(file + ".go"); err == nil {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: name + " is done"}}}, nil, nil
			})
	}
	if strings.HasSuffix(file, "hostile") {
		s.AddReceivingMiddleware(listHostile)
	}
	return s.Run(context.Background(), &sdk.StdioTransport{})
}

// listHostile adds tools to a list whose schemas refer to themselves, if case does not matter.
func listHostile(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		if list, ok := res.(*sdk.ListToolsResult); ok && err == nil {
			for i, keyword := range []string{"$ref", "$REF", "$Ref"} {
				list.Tools = append(list.Tools, &sdk.Tool{Name: fmt.Sprint("loop", i), InputSchema: json.RawMessage(
					fmt.Sprintf(`{"type":"object",%q:"#"}`, keyword))})
			}
		}
		return res, err
	}
}

// A tool server whose schemas refer to themselves does no harm: the node lives, and the other tools of
// that server are offered.
func TestHostileSchemaEndsNoNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "hostile")
	h, err := mockmodel.New(mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Role: "tool"}, Answer: mockmodel.Answer{Text: "It said: {{last}}"}},
		{Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
			{Name: "box_loop1", Arguments: obj{}}, {Name: "box_loop0", Arguments: obj{}},
			{Name: "box_read", Arguments: obj{}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	model := httptest.NewServer(h)
	t.Cleanup(model.Close)
	config := filepath.Join(dir, "supervisor.toml")
	text := fmt.Sprintf("[[model]]\nbase_url = %q\nmodel = \"m\"\n[[mcp]]\nname = \"box\"\n"+
		"command = %q\nenv = [%q]\nallow = [\"*\"]\n", model.URL+"/v1", os.Args[0], mcpVar+"="+file)
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o600),
		os.WriteFile(file+".go", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, append([]string{"--supervisor", config}, short...)...)
	var asked struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/chat", "ask", obj{"message": "go", "wait": "30s"}, &asked)
	eventually.True(t, "the answer is in the thread", func() bool {
		return strings.Contains(n.lastMessage(asked.ThreadID), "read is done")
	})
}

// A user asks for something that takes longer than anyone waits: a tool of an MCP server. The answer is
// deferred, and the server is killed during the call. Its MCP server dies with it. The next server
// calls a tool that reads once more, and tells that it does not know what became of the other one.
func TestMCPCallSurvivesItsServer(t *testing.T) {
	for tool, want := range map[string]string{"read": "Later: read is done", "pay": "Later: outcome unknown"} {
		t.Run(tool+"/SQLite", func(t *testing.T) { t.Parallel(); mcpSurvives(t, tool, want) })
		t.Run(tool+"/PostgreSQL", func(t *testing.T) {
			t.Parallel()
			mcpSurvives(t, tool, want, "--store", pgtest.New(t))
		})
	}
}

func mcpSurvives(t *testing.T, tool, want string, args ...string) {
	dir := t.TempDir()
	file := filepath.Join(dir, "calls")
	h, err := mockmodel.New(mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Role: "user", Last: "has ended in the background"},
			Answer: mockmodel.Answer{Text: "Later: {{last}}"}},
		{Match: mockmodel.Match{Role: "tool", Last: "works on in the background"},
			Answer: mockmodel.Answer{Text: "It takes a while."}},
		{Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{
			ToolCalls: []mockmodel.Call{{Name: "box_" + tool, Arguments: obj{}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	model := httptest.NewServer(h)
	t.Cleanup(model.Close)
	config := filepath.Join(dir, "supervisor.toml")
	text := fmt.Sprintf("worker_wait = \"1s\"\n[[model]]\nbase_url = %q\nmodel = \"m\"\n[[mcp]]\nname = \"box\"\n"+
		"command = %q\nenv = [%q]\nallow = [\"*\"]\n", model.URL+"/v1", os.Args[0], mcpVar+"="+file)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, append(append([]string{"--supervisor", config}, short...), args...)...)
	var asked struct {
		ThreadID string `json:"thread_id"`
	}
	n.insist("POST", "/api/v1/chat", "ask", obj{"message": "go", "wait": "100ms"}, &asked)
	eventually.True(t, "the answer is deferred", func() bool {
		return strings.Contains(n.lastMessage(asked.ThreadID), "It takes a while.")
	})
	var pid int
	if _, err := fmt.Sscanf(calls(t, file), tool+" %d", &pid); err != nil {
		t.Fatal(err)
	}
	n.kill(syscall.SIGKILL)
	eventually.True(t, "the MCP server has died with its server", func() bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err != nil || len(line) == 0
	})
	if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	eventually.True(t, "the answer is in the thread", func() bool {
		last := n.lastMessage(asked.ThreadID)
		return strings.HasPrefix(last, "Later: ") && strings.Contains(last, strings.TrimPrefix(want, "Later: "))
	})
	if made := strings.Count(calls(t, file), tool); tool == "pay" && made != 1 || tool == "read" && made != 2 {
		t.Errorf("%s was called %d times, want pay once and read twice", tool, made)
	}
}

// calls returns what an MCP server has noted.
func calls(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
