// Package openai is the door for clients of OpenAI's API: the Responses API, the list of models, and
// chat completions.
//
// # How it works
//
// A response is a run. Its id is resp_ and the run's id in hexadecimal digits; the model is its kind.
// Each run has a thread, so that a later response can go on from it. Fields of the request for
// which the run has no place stand in the run's metadata (request.go).
//
// A translator (translate.go) turns the lines of the log into events. All answers come from it: a
// stream writes the events, and an answer that waits has the response of the last one.
//
// A run that asks a person for an approval ends its response. The answer begins another response, for
// the part of the run that follows. Its id has the number of the line after which the part begins.
//
// Clients post again after a timeout, without an idempotency key. again.go finds the run of the first
// call.
//
// # What it is not
//
// It has no state, and decides nothing: see package doors.
package openai

import (
	"net/http"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

const name = "openai"

// Door is the door for clients of OpenAI's API.
func Door() *doors.Door {
	const one = "/v1/responses/{id}"
	return &doors.Door{Name: name, Refuse: refuse, Notify: notify, Exposes: []string{runHeader, "X-Should-Retry"},
		Accepts: []string{"Openai-Organization", "Openai-Project", "X-Stainless-Arch", "X-Stainless-Lang",
			"X-Stainless-Os", "X-Stainless-Package-Version", "X-Stainless-Retry-Count", "X-Stainless-Runtime",
			"X-Stainless-Runtime-Version", "X-Stainless-Timeout"},
		Routes: []doors.Route{
			{Method: "POST", Pattern: "/v1/responses", Handle: create},
			{Method: "GET", Pattern: one, Handle: retrieve},
			{Method: "DELETE", Pattern: one, Handle: remove},
			{Method: "POST", Pattern: one + "/cancel", Handle: cancel},
			{Method: "GET", Pattern: one + "/input_items", Handle: inputItems},
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
