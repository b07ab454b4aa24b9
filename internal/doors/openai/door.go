package openai

import (
	"net/http"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/openai/responses"
	"github.com/perdure/perdure/internal/doors/openai/shape"
	"github.com/perdure/perdure/internal/doors/openai/translate"
)

// Door is the door for clients of OpenAI's API.
func Door() *doors.Door {
	const one = "/v1/responses/{id}"
	return &doors.Door{Name: shape.Name, Refuse: refuse, Notify: translate.Notify,
		Exposes: []string{runHeader, "X-Should-Retry"},
		Accepts: []string{"Openai-Organization", "Openai-Project", "X-Stainless-Arch", "X-Stainless-Lang",
			"X-Stainless-Os", "X-Stainless-Package-Version", "X-Stainless-Retry-Count", "X-Stainless-Runtime",
			"X-Stainless-Runtime-Version", "X-Stainless-Timeout"},
		Routes: []doors.Route{
			{Method: "POST", Pattern: "/v1/responses", Handle: responses.Create},
			{Method: "GET", Pattern: one, Handle: responses.Retrieve},
			{Method: "DELETE", Pattern: one, Handle: responses.Remove},
			{Method: "POST", Pattern: one + "/cancel", Handle: responses.Cancel},
			{Method: "GET", Pattern: one + "/input_items", Handle: responses.InputItems},
			{Method: "GET", Pattern: "/v1/models", Handle: listModels},
			{Method: "GET", Pattern: "/v1/models/{model}", Handle: getModel},
			{Method: "POST", Pattern: "/v1/chat/completions", Handle: complete},
		}}
}

// runHeader has the id of the run of a chat completion.
const runHeader = "X-Perdure-Run-Id"

// refuse writes a refusal as OpenAI does. Clients retry 408, 409, 429 and every 5xx, so that a refusal
// which no retry mends has another status.
func refuse(p *api.Problem, h http.Header) (int, any) {
	status, typ := p.Status, "invalid_request_error"
	switch {
	case status == http.StatusUnauthorized:
		typ = "authentication_error"
	case status == http.StatusForbidden:
		typ = "permission_error"
	case status == http.StatusTooManyRequests:
		typ = "rate_limit_error"
	case status >= 500:
		typ = "server_error"
	case status == http.StatusMethodNotAllowed:
		status = http.StatusNotFound
	case status != http.StatusNotFound && status != http.StatusUnprocessableEntity:
		status = http.StatusBadRequest
	}
	if status < 500 && status != http.StatusTooManyRequests {
		h.Set("X-Should-Retry", "false")
	}
	e := &errorBody{Message: p.Detail, Type: typ, Code: string(p.Code)}
	if p.Field != "" {
		e.Param = &p.Field
	}
	return status, map[string]*errorBody{"error": e}
}

type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}
