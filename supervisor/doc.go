// Package supervisor is a chat agent that never loses an answer. It answers on a thread, calls tools,
// and delegates to workers. It uses the public packages of the SDK and nothing else, so it is also the
// longest example of how an agent is written.
//
//	local := model.Endpoint{BaseURL: "http://127.0.0.1:11434/v1", Model: "qwen3"}
//	m, err := model.New(model.Options{Models: []model.Endpoint{local}})
//	s, err := supervisor.New(supervisor.Options{Model: m, Tools: []supervisor.Tool{weather}})
//	s.Register(w) // a *worker.Worker
//
// A run of the kind "supervisor" answers the last message of its thread.
//
// # One run
//
// A run is a loop. The model gets the conversation and the tools. It answers, or it calls tools; then it
// gets their results, and so on. A call of the model is a step, and so is a call of a Go function. A
// worker is a child. After a crash the next execution finds the recorded answers and results in the
// journal, builds the same conversation from them, and goes on.
//
// The journal has each answer and each result once, so it grows with the conversation and not with
// its square. When the conversation fills the model's window, the model summarizes the older part.
//
// Messages that users write meanwhile are taken up before the next call of the model, and at the end.
//
// # Tools
//
// A [Tool] is a Go function ([Func]), a kind of runs ([Run]), or code of your own. The model is told
// about everything that goes wrong: unknown tools, malformed arguments, errors, timeouts, results that
// were cut. A function that is not safe to repeat is called at most once. Its run records that the call
// begins, and if a crash loses the result, the model is told that the outcome is unknown.
//
// Every conversation has the tools spawn_worker, wait_worker, list_workers, peek_worker,
// cancel_worker and ask_human. [Shell] is there if the options have it, and so are the tools of MCP
// servers. A call of one of those is a child.
//
// # Workers and the roundabout
//
// A worker is a run of its own, with a thread, a task, tools and a share of the budget. It leaves its
// conversation, its calls and its result as artifacts. The supervisor is suspended while it waits. No
// model is called as long as the worker is healthy. When the server reports it as slow or stale, the
// model is shown what a person would see, and decides. Nothing else cancels a worker.
//
// A worker that takes longer than the wait goes on in the background. The supervisor answers without
// it and ends its run with agent.Continue. When the worker has ended, a new run on the thread answers
// with its result.
//
// # How a run ends
//
// With an answer, always. A limit of turns or budget is a message of the assistant. If the model stays
// away for ten minutes, or refuses, the run fails, and the server says so in the thread. So it does for
// a cancelled run and a deadline.
//
// # What a model can't do
//
// Texts of models and tools are data. A model reaches the children of its own run and no other runs or
// threads. It can't approve anything, as that takes a key that workers don't have. It can't spawn
// beyond the budget or the number of workers. A program that the shell executes does not get the
// worker's environment.
//
// # What it is not
//
// It does not know the server, HTTP or a terminal. It does not decide who may ask. It has no memory
// beside the thread.
//
// # Where to start reading
//
//   - loop.go: the loop, and the calls of the model. It is all that a simple agent needs.
//   - tools.go: the interface of a tool. human.go and shell.go: two of them.
//   - children.go and roundabout.go: workers, and how a run waits for them. worker.go: the worker's side.
//   - trim.go: summaries. config.go: the configuration file. mcp.go: tools of MCP servers; package mcp calls them.
//
// # Invariants
//
//   - Everything that a run decides by is in its journal: answers, results, views of workers, and its limits.
//   - A tool with a recorded result is not called again.
//   - Each call of a message has a result before the model is called again.
//   - A run on a thread ends with a message in it.
package supervisor
