package model_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor/model"
)

// A turn with a tool: the model calls it, gets its result, and answers.
func Example() {
	script, _ := mockmodel.New(mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
			{Name: "weather", Arguments: map[string]any{"city": "Delft"}}}}},
		{Match: mockmodel.Match{Tool: "weather"},
			Answer: mockmodel.Answer{Text: "There is {{last}}: take an umbrella."}},
	}})
	endpoint := httptest.NewServer(script)
	defer endpoint.Close()

	c, err := model.New(model.Options{Models: []model.Endpoint{{BaseURL: endpoint.URL + "/v1", Model: "mock"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	messages := []model.Message{{Role: model.User, Content: "Do I need an umbrella in Delft?"}}
	for {
		answer, err := c.Complete(context.Background(), model.Request{Messages: messages,
			Tools:  []model.Tool{{Name: "weather", Description: "the weather of a city"}},
			OnText: func(text string) error { fmt.Print(text); return nil }})
		if err != nil {
			fmt.Println(err)
			return
		}
		messages = append(messages, answer.Message)
		if len(answer.Message.ToolCalls) == 0 {
			return
		}
		for _, call := range answer.Message.ToolCalls {
			fmt.Println("calls", call.Name, call.Arguments)
			messages = append(messages, model.Message{Role: model.ToolRole, ToolCallID: call.ID, Content: "rain"})
		}
	}
	// Output:
	// calls weather {"city":"Delft"}
	// There is rain: take an umbrella.
}
