// Package model calls a language model by the chat-completions API that OpenAI defined and that
// OpenRouter, Ollama, vLLM, llama.cpp and many others serve too. It streams the answer, assembles
// tool calls, and counts tokens and cost. It knows nothing of runs: the supervisor calls it in a
// step, and so may an agent of your own.
//
//	c, err := model.New(model.Options{Models: []model.Endpoint{
//		{BaseURL: "https://openrouter.ai/api/v1", Key: key, Model: "openai/gpt-5"},
//		{BaseURL: "http://127.0.0.1:11434/v1", Model: "llama3.2"}, // the fallback
//	}})
//	answer, err := c.Complete(ctx, model.Request{Messages: messages, Tools: tools, OnText: show})
//
// # One call
//
// [Client.Complete] sends the request to the first endpoint. A failure that may pass, such as a
// connection that breaks, is retried there with growing pauses. If it stays, or if the endpoint
// refuses the request, the next endpoint is called. The call ends with an answer, with an [*Error],
// or with the error of its context. Nothing but the context limits the time of a whole call: two
// timeouts limit the time until the first token and the time between tokens.
//
// Text is passed to Request.OnText as it comes. An attempt that fails after it has passed text on is
// repeated only if Request.OnRestart is set, because the new answer begins from its beginning. A
// durable step leaves it unset: the call fails, and the next try of the step tells its text anew.
//
// # Errors
//
// An [*Error] has one of three kinds. [Transient]: the endpoint was not reached, was busy, was too
// slow, or cut the stream; RetryAfter says when to try again, if the endpoint said so. [Permanent]:
// the endpoint refused the request. [Garbage]: the answer is not of this protocol, or too large. The
// codes say more, and [CodeContextLength] is the one to act on: the conversation has to become
// shorter. Errors have the methods FailureCode and Permanent, which steps of package agent look for.
// A recorded error is compared by its code:
//
//	errors.Is(err, &perdure.Error{Code: model.CodeContextLength})
//
// The words of a model are data. A tool call whose arguments are no JSON object is returned with
// ToolCall.Invalid set, and the caller answers it like any other call.
//
// # Bounds
//
// An answer has at most Options.MaxAnswer bytes of text, reasoning and arguments, and at most 128
// tool calls. A stream has at most 64 times as many bytes. Everything above is [Garbage]. Memory is
// in proportion to the answer, and not to the number of chunks.
//
// # Where to start reading
//
// client.go has the options, and the loop over endpoints and attempts. attempt.go is one exchange
// with its timeouts. stream.go assembles the answer from the frames of a stream, and toolcall.go
// decides which call a fragment belongs to. errors.go classifies failures.
package model
