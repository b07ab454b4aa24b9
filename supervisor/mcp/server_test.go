package mcp_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// serverVar makes this test program an MCP server. Its value is a file in which it notes effects.
const serverVar = "PERDURE_TEST_MCP_SERVER"

func TestMain(m *testing.M) {
	file := os.Getenv(serverVar)
	if file == "" {
		os.Exit(m.Run())
	}
	if text, err := os.ReadFile(file + ".crashes"); err == nil { // crashes at its start
		fmt.Fprintln(os.Stderr, "no licence", string(text))
		os.Exit(1)
	}
	if err := newTestServer(file).Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		os.Exit(1)
	}
}

type none struct{}

// note appends a line to a file.
func note(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}

// notes counts the lines of a file.
func notes(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// say returns a result with a text.
func say(text string) (*sdk.CallToolResult, any, error) {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
}

// newTestServer returns a server with tools that do everything wrong.
func newTestServer(file string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	add := func(name string, read bool, f func(ctx context.Context, req *sdk.CallToolRequest) (string, error)) {
		sdk.AddTool(s, &sdk.Tool{Name: name, Description: "does " + name,
			Annotations: &sdk.ToolAnnotations{ReadOnlyHint: read}},
			func(ctx context.Context, req *sdk.CallToolRequest, _ none) (*sdk.CallToolResult, any, error) {
				note(file, name)
				text, err := f(ctx, req)
				if err != nil {
					return nil, nil, err
				}
				return say(text)
			})
	}
	sdk.AddTool(s, &sdk.Tool{Name: "echo", Annotations: &sdk.ToolAnnotations{IdempotentHint: true}},
		func(_ context.Context, _ *sdk.CallToolRequest, in struct {
			Text string `json:"text"`
		}) (*sdk.CallToolResult, any, error) {
			return say("echo " + in.Text)
		})
	add("pay", false, func(context.Context, *sdk.CallToolRequest) (string, error) { return "paid", nil })
	add("fail", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		return "", fmt.Errorf("no paper")
	})
	add("crash", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		fmt.Fprintln(os.Stderr, "out of cheese")
		os.Exit(3)
		return "", nil
	})
	add("crash once", true, func(context.Context, *sdk.CallToolRequest) (string, error) {
		if text, _ := os.ReadFile(file); bytes.Count(text, []byte("crash once")) == 1 {
			os.Exit(3)
		}
		return "at last", nil
	})
	add("hang", false, func(context.Context, *sdk.CallToolRequest) (string, error) { select {} })
	add("freeze", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		note(file+".pid", fmt.Sprint(os.Getpid()))
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return "", err
		}
		select {} // another thread may be the first one that stops
	})
	add("slow", false, func(ctx context.Context, req *sdk.CallToolRequest) (string, error) {
		for range 200 { // until the test says that it has seen enough
			if _, err := os.Stat(file + ".go"); err == nil {
				return "slowly done", nil
			}
			_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{Message: "half way",
				Progress: 1, Total: 2, ProgressToken: req.Params.GetProgressToken()})
			time.Sleep(50 * time.Millisecond)
		}
		return "never told", nil
	})
	add("long", true, func(context.Context, *sdk.CallToolRequest) (string, error) {
		return strings.Repeat("long ", 40_000), nil
	})
	add("huge", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		return strings.Repeat("huge ", 2_000_000), nil
	})
	add("flood", false, func(ctx context.Context, req *sdk.CallToolRequest) (string, error) {
		for {
			p := &sdk.ProgressNotificationParams{Message: strings.Repeat("flood ", 10_000),
				ProgressToken: req.Params.GetProgressToken()}
			if err := req.Session.NotifyProgress(ctx, p); err != nil {
				return "", err
			}
		}
	})
	add("stderr", true, func(context.Context, *sdk.CallToolRequest) (string, error) {
		for range 1000 {
			fmt.Fprint(os.Stderr, strings.Repeat("noise ", 1000))
		}
		return "quiet now", nil
	})
	add("garbage", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		fmt.Println("{this is no JSON")
		select {}
	})
	add("bytes", true, func(context.Context, *sdk.CallToolRequest) (string, error) { return "a\x00b", nil })
	add("child", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			return "", err
		}
		note(file+".pid", fmt.Sprint(cmd.Process.Pid))
		return "started", nil
	})
	add("vanish", false, func(context.Context, *sdk.CallToolRequest) (string, error) {
		s.RemoveTools("pay")
		return "pay is gone", nil
	})
	s.AddTool(&sdk.Tool{Name: "image", InputSchema: object, Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "look:"},
				&sdk.ImageContent{MIMEType: "image/png", Data: []byte("pixels")}}}, nil
		})
	s.AddTool(&sdk.Tool{Name: "lie", InputSchema: object, Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true},
		OutputSchema: map[string]any{"type": "object", "required": []any{"n"},
			"properties": map[string]any{"n": map[string]any{"type": "integer"}}}},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{StructuredContent: map[string]any{"n": "none"}}, nil
		})
	return s
}

var object = map[string]any{"type": "object"}

// httpServer serves the tools by HTTP. It wants a key.
func httpServer(t *testing.T, file string) string {
	t.Helper()
	h := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return newTestServer(file) }, nil)
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer hush" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { hs.Config.Close() }) // without a wait for tools that hang
	return hs.URL
}
