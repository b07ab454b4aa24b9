// Chatbot: an agent that streams a model's answers and calls its tools, each recorded once, without an SDK.
//
//	PERDURE_URL=… PERDURE_KEY=… go run ./examples/chatbot -base http://127.0.0.1:11434/v1 -model llama3.2
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

func main() {
	m := Model{Key: os.Getenv("MODEL_KEY")}
	flag.StringVar(&m.BaseURL, "base", "http://127.0.0.1:11434/v1", "base `URL` of the model's API")
	flag.StringVar(&m.Name, "model", "llama3.2", "`name` of the model")
	flag.Parse()
	w := worker.New(client.New(os.Getenv("PERDURE_URL"), os.Getenv("PERDURE_KEY"), client.Options{}), worker.Options{})
	m.register(w)
	log.Fatal(w.Run(context.Background()))
}

func (m Model) register(w *worker.Worker) {
	worker.Agent(w, "chat", m.chat)
	// A tool is a kind of run of its own, and may as well be another program's, elsewhere.
	weather := func(_ context.Context, in struct{ City string }) (string, error) { return "rain in " + in.City, nil }
	worker.Handle(w, "weather", weather)
}

var tools = json.RawMessage(`[{"type":"function","function":{"name":"weather","description":"the weather of a city",
	"parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]`)

// chat answers the last message of its thread. A call of the model is a step, one of a tool a child.
func (m Model) chat(ctx *agent.Context, _ struct{}) (string, error) {
	said, err := ctx.History()
	if err != nil {
		return "", err
	}
	messages := make([]Message, len(said))
	for i, s := range said {
		messages[i].Role = string(s.Role)
		_ = json.Unmarshal(s.Content, &messages[i].Content) // what is no text has none
	}
	for range 10 {
		ask := func(ctx context.Context) (Message, error) { return m.complete(ctx, messages) }
		answer, err := agent.Step(ctx, "model", ask, agent.Retry{Attempts: 3})
		if err != nil {
			return "", err
		}
		if len(answer.ToolCalls) == 0 {
			return answer.Content, agent.Message(ctx, "assistant", answer.Content)
		}
		messages = append(messages, answer)
		var calls []*agent.Future[string]
		for _, call := range answer.ToolCalls {
			in := json.RawMessage(call.Function.Arguments)
			calls = append(calls, agent.Spawn[string](ctx, call.Function.Name, in, agent.Timeout(time.Minute)))
		}
		did, err := agent.JoinAllSettled(ctx, calls...)
		if err != nil {
			return "", err
		}
		for i, call := range answer.ToolCalls {
			if did.Errors[i] != nil {
				did.Results[i] = "error: " + did.Errors[i].Error() // the model may know a way round it
			}
			messages = append(messages, Message{Role: "tool", Content: did.Results[i], ToolCallID: call.ID})
		}
	}
	return "", perdure.Permanent(worker.Fail("too_many_turns", "the model calls tools and comes to no end"))
}

// A Model is one behind an endpoint for chat completions.
type Model struct{ BaseURL, Name, Key string }

// A Message is one of a conversation, as it is on that wire.
type Message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type ToolCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// complete asks for the next message, and streams its text as it comes.
func (m Model) complete(ctx context.Context, messages []Message) (out Message, err error) {
	// Texts can always be encoded.
	body, _ := json.Marshal(map[string]any{"model": m.Name, "messages": messages, "tools": tools, "stream": true})
	req, err := http.NewRequestWithContext(ctx, "POST", m.BaseURL+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + m.Key}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return out, err
	}
	defer res.Body.Close()
	if s := res.StatusCode; s/100 == 4 && s != http.StatusTooManyRequests { // asking again would not help
		return out, perdure.Permanent(fmt.Errorf("the model answers %s", res.Status))
	} else if s != http.StatusOK {
		return out, fmt.Errorf("the model answers %s", res.Status)
	}
	out.Role = "assistant"
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if data == "[DONE]" {
			return out, nil
		}
		var piece struct{ Choices []struct{ Delta Message } }
		if ok && json.Unmarshal([]byte(data), &piece) != nil || len(piece.Choices) == 0 {
			continue
		}
		delta := piece.Choices[0].Delta
		out.Content += delta.Content
		if err := agent.Delta(ctx, delta.Content); err != nil {
			return out, err
		}
		for _, call := range delta.ToolCalls {
			if call.Index < 0 || call.Index >= len(out.ToolCalls) { // what a model says is data
				out.ToolCalls = append(out.ToolCalls, call)
			} else {
				out.ToolCalls[call.Index].Function.Arguments += call.Function.Arguments
			}
		}
	}
	return out, io.ErrUnexpectedEOF // half an answer is none, and the step is tried again
}
