// Package mcp makes the tools of MCP servers callable from durable runs. A [Client] knows several
// servers, started as programs (stdio) or reached by HTTP (streamable HTTP). It lists their tools, and
// executes runs of the kind "mcp.call", each of which is one call of one tool.
//
//	c, err := mcp.New(mcp.Options{Servers: []mcp.Server{{Name: "files", Command: "mcp-files", Allow: []string{"*"}}}})
//	c.Register(w)                 // a *worker.Worker
//	tools, down := c.Tools(ctx)   // what there is to call
//	defer c.Close()
//
// # A call
//
// A call is an agent with few steps. It checks the tool and the arguments, asks a person if the server's
// policy says so, records that the call begins, and calls. The allow-list and the approval are decided
// here and not by whoever starts the run, so a run that somebody submits by hand has the same limits.
//
// A call whose result a crash has lost is repeated only if the tool says that this is harmless: with
// readOnlyHint or idempotentHint. Otherwise the run fails with [CodeOutcomeUnknown]. So it does if the
// server breaks the connection during the call.
//
// # Servers are not trusted
//
//   - A program that crashes is started again, after a pause that doubles up to a minute.
//   - A call has a timeout. After it the server is asked for a sign of life, and a program that gives
//     none is killed, with all processes of its group.
//   - Messages, results, logs, lists and schemas are limited in size and number: see limits.go.
//   - Arguments and results are checked against the tool's schemas. A schema that refers to itself, or
//     that would take long to check, is not used for that.
//   - Names that are no names of tools, or that collide, are replaced. Descriptions are cut.
//   - A server can't ask for anything: sampling, elicitation and roots are off.
//
// # What it is not
//
// It is no MCP server and no gateway. It does not know the supervisor, which imports it. One connection
// to a server is shared by all runs, so a server that keeps a state per connection mixes theirs.
//
// # Where to start reading
//
// call.go is one call as a run. server.go connects and reconnects. process.go has programs, http.go
// addresses. tools.go lists tools, schema.go checks values, result.go makes a text of a result.
package mcp
