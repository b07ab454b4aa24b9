package openai

import (
	"net/http"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

// Door is the door for clients of OpenAI's API.
func Door() *doors.Door {
	return &doors.Door{Name: "openai", Refuse: refuse}
}

func refuse(p *api.Problem, _ http.Header) (int, any) { return p.Status, p }
