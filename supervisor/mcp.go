package supervisor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/supervisor/mcp"
)

// An mcpTool is a tool of an MCP server. Each call is a child, which any worker with these servers
// executes.
type mcpTool struct{ mcp.Tool }

func (t mcpTool) Spec() Spec {
	return Spec{Name: t.Name, Parameters: t.Parameters,
		Description: fmt.Sprintf("(Tool of the server %s.) %s", t.Server, t.Description)}
}

func (t mcpTool) Start(ctx *agent.Context, call Call) (Pending, error) {
	in := mcp.Call{Server: t.Server, Tool: t.Tool.Tool, Arguments: call.Arguments}
	return Child(call, t.Name, agent.Spawn[json.RawMessage](ctx, mcp.Kind, in,
		agent.Options{OnStall: true, Class: perdure.Agent, Timeout: t.Timeout})), nil
}

// mcpTools returns the tools that a run has recorded.
func (l *limits) mcpTools() (out []Tool) {
	for _, t := range l.MCP {
		out = append(out, mcpTool{t})
	}
	return out
}

// unavailable tells the model which MCP servers had no tools to offer when the run began.
func unavailable(down map[string]string) string {
	if len(down) == 0 {
		return ""
	}
	return fmt.Sprintf("\n\nThese MCP servers are not available now, so you do not have their tools: %s.",
		strings.Join(slices.Sorted(maps.Keys(down)), ", "))
}

// checkServers refuses servers whose tools could have the name of another tool.
func checkServers(c *mcp.Client, tools []Tool) error {
	if c == nil {
		return nil
	}
	for _, s := range c.Servers() {
		for _, t := range tools {
			if name := t.Spec().Name; strings.HasPrefix(name, s+"_") {
				return fmt.Errorf("mcp: the tools of the server %s begin with %s_, and so does the tool %s", s, s, name)
			}
		}
	}
	return nil
}
