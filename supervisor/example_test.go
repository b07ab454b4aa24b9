package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
	"github.com/perdure/perdure/supervisor/model"
	"github.com/perdure/perdure/worker"
)

// A question, a tool and an answer. A scripted model stands for a real one.
func Example() {
	script, _ := mockmodel.New(mockmodel.Script{Rules: []mockmodel.Rule{
		{Match: mockmodel.Match{Role: "user"}, Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
			{Name: "weather", Arguments: map[string]any{"city": "Delft"}}}}},
		{Match: mockmodel.Match{Tool: "weather"},
			Answer: mockmodel.Answer{Text: "There is {{last}}: take an umbrella."}},
	}})
	endpoint := httptest.NewServer(script)
	defer endpoint.Close()

	m, err := model.New(model.Options{Models: []model.Endpoint{{BaseURL: endpoint.URL + "/v1", Model: "mock"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	weather := supervisor.Func(supervisor.Spec{
		Name: "weather", Description: "the weather of a city", Repeatable: true,
		Parameters: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
	}, func(_ context.Context, in struct{ City string }) (string, error) { return "rain in " + in.City, nil })
	s, err := supervisor.New(supervisor.Options{Model: m, Tools: []supervisor.Tool{weather}})
	if err != nil {
		fmt.Println(err)
		return
	}

	srv, err := embedded.Open(embedded.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	w := worker.New(c, worker.Options{})
	s.Register(w)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	drained := make(chan error, 1)
	go func() { drained <- w.Run(ctx) }()

	thread, err := c.CreateThread(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	run, _, err := c.Run(ctx, perdure.Submission{Kind: supervisor.Kind, ThreadID: thread.ThreadID,
		Messages: []perdure.Message{{Role: perdure.RoleUser, Content: client.JSON("Do I need an umbrella in Delft?")}},
	}, time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := client.Result[supervisor.Result](run)
	fmt.Println(out.Answer, err)
	stop()
	<-drained
	// Output:
	// There is rain in Delft: take an umbrella. <nil>
}
